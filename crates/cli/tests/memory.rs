//! `lichen serve` where memory is short. With the models of `scripts/fetch-models`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::lichen;

/// Enough for SmolLM2-135M and 25 MiB of keys and values, which are 1,100 tokens in half precision.
const BUDGET: &str = "190M";

fn smollm2() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("LICHEN_TEST_MODELS") else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
        return None;
    };
    Some(PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(model: &PathBuf, options: &[&str]) -> Result<Self, String> {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "2", "--access-log", "off", "--ram-budget", BUDGET])
            .args(options)
            .arg("--model")
            .arg(model)
            .args(["--name", "small"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        match lines.find_map(|line| Some(line.strip_prefix("listening on http://")?.to_owned())) {
            Some(address) => Ok(Self { child, address }),
            None => {
                let mut told = String::new();
                child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
                assert!(!child.wait().unwrap().success());
                Err(told)
            }
        }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        use std::io::Write;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    fn memory(&self) -> Value {
        self.call("GET", "/admin/memory", &Value::Null).1
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// About 900 tokens that no other number shares.
fn prompt(number: usize) -> String {
    let words = ["river", "stone", "cloud", "market", "winter", "letter", "garden", "copper", "evening"];
    let text: Vec<&str> =
        (0..820).map(|i: usize| words[(i * 7 + i * i * number + number) % words.len()]).collect();
    format!("Number {number}. {}", text.join(" "))
}

fn bytes_of(memory: &Value, kind: &str) -> u64 {
    memory["classes"].as_array().unwrap().iter().map(|class| class[kind].as_u64().unwrap()).sum()
}

#[test]
fn prompts_that_fit_only_in_four_bits_are_all_answered_within_the_budget() {
    let Some(model) = smollm2() else { return };
    let server = Server::start(&model, &["--ctx-cap", "2048", "--max-concurrent", "4"]).unwrap();
    let mut reduced = 0;
    std::thread::scope(|scope| {
        let ask = |number: usize| {
            let body =
                json!({"prompt": prompt(number), "max_tokens": 24, "temperature": 0, "ignore_eos": true});
            server.call("POST", "/v1/completions", &body)
        };
        let asked: Vec<_> = (0..4).map(|number| scope.spawn(move || ask(number))).collect();
        while asked.iter().any(|thread| !thread.is_finished()) {
            let memory = server.memory();
            assert!(bytes_of(&memory, "mapped_bytes") <= memory["limit_bytes"].as_u64().unwrap(), "{memory}");
            std::thread::sleep(Duration::from_millis(50));
        }
        for thread in asked {
            let (status, answer) = thread.join().unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(24)), "{answer}");
            reduced += usize::from(answer["usage"]["memory"]["kv_precision"].is_string());
        }
    });
    assert!(reduced > 0, "answers say what their keys and values were reduced to");
    let memory = server.memory();
    let freed = |action: &str| {
        let all = memory["actions"].as_array().unwrap();
        all.iter()
            .find(|done| done["action"] == action)
            .map_or(0, |done| done["freed_bytes"].as_u64().unwrap())
    };
    assert!(freed("requantise_active") + freed("requantise_cached") > 0, "{memory}");
    assert!(!memory["transitions"].as_array().unwrap().is_empty(), "{memory}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_one_that_does() {
    let Some(model) = smollm2() else { return };
    let refused = Server::start(&model, &["--ctx-cap", "8192"]).err().unwrap();
    assert!(refused.contains("model_over_budget"), "{refused}");
    let (_, suggestion) = refused.split_once("a --ctx-cap of ").unwrap();
    let suggestion = suggestion.split_once(' ').unwrap().0;
    Server::start(&model, &["--ctx-cap", suggestion]).unwrap();
}

#[test]
fn a_context_that_nobody_asked_for_gives_way() {
    let Some(model) = smollm2() else { return };
    let server = Server::start(&model, &[]).unwrap();
    let body = json!({"prompt": "x ".repeat(9000), "max_tokens": 1});
    let (status, answer) = server.call("POST", "/v1/completions", &body);
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    let cap = answer["error"]["details"]["ctx_cap"].as_u64().unwrap();
    assert!((512..8192).contains(&cap), "{answer}");
}

#[test]
fn a_plan_says_what_the_server_would_do() {
    let Some(model) = smollm2() else { return };
    let plan = |cap: &str| {
        let model = model.to_str().unwrap();
        support::run(["plan", model, "--ram-budget", BUDGET, "--ctx-cap", cap])
    };
    let refused = plan("8192");
    assert!(!refused.status.success() && support::stderr(&refused).contains("model_over_budget"));
    let table = support::stdout(&refused);
    let longest = table.lines().find(|line| line.starts_with("longest context")).unwrap();
    let longest = longest.split_whitespace().rev().nth(1).unwrap();
    let fits = plan(longest);
    assert!(fits.status.success() && support::stdout(&fits).contains("fits"), "{}", support::stderr(&fits));
    Server::start(&model, &["--ctx-cap", longest]).unwrap();
}
