//! `lichen serve` under load: many clients at once, clients that vanish, models that come and go.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{lichen, model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--threads", "2", "--access-log", "off"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address =
            lines.into_iter().find_map(|line| Some(line.strip_prefix("listening on http://")?.to_owned()));
        Self { child, address: address.unwrap() }
    }

    fn with_model(options: &[&str]) -> Self {
        let model = model("llama/model-f16.gguf");
        let first = ["--model", model.to_str().unwrap(), "--name", "tiny"];
        Self::start(&[&first[..], options].concat())
    }

    async fn open(&self, method: &str, path: &str, body: &Value) -> TcpStream {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let mut socket = TcpStream::connect(&self.address).await.unwrap();
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        socket.write_all(text.as_bytes()).await.unwrap();
        socket
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Reply {
        let mut socket = self.open(method, path, body).await;
        let mut answer = String::new();
        let reading = socket.read_to_string(&mut answer);
        tokio::time::timeout(Duration::from_secs(300), reading).await.expect("an answer in time").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let retry_after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")?.parse().ok());
        Reply { status, retry_after, body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }

    async fn chat(&self, question: &str, tokens: usize) -> Reply {
        let messages = json!([{"role": "user", "content": question}]);
        let body = json!({"messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": true});
        self.call("POST", "/v1/chat/completions", &body).await
    }

    /// The value of a metric.
    async fn metric(&self, name: &str) -> f64 {
        let mut socket = self.open("GET", "/metrics", &Value::Null).await;
        let mut text = String::new();
        socket.read_to_string(&mut text).await.unwrap();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until nothing runs, waits or holds pages that the prefix cache doesn't.
    async fn becomes_empty(&self) {
        let start = Instant::now();
        loop {
            let mut busy = 0.0;
            for name in ["lichen_requests_running", "lichen_requests_waiting", "lichen_requests_paused"] {
                busy += self.metric(name).await;
            }
            let held = self.metric("lichen_kv_pages").await - self.metric("lichen_prefix_cache_pages").await;
            if busy == 0.0 && held == 0.0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{busy} requests and {held} pages are left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    retry_after: Option<u64>,
    body: Value,
}

impl Reply {
    fn text(&self) -> &str {
        self.body["choices"][0]["message"]["content"].as_str().unwrap()
    }
}

/// A linear congruential generator: the tests are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

async fn all<T: Send + 'static>(work: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let tasks: Vec<_> = work.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_everybody_gets_the_answer_that_they_would_get_alone() {
    let server = Arc::new(Server::with_model(&["--max-concurrent", "3"]));
    let questions: Vec<String> =
        (0..6).map(|n| format!("{n} {}", "what about it ".repeat(n * 2 + 1))).collect();
    let mut alone = Vec::new();
    for question in &questions {
        alone.push(server.chat(question, 12).await);
    }
    let again: Vec<_> = (0..36)
        .map(|n| {
            let (server, question) = (server.clone(), questions[n % questions.len()].clone());
            async move { server.chat(&question, 12).await }
        })
        .collect();
    for (n, reply) in all(again).await.into_iter().enumerate() {
        let expected = &alone[n % questions.len()];
        assert_eq!((reply.status, reply.text()), (200, expected.text()));
        let prompt = |reply: &Reply| reply.body["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(prompt(&reply), prompt(expected));
        let cached = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert!(cached < prompt(&reply), "{cached} tokens that aren't all its own");
    }
    server.becomes_empty().await;
}

/// Needs `LICHEN_TEST_MODELS` (see README): the tiny model's context is too short.
#[tokio::test(flavor = "multi_thread")]
async fn four_clients_with_long_prompts_all_finish_on_a_small_context() {
    let Ok(models) = std::env::var("LICHEN_TEST_MODELS") else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
        return;
    };
    let file = format!("{models}/SmolLM2-135M-Instruct.Q4_1.gguf");
    let options = ["--model", &file, "--ctx-cap", "1024"];
    let server = Arc::new(Server::start(&options));
    let work = (0..4).map(|n| {
        let server = server.clone();
        async move { server.chat(&format!("{n}: {}", "apples and pears ".repeat(120)), 40).await }
    });
    for reply in all(work.collect()).await {
        assert_eq!(reply.status, 200, "{reply:?}");
        let usage = &reply.body["usage"];
        assert!(usage["prompt_tokens"].as_u64().unwrap() >= 350, "{usage}");
        assert_eq!(usage["completion_tokens"], 40);
    }
    server.becomes_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_thousand_requests_at_once_each_is_answered_or_told_when_to_come_back() {
    let server = Arc::new(Server::with_model(&["--max-queue", "64"]));
    let work = (0..2000).map(|n| {
        let server = server.clone();
        async move { server.chat(&format!("question {n}"), 2).await }
    });
    let replies = all(work.collect()).await;
    let served = replies.iter().filter(|reply| reply.status == 200).count();
    for reply in &replies {
        match reply.status {
            200 => assert_eq!(reply.body["usage"]["completion_tokens"], 2),
            429 => assert!(matches!(reply.retry_after, Some(1..=60)), "{reply:?}"),
            _ => panic!("{reply:?}"),
        }
    }
    assert!(served >= 64, "{served} of 2000 were served");
    server.becomes_empty().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_vanish_at_any_moment_leave_nothing_behind() {
    let server = Arc::new(Server::with_model(&["--max-concurrent", "4"]));
    let mut random = Random(7);
    let work: Vec<_> = (0..200)
        .map(|n| {
            let (stream, after) = (random.below(2) == 0, random.below(60));
            let messages = json!([{"role": "user", "content": format!("{n} {}", "word ".repeat(n % 20))}]);
            let body = json!({"messages": messages, "stream": stream, "max_tokens": 200, "ignore_eos": true});
            let path = if n % 3 == 0 { "/v1/messages" } else { "/v1/chat/completions" };
            let server = server.clone();
            async move {
                let socket = server.open("POST", path, &body).await;
                tokio::time::sleep(Duration::from_millis(after)).await;
                drop(socket);
            }
        })
        .collect();
    all(work).await;
    server.becomes_empty().await;
    assert_eq!(server.chat("still there?", 3).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_come_and_go_while_requests_run() {
    // What the process itself needs, the margin, and two and a half times what the model needs with this context.
    let budget = ((40 << 20) + (24 << 20) + 5 * (738 << 10) / 2).to_string();
    let server = Arc::new(Server::start(&["--ram-budget", &budget]));
    let names = ["a", "b", "c"];
    let path = model("llama/model-f16.gguf");
    let load = |name: &str| json!({"model": path, "name": name, "ctx_cap": 64, "max_concurrent": 1, "max_sessions": 1});
    let mut random = Random(11);
    let mut asked = Vec::new();
    let mut loads = 0;
    for step in 0..200 {
        let name = names[random.below(3) as usize];
        match random.below(4) {
            0 => {
                let reply = server.call("POST", "/admin/models/load", &load(name)).await;
                assert!(matches!(reply.status, 202 | 400 | 503), "step {step}: {reply:?}");
                assert!(reply.status == 202 || reply.body["error"]["type"].is_string(), "{reply:?}");
                loads += usize::from(reply.status == 202);
            }
            1 => {
                let reply = server.call("POST", "/admin/models/unload", &json!({"model": name})).await;
                assert!(matches!(reply.status, 202 | 404), "step {step}: {reply:?}");
            }
            _ => {
                let body = json!({"model": name, "prompt": "hello", "max_tokens": 3, "ignore_eos": true});
                let server = server.clone();
                asked.push(tokio::spawn(async move { server.call("POST", "/v1/completions", &body).await }));
            }
        }
        tokio::time::sleep(Duration::from_millis(random.below(8))).await;
    }
    let mut answered = 0;
    for reply in asked {
        let reply = reply.await.unwrap();
        match reply.status {
            200 => answered += 1,
            404 | 503 | 429 => assert!(reply.body["error"]["type"].is_string(), "{reply:?}"),
            _ => panic!("{reply:?}"),
        }
    }
    assert!(loads > 5 && answered > 10, "{loads} loads, {answered} answers");
}
