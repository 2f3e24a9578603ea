//! Several models on one box: who is idle goes when there is no room for all, and comes back when asked for.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{address, exchange, lichen, model, status};

/// The process itself, the margin, and one and a half of the models, which take about 1 MB each.
const ROOM_FOR_ONE: &str = "41344000";
const ROOM_FOR_ALL: &str = "200M";

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(budget: &str, options: &[&str]) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "2", "--access-log", "off", "--kv-gate", "off"])
            .args(["--ram-budget", budget])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let address = address(&mut child).unwrap();
        Self { child, address }
    }

    /// Two tiny models, `a` and `b`. What is given is for `a`.
    fn with_two(budget: &str, for_first: &[&str]) -> Self {
        let (a, b) = (model("llama/model-f16.gguf"), model("qwen2/model-f16.gguf"));
        let a = ["--model", a.to_str().unwrap(), "--name", "a", "--ctx-cap", "256"];
        let b = ["--model", b.to_str().unwrap(), "--name", "b", "--ctx-cap", "256"];
        Self::start(budget, &[&a[..], for_first, &b[..]].concat())
    }

    fn exchange(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (head, body) = exchange(&self.address, method, path, &body).unwrap();
        (status(&head), body)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.exchange(method, path, body);
        (status, serde_json::from_str(&body).unwrap())
    }

    fn ask(&self, model: &str, number: usize) -> (u16, Value) {
        let prompt = format!("question {number} about the weather in the north");
        let body =
            json!({"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        self.call("POST", "/v1/completions", &body)
    }

    fn state(&self, model: &str) -> String {
        let (_, card) = self.call("GET", &format!("/v1/models/{model}"), &Value::Null);
        card["state"].as_str().unwrap_or_else(|| panic!("{card}")).to_owned()
    }

    /// A counter by the value of its label.
    fn counted(&self, name: &str, label: &str) -> u64 {
        let (_, text) = self.exchange("GET", "/metrics", &Value::Null);
        let named = |line: &&str| line.starts_with(name) && line.contains(&format!("\"{label}\""));
        let line = text.lines().find(named).unwrap_or_else(|| panic!("{name} {label} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The text of an answer.
fn text((status, answer): (u16, Value)) -> String {
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn two_models_with_room_for_one_take_turns_and_answer_as_they_would_with_room_for_both() {
    let (roomy, tight) = (Server::with_two(ROOM_FOR_ALL, &[]), Server::with_two(ROOM_FOR_ONE, &[]));
    assert_eq!((roomy.state("a"), roomy.state("b")), ("ready".into(), "ready".into()));
    assert_eq!((tight.state("a"), tight.state("b")), ("ready".into(), "absent".into()));
    for number in 0..8 {
        let (model, other) = if number % 2 == 0 { ("b", "a") } else { ("a", "b") };
        assert_eq!(text(tight.ask(model, number)), text(roomy.ask(model, number)), "{model} {number}");
        assert_eq!((tight.state(model), tight.state(other)), ("ready".into(), "absent".into()));
    }
    assert_eq!(tight.counted("lichen_models_unloaded_total", "room"), 8);
    assert_eq!(tight.counted("lichen_model_loads_total", "loaded"), 9);
    assert_eq!(roomy.counted("lichen_models_unloaded_total", "room"), 0);
    let (_, memory) = tight.call("GET", "/admin/memory", &Value::Null);
    let last = &memory["models_unloaded"][0];
    assert_eq!((&last["model"], &last["reason"]), (&json!("b"), &json!("room")), "{memory}");
}

#[test]
fn requests_at_once_for_an_unloaded_model_wait_for_one_load() {
    let server = Server::with_two(ROOM_FOR_ONE, &[]);
    std::thread::scope(|scope| {
        let server = &server;
        let asked: Vec<_> =
            (0..12).map(|number| scope.spawn(move || text(server.ask("b", number)))).collect();
        asked.into_iter().for_each(|thread| assert!(!thread.join().unwrap().is_empty()));
    });
    assert_eq!(server.counted("lichen_model_loads_total", "loaded"), 2, "a at the start and b once");
    assert_eq!(server.counted("lichen_models_unloaded_total", "room"), 1);
}

#[test]
fn requests_for_both_at_once_are_all_answered_and_no_model_is_loaded_for_nobody() {
    let server = Server::with_two(ROOM_FOR_ONE, &[]);
    std::thread::scope(|scope| {
        let server = &server;
        let ask = |number: usize| {
            move || text(server.ask(if number.is_multiple_of(2) { "a" } else { "b" }, number))
        };
        let asked: Vec<_> = (0..16).map(|number| scope.spawn(ask(number))).collect();
        asked.into_iter().for_each(|thread| assert!(!thread.join().unwrap().is_empty()));
    });
    let loads = server.counted("lichen_model_loads_total", "loaded");
    assert!(loads <= 17, "{loads} loads for 16 requests");
}

#[test]
fn a_pinned_model_stays_and_who_wants_its_room_is_told_how_much_there_is() {
    let server = Server::with_two(ROOM_FOR_ONE, &["--pin"]);
    let (status, refused) = server.ask("b", 1);
    let error = &refused["error"];
    assert_eq!((status, &error["type"]), (503, &json!("memory_over_budget")), "{refused}");
    let bytes = |key: &str| error["details"][key].as_u64().unwrap_or_else(|| panic!("{refused}"));
    assert!(bytes("need_bytes") > bytes("available_bytes"), "{refused}");
    assert!(error["message"].as_str().unwrap().contains("beside a that stay"), "{refused}");
    assert_eq!(server.state("a"), "ready");
    text(server.ask("a", 1));
}

#[test]
fn a_further_model_that_does_not_fit_even_alone_is_refused_at_the_start() {
    let Some(large) = large() else { return };
    let mut serve = lichen();
    serve.args(["serve", "--port", "0", "--kv-gate", "off", "--ram-budget", "40M", "--ctx-cap", "256"]);
    let refused = serve.arg("--model").arg(model("llama/model-f16.gguf")).arg("--model").arg(large).output();
    let told = support::stderr(&refused.unwrap());
    assert!(told.contains("model_over_budget"), "{told}");
}

/// SmolLM2-135M, of `scripts/fetch-models`.
fn large() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("LICHEN_TEST_MODELS") else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
        return None;
    };
    Some(PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

#[test]
fn an_idle_model_goes_when_others_make_memory_short_and_comes_back() {
    let Some(large) = large() else { return };
    let tiny = model("llama/model-f16.gguf");
    let server = Server::start(
        "172M",
        &[
            "--idle-after",
            "1",
            "--draft",
            "off",
            "--model",
            large.to_str().unwrap(),
            "--name",
            "large",
            "--ctx-cap",
            "1024",
            "--model",
            tiny.to_str().unwrap(),
            "--name",
            "tiny",
            "--ctx-cap",
            "128",
        ],
    );
    let before = text(server.ask("tiny", 1));
    let prompt =
        |number: u64| -> Vec<u64> { (0..600).map(|at| 300 + (at * at * number + 7 * at) % 9000).collect() };
    std::thread::scope(|scope| {
        let server = &server;
        let ask = |number: u64| {
            let body = json!({"model": "large", "prompt": prompt(number), "max_tokens": 200, "temperature": 0, "ignore_eos": true});
            move || server.call("POST", "/v1/completions", &body)
        };
        let asked: Vec<_> = (1..5).map(|number| scope.spawn(ask(number))).collect();
        let start = Instant::now();
        while server.state("tiny") == "ready" && start.elapsed() < Duration::from_secs(200) {
            std::thread::sleep(Duration::from_millis(100));
        }
        for thread in asked {
            let (status, answer) = thread.join().unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(200)), "{answer}");
        }
    });
    let (_, memory) = server.call("GET", "/admin/memory", &Value::Null);
    assert_eq!(server.counted("lichen_models_unloaded_total", "pressure"), 1, "{memory}");
    assert_eq!(memory["models_unloaded"][0]["model"], "tiny", "{memory}");
    assert_eq!(text(server.ask("tiny", 1)), before);
}
