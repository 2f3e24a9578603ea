//! `lichen serve` under the official Python client. Needs `LICHEN_TEST_PYTHON`, a python that has the `openai` package
//! (`scripts/test-python` makes one); with a real model it needs `LICHEN_TEST_MODELS` as well (`scripts/fetch-models`).
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{lichen, model};

struct Server {
    child: Child,
    base_url: String,
}

impl Server {
    fn start(model: &Path) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "2", "--model"])
            .arg(model)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.into_iter().find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        let base_url = format!("{}/v1", address.unwrap());
        Self { child, base_url }
    }

    /// Runs the client's script against it to its end.
    fn drive(&self, python: &OsString, mode: &[&str]) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
        let output = Command::new(python).arg(script).arg(&self.base_url).args(mode).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already can't be killed; either way it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python() -> Option<OsString> {
    let python = std::env::var_os("LICHEN_TEST_PYTHON");
    if python.is_none() {
        eprintln!("skipped: LICHEN_TEST_PYTHON is not set; scripts/test-python makes one");
    }
    python
}

#[test]
fn the_official_client_is_content() {
    let Some(python) = python() else { return };
    Server::start(&model("llama/model-f16.gguf")).drive(&python, &[]);
}

#[test]
fn the_official_client_is_content_with_a_real_model() {
    let Some(python) = python() else { return };
    let Some(models) = std::env::var_os("LICHEN_TEST_MODELS").map(PathBuf::from) else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set; scripts/fetch-models fetches them");
        return;
    };
    let server = Server::start(&models.join("SmolLM2-135M-Instruct.Q4_1.gguf"));
    server.drive(&python, &["--real"]);
    #[cfg(target_os = "linux")]
    becomes_idle(server.child.id());
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
