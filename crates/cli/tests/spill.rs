//! The disk tier of `lichen serve`, through the real program: what memory has no room for comes back from a folder,
//! whatever happens to the server and to the folder.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use support::{address, exchange, lichen, model};

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path) -> Self {
        Self::with(folder, "64M", &[])
    }

    /// A server whose cache has six pages, two prompts at most. `more` stands behind its model.
    fn with(folder: &Path, budget: &str, more: &[&str]) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "1", "--access-log", "off", "--spill-dir"])
            .arg(folder)
            .args(["--spill-budget", budget, "--ctx-cap", "256", "--max-concurrent", "1", "--model"])
            .arg(model("llama/model-f16.gguf"))
            .args(["--name", "tiny"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let address = address(&mut child).unwrap();
        Self { child, address }
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> String {
        exchange(&self.address, method, path, body).unwrap().1
    }

    /// The answer to a prompt and how many of its tokens were not computed.
    fn ask(&self, number: usize) -> (String, u64) {
        let body = json!({"prompt": prompt(number), "max_tokens": 6, "temperature": 0, "ignore_eos": true})
            .to_string();
        let answer: Value = serde_json::from_str(&self.exchange("POST", "/v1/completions", &body)).unwrap();
        let text = answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        (text, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    }

    fn metric(&self, name: &str) -> f64 {
        let text = self.exchange("GET", "/metrics", "");
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until so many texts have been written.
    fn written(&self, count: f64) {
        let start = Instant::now();
        while self.metric("lichen_spill_writes_total") < count {
            assert!(start.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.success(), signal == Signal::SIGTERM, "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// 200 tokens that no other number shares.
fn prompt(number: usize) -> Vec<usize> {
    (0..200).map(|at| 3 + (at * at + 7 * at * (number + 1) + 31 * number) % 200).collect()
}

/// Three full pages.
const FULL: u64 = 192;

fn answers(folder: &Path, count: usize) -> Vec<String> {
    let server = Server::start(folder);
    (0..count).map(|number| server.ask(number).0).collect()
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(suffix)).collect()
}

#[test]
fn a_prompt_that_others_have_driven_out_comes_back_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let first: Vec<_> = (0..6).map(|number| server.ask(number)).collect();
    server.written(4.0);
    let (text, cached) = server.ask(0);
    assert_eq!((&text, cached), (&first[0].0, FULL));
    assert_eq!(first[0].1, 0);
    assert!(server.metric("lichen_spill_reads_total{result=\"restored\"}") >= 1.0);
    // Texts may still be on their way.
    let start = Instant::now();
    let spill = loop {
        let memory: Value = serde_json::from_str(&server.exchange("GET", "/admin/memory", "")).unwrap();
        if memory["spill"]["bytes"].as_f64() == Some(server.metric("lichen_spill_bytes")) {
            break memory["spill"].clone();
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{memory}");
    };
    assert!(spill["entries"].as_u64().unwrap() >= 4 && spill["budget_bytes"] == 64 << 20, "{spill}");
    assert_eq!(spill["dir"].as_str(), folder.path().to_str());
}

#[test]
fn a_server_that_is_stopped_begins_warm() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let cold = server.ask(0);
    server.stop(Signal::SIGTERM);
    let server = Server::start(folder.path());
    assert_eq!(server.ask(0), (cold.0, FULL));
}

#[test]
fn a_server_that_is_killed_while_it_writes_leaves_nothing_wrong_behind() {
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let reference = answers(other.path(), 12);
    let mut warm = 0;
    for round in 0..8u64 {
        let server = Server::start(folder.path());
        assert!(files(folder.path(), ".partial").is_empty(), "what a writer has left is removed");
        assert_eq!(server.metric("lichen_spill_errors_total{op=\"open\"}"), 0.0);
        let pid = Pid::from_raw(server.child.id() as i32);
        std::thread::scope(|scope| {
            let killer = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20 + round * 37));
                kill(pid, Signal::SIGKILL).unwrap();
            });
            for number in (0..12).cycle() {
                let body = json!({"prompt": prompt(number), "max_tokens": 6}).to_string();
                if exchange(&server.address, "POST", "/v1/completions", &body).is_err() {
                    break;
                }
            }
            killer.join().unwrap();
        });
        drop(server);
        let server = Server::start(folder.path());
        for (number, text) in reference.iter().enumerate().take(3) {
            let (again, cached) = server.ask(number);
            assert_eq!(&again, text);
            warm += cached;
        }
    }
    assert!(warm > 0, "something was written before it was killed");
}

#[test]
fn damaged_files_are_found_out_and_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let reference: Vec<_> = (0..6).map(|number| server.ask(number).0).collect();
    server.stop(Signal::SIGTERM);
    let written = files(folder.path(), ".session");
    assert!(written.len() >= 6, "{written:?}");
    for (number, file) in written.iter().enumerate() {
        let mut bytes = fs::read(file).unwrap();
        // From the header over the pages to the end.
        let at = (bytes.len() - 1) * number / (written.len() - 1);
        bytes[at] ^= 0x55;
        fs::write(file, bytes).unwrap();
    }
    let server = Server::start(folder.path());
    let again: Vec<_> = (0..6).map(|number| server.ask(number).0).collect();
    assert_eq!(again, reference);
    let errors = |op: &str| server.metric(&format!("lichen_spill_errors_total{{op=\"{op}\"}}"));
    assert_eq!(errors("open") + errors("read"), written.len() as f64);
    assert_eq!(server.metric("lichen_spill_reads_total{result=\"restored\"}"), 0.0);
}

#[test]
fn a_folder_that_vanishes_changes_no_answer() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("spill");
    let server = Server::start(&folder);
    let reference: Vec<_> = (0..6).map(|number| server.ask(number).0).collect();
    server.written(4.0);
    fs::rename(&folder, parent.path().join("gone")).unwrap();
    let again: Vec<_> = (0..6).map(|number| server.ask(number).0).collect();
    assert_eq!(again, reference);
    let start = Instant::now();
    while server.metric("lichen_spill_errors_total{op=\"write\"}") == 0.0 {
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Four prompts.
const BUDGET: u64 = 220_000;

#[test]
fn the_budget_holds_at_every_moment_for_all_models_together() {
    let folder = tempfile::tempdir().unwrap();
    let file = model("llama/model-f16.gguf");
    let replica = ["--model", file.to_str().unwrap(), "--name", "tiny"];
    let server = Server::with(folder.path(), &BUDGET.to_string(), &replica);
    let bytes = || -> u64 {
        let entries = fs::read_dir(folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().metadata().map_or(0, |file| file.len())).sum()
    };
    let mut most = 0;
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| (0..40).for_each(|number| drop(server.ask(number))));
        while !asking.is_finished() {
            most = most.max(bytes());
        }
    });
    assert!((1..=BUDGET).contains(&most), "{most}");
    assert!(server.metric("lichen_spill_bytes") > 0.0);
}

#[test]
fn a_folder_that_another_server_has_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (Server::start(folder.path()), Server::start(folder.path()));
    assert_eq!(first.ask(0).0, second.ask(0).0);
    let memory: Value = serde_json::from_str(&second.exchange("GET", "/admin/memory", "")).unwrap();
    assert!(memory["spill"].is_null(), "{memory}");
}
