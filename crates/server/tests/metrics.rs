//! What `/metrics` tells after some traffic. With `LICHEN_TEST_PYTHON`, a python that has the package
//! `prometheus-client` (`scripts/test-python` makes one), its format is checked as well.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Act, Scripted, Server};
use lichen_generate::{FinishReason, GenerateError, Stats, Usage};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const STOP: Act = Act::Finish(FinishReason::Stop);

fn hello(stream: bool) -> Value {
    json!({"model": "org/toy", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

/// An engine whose answers take known times.
fn timed() -> Arc<Scripted> {
    let usage = Usage {
        completion_tokens: 5,
        queue_time: Duration::from_millis(20),
        time_to_first_token: Duration::from_millis(300),
        decode_time: Duration::from_secs(2),
        ..Usage::default()
    };
    let stats = Stats {
        running: 1,
        waiting: 2,
        paused: 3,
        pages: 10,
        cached_pages: 4,
        page_limit: 24,
        prompt_tokens: 100,
        reused_tokens: 60,
        generated_tokens: 7,
        drafted_tokens: 5,
        accepted_tokens: 4,
        ..Stats::default()
    };
    Arc::new(Scripted { acts: vec![Act::Say("Hi"), STOP], usage: Some(usage), stats, ..Scripted::default() })
}

/// The value of a sample, by name and labels as they are written.
async fn value(server: &Server, sample: &str) -> Option<f64> {
    let text = server.get("/metrics").await.body;
    let found = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn answers_are_timed_by_model_and_route() {
    let server = Server::start(&timed()).await;
    for stream in [false, true] {
        assert_eq!(server.post(CHAT, hello(stream)).await.status, 200);
    }
    let labels = r#"model="org/toy",route="/v1/chat/completions""#;
    for (name, bound, sum) in [
        ("lichen_queue_time_seconds", "0.025", 0.04),
        ("lichen_time_to_first_token_seconds", "0.5", 0.6),
        ("lichen_time_per_output_token_seconds", "0.5", 1.0),
    ] {
        let bucket = |bound: &str| format!("{name}_bucket{{{labels},le=\"{bound}\"}}");
        assert_eq!(value(&server, &bucket("0.01")).await, Some(0.0), "{name}");
        assert_eq!(value(&server, &bucket(bound)).await, Some(2.0), "{name}");
        assert_eq!(value(&server, &bucket("+Inf")).await, Some(2.0), "{name}");
        assert_eq!(value(&server, &format!("{name}_sum{{{labels}}}")).await, Some(sum), "{name}");
    }
    let count = format!("lichen_request_duration_seconds_count{{{labels}}}");
    assert_eq!(value(&server, &count).await, Some(2.0));
    let alias =
        r#"vllm:e2e_request_latency_seconds_count{model_name="org/toy",route="/v1/chat/completions"}"#;
    assert_eq!(value(&server, alias).await, Some(2.0));
}

#[tokio::test]
async fn requests_are_counted_by_route_and_status_and_errors_by_code() {
    let server = Server::start(&Scripted::new([Act::Say("a"), Act::Vanish])).await;
    server.post(CHAT, hello(false)).await;
    server.post(CHAT, hello(true)).await;
    server.ask("POST", CHAT, "", "{").await;
    server.post("/v1/messages", json!({})).await;
    server.get("/v1/models/org/other").await;
    server.get("/made/up").await;
    for (sample, expected) in [
        (r#"lichen_requests_total{route="/v1/chat/completions",status="200"}"#, 1.0),
        (r#"lichen_requests_total{route="/v1/chat/completions",status="400"}"#, 1.0),
        (r#"lichen_requests_total{route="/v1/chat/completions",status="500"}"#, 1.0),
        (r#"lichen_requests_total{route="/v1/messages",status="400"}"#, 1.0),
        (r#"lichen_requests_total{route="/v1/models/{*id}",status="404"}"#, 1.0),
        (r#"lichen_requests_total{route="none",status="404"}"#, 1.0),
        (r#"lichen_errors_total{code="engine_fault"}"#, 2.0),
        (r#"lichen_errors_total{code="invalid_request"}"#, 2.0),
        (r#"lichen_errors_total{code="model_not_found"}"#, 1.0),
        (r#"lichen_errors_total{code="not_found"}"#, 1.0),
    ] {
        assert_eq!(value(&server, sample).await, Some(expected), "{sample}");
    }
    assert!(!server.get("/metrics").await.body.contains("made"), "a client's path is no label");
}

#[tokio::test]
async fn refusals_of_the_engine_are_counted() {
    let full = GenerateError::QueueFull { queued: 8, limit: 8, estimate: Duration::from_secs(1) };
    let server = Server::start(&Scripted::refusing(full)).await;
    server.post(CHAT, hello(true)).await;
    assert_eq!(value(&server, r#"lichen_errors_total{code="queue_full"}"#).await, Some(1.0));
    let status = r#"lichen_requests_total{route="/v1/chat/completions",status="429"}"#;
    assert_eq!(value(&server, status).await, Some(1.0));
}

#[tokio::test]
async fn engines_are_seen_under_our_names_and_under_vllms() {
    let server = Server::start(&timed()).await;
    for (name, expected) in [
        ("lichen_requests_running", 1.0),
        ("lichen_requests_waiting", 2.0),
        ("lichen_prompt_tokens_total", 100.0),
        ("lichen_prefix_tokens_reused_total", 60.0),
        ("lichen_generated_tokens_total", 7.0),
        ("lichen_draft_tokens_total", 5.0),
        ("lichen_draft_tokens_accepted_total", 4.0),
    ] {
        let sample = format!("{name}{{model=\"org/toy\",replica=\"0\"}}");
        assert_eq!(value(&server, &sample).await, Some(expected), "{sample}");
    }
    for (name, expected) in [
        ("vllm:num_requests_running", 1.0),
        ("vllm:num_requests_waiting", 5.0),
        ("vllm:kv_cache_usage_perc", 0.25),
        ("vllm:gpu_prefix_cache_queries_total", 100.0),
        ("vllm:gpu_prefix_cache_hits_total", 60.0),
    ] {
        let sample = format!("{name}{{model_name=\"org/toy\",replica=\"0\"}}");
        assert_eq!(value(&server, &sample).await, Some(expected), "{sample}");
    }
    assert_eq!(value(&server, r#"lichen_model_ready{model="org/toy"}"#).await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_own_parser_reads_every_family() {
    let Some(python) = std::env::var_os("LICHEN_TEST_PYTHON") else {
        eprintln!("skipped: LICHEN_TEST_PYTHON is not set; scripts/test-python makes what it names");
        return;
    };
    let names = ["org/toy", "a \"quoted\\name\"\nin two lines"];
    let server = Server::with(&timed(), lichen_server::Settings::default(), &names).await;
    for name in names {
        let mut body = hello(false);
        body["model"] = json!(name);
        assert_eq!(server.post(CHAT, body).await.status, 200);
    }
    server.get("/nowhere").await;
    let text = server.get("/metrics").await.body;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prometheus.py");
    let mut child =
        Command::new(python).arg(script).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
