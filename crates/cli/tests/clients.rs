//! `lichen serve` under the official clients. They need `LICHEN_TEST_PYTHON`, a python that has the packages `openai` and
//! `anthropic` (`scripts/test-python` makes one), and `LICHEN_TEST_NODE`, a folder with npm packages (`scripts/test-node`);
//! with a real model they need `LICHEN_TEST_MODELS` as well (`scripts/fetch-models`).
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{lichen, model};

const SMALL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const KNOWS_TOOLS: &str = "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf";

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(model: &Path, options: &[&str]) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "2", "--access-log", "off", "--model"])
            .arg(model)
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.into_iter().find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        Self { child, address: address.unwrap() }
    }

    /// The address that OpenAI's clients want.
    fn v1(&self) -> String {
        format!("{}/v1", self.address)
    }
}

/// Runs a client's script to its end.
fn drive(program: &OsString, script: &str, args: &[&str]) {
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients")).join(script);
    let output = Command::new(program).arg(script).args(args).output().unwrap();
    let (told, complaint) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}{complaint}");
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already can't be killed; either way it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a variable of the environment holds; says so if the test is skipped without it.
fn needed(variable: &str, script: &str) -> Option<OsString> {
    let value = std::env::var_os(variable);
    if value.is_none() {
        eprintln!("skipped: {variable} is not set; scripts/{script} makes what it names");
    }
    value
}

fn python() -> Option<OsString> {
    needed("LICHEN_TEST_PYTHON", "test-python")
}

fn real(model: &str) -> Option<PathBuf> {
    Some(PathBuf::from(needed("LICHEN_TEST_MODELS", "fetch-models")?).join(model))
}

#[test]
fn the_official_client_is_content() {
    let Some(python) = python() else { return };
    let server = Server::start(&model("llama/model-f16.gguf"), &[]);
    drive(&python, "openai_client.py", &[&server.v1()]);
}

#[test]
fn the_official_client_is_content_with_a_real_model() {
    let (Some(python), Some(model)) = (python(), real(SMALL)) else { return };
    let server = Server::start(&model, &[]);
    drive(&python, "openai_client.py", &[&server.v1(), "--real"]);
    #[cfg(target_os = "linux")]
    becomes_idle(server.child.id());
}

#[test]
fn openais_client_gets_tools_formats_and_all_the_rest() {
    let (Some(python), Some(model)) = (python(), real(KNOWS_TOOLS)) else { return };
    drive(&python, "openai_agent.py", &[&Server::start(&model, &[]).v1()]);
}

#[test]
fn openais_client_is_kept_out_without_a_key_and_waits_when_told_to() {
    let (Some(python), Some(model)) = (python(), real(SMALL)) else { return };
    let mut keys = tempfile::NamedTempFile::new().unwrap();
    writeln!(keys, "# one a line\nsecret").unwrap();
    let keys = keys.path().to_str().unwrap();
    let options = ["--max-concurrent", "1", "--max-queue", "0", "--api-key-file", keys];
    drive(&python, "openai_limits.py", &[&Server::start(&model, &options).v1(), "secret"]);
}

#[test]
fn anthropics_client_gets_tools_and_reuse() {
    let (Some(python), Some(model)) = (python(), real(KNOWS_TOOLS)) else { return };
    drive(&python, "anthropic_agent.py", &[&Server::start(&model, &[]).address]);
}

#[test]
fn vercels_client_gets_tools_and_objects() {
    let (Some(packages), Some(model)) = (needed("LICHEN_TEST_NODE", "test-node"), real(KNOWS_TOOLS)) else {
        return;
    };
    let server = Server::start(&model, &["--name", "coder"]);
    let packages = packages.into_string().unwrap();
    drive(&"node".into(), "ai_sdk.mjs", &[&packages, &server.v1(), "coder"]);
}

/// The client hung up on an answer of thousands of tokens: the server must stop computing it long before its end.
#[cfg(target_os = "linux")]
fn becomes_idle(pid: u32) {
    use std::time::{Duration, Instant};

    /// Hundredths of a second of processor time, from fields 14 and 15 of proc(5) `stat`.
    fn ticks(pid: u32) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    }

    let start = Instant::now();
    let mut before = ticks(pid);
    while start.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(500));
        let now = ticks(pid);
        if now - before <= 2 {
            return;
        }
        before = now;
    }
    panic!("the server still computes what nobody reads");
}
