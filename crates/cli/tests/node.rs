//! A node of a fleet: the real program with tiny models, and a scripted gateway that it reports to.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/gguf.rs"]
mod gguf;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use gguf::Gguf;
use lichen_contract::{Discovery, Endpoint, Ensured, ModelState, NodeReport, Unloading, routes};
use lichen_format::Value as Meta;
use serde_json::{Value, json};
use support::{address, exchange, lichen, model, status};

const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway that takes every report and answers as it is told.
struct Gateway {
    address: String,
    heard: Receiver<(String, NodeReport)>,
}

impl Gateway {
    fn start() -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn listen(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let (told, heard) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (mut reader, told) = (BufReader::new(socket.unwrap()), told.clone());
                std::thread::spawn(move || {
                    while let Some(request) = request(&mut reader) {
                        // Nobody listens any more at the end of a test.
                        let _ = told.send(request);
                        let body = r#"{"gateway_id":"g","interval_ms":100}"#;
                        let answer =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, heard }
    }

    fn next(&self) -> NodeReport {
        self.heard.recv_timeout(PATIENCE).unwrap().1
    }

    fn until(&self, holds: impl Fn(&NodeReport) -> bool) -> NodeReport {
        let start = Instant::now();
        loop {
            let report = self.next();
            if holds(&report) {
                return report;
            }
            assert!(start.elapsed() < PATIENCE, "{report:?}");
        }
    }
}

/// Head and report of a request; `None` at the end of the connection.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, NodeReport)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, serde_json::from_slice(&body).unwrap()))
}

struct Node {
    child: Child,
    address: String,
}

impl Node {
    /// A node with this `node.toml`.
    fn start(config: &str) -> Self {
        Self::with(config, &[])
    }

    fn with(config: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("node.toml");
        std::fs::write(&file, config).unwrap();
        let mut child = lichen()
            .args(["serve", "--config", file.to_str().unwrap(), "--port", "0", "--threads", "2"])
            .args(["--access-log", "off", "--kv-gate", "off"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let address = address(&mut child).unwrap();
        Self { child, address }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (head, body) = exchange(&self.address, method, path, &body).unwrap();
        (status(&head), serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head} {body}")))
    }

    fn report(&self) -> NodeReport {
        serde_json::from_value(self.call("GET", routes::MODELS, &Value::Null).1).unwrap()
    }

    fn state(&self, model: &str) -> Option<ModelState> {
        state(&self.report(), model)
    }

    fn ensure(&self, body: &Value) -> Ensured {
        serde_json::from_value(self.call("POST", routes::LOAD, body).1).unwrap()
    }

    fn becomes(&self, model: &str, wanted: &ModelState) {
        let start = Instant::now();
        while self.state(model).as_ref() != Some(wanted) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.report());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn counted(&self, name: &str, label: &str) -> u64 {
        let (_, text) = exchange(&self.address, "GET", "/metrics", "").unwrap();
        let line = text.lines().find(|line| line.starts_with(name) && line.contains(label)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// A stream of many tokens that has begun.
    fn stream(&self, model: &str, tokens: usize) -> BufReader<TcpStream> {
        let body = json!({"model": model, "prompt": "hello", "max_tokens": tokens, "ignore_eos": true, "stream": true});
        let body = body.to_string();
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(socket, "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0 && !line.starts_with('{'), "no event: {line}");
        }
        reader
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    fn ends(&mut self) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the node did not end");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // One that has ended already can't be killed; either way it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn state(report: &NodeReport, model: &str) -> Option<ModelState> {
    report.models.iter().find(|status| status.id == model).map(|status| status.state.clone())
}

/// A tiny model whose context is long enough for a stream that goes on for a while.
fn long_model() -> PathBuf {
    static WRITTEN: OnceLock<PathBuf> = OnceLock::new();
    let write = || {
        let file = Gguf::read(&model("llama/model-f16.gguf"));
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("long-{}.gguf", std::process::id()));
        std::fs::write(&path, file.set("llama.context_length", Meta::U32(16384)).write()).unwrap();
        path
    };
    WRITTEN.get_or_init(write).clone()
}

/// Two tiny models, `a` and `b`, that nobody has asked for yet, and what else is given.
fn config(node: &str, rest: &str) -> String {
    let (a, b) = (long_model(), model("qwen2/model-f16.gguf").canonicalize().unwrap());
    format!(
        "[node]\n{node}\n[[models]]\nname = \"a\"\nmodel = \"{}\"\nctx_cap = 16384\n\
         [[models]]\nname = \"b\"\nmodel = \"{}\"\nctx_cap = 256\n{rest}",
        a.display(),
        b.display()
    )
}

fn reporting_to(gateway: &Gateway, token: &str) -> String {
    format!(
        "[[gateways]]\nurl = \"http://{}/\"\njoin_token = \"{token}\"\nheartbeat_ms = 200\n",
        gateway.address
    )
}

#[test]
fn loads_that_are_asked_for_at_once_are_one_and_end_ready() {
    let node = Node::start(&config("", ""));
    assert_eq!((node.state("a"), node.state("b")), (Some(ModelState::Absent), Some(ModelState::Absent)));
    std::thread::scope(|scope| {
        let node = &node;
        let ask = || node.ensure(&json!({"model_id": "a"}));
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        for thread in asked {
            let ensured = thread.join().unwrap();
            assert!(matches!(ensured, Ensured::Loading { .. } | Ensured::Ready), "{ensured:?}");
        }
    });
    node.becomes("a", &ModelState::Ready);
    assert_eq!(node.counted("lichen_model_loads_total", "loaded"), 1);
    let (status, endpoint) = node.call("GET", &routes::endpoint("a"), &Value::Null);
    let endpoint: Endpoint = serde_json::from_value(endpoint).unwrap();
    assert_eq!((status, endpoint.url.as_str()), (200, "http://x"), "where this request went");
    assert_eq!(node.call("GET", &routes::endpoint("b"), &Value::Null).0, 404);
}

#[test]
fn a_load_outlives_the_client_that_asked_for_it() {
    let node = Node::start(&config("", ""));
    let body = json!({"model_id": "a"}).to_string();
    let mut socket = TcpStream::connect(&node.address).unwrap();
    write!(
        socket,
        "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        routes::LOAD,
        body.len()
    )
    .unwrap();
    let mut first = [0];
    socket.read_exact(&mut first).unwrap();
    drop(socket);
    node.becomes("a", &ModelState::Ready);
}

#[test]
fn an_unload_waits_for_the_stream_that_runs() {
    let node = Node::start(&config("default_models = [\"a\"]", ""));
    let mut stream = node.stream("a", 6000);
    let (status, unloading) = node.call("POST", routes::UNLOAD, &json!({"model_id": "a"}));
    let unloading: Unloading = serde_json::from_value(unloading).unwrap();
    assert_eq!((status, unloading.in_flight), (202, 1));
    assert_eq!(node.state("a"), Some(ModelState::Draining));
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    node.becomes("a", &ModelState::Absent);
}

#[test]
fn a_broken_default_model_is_told_and_the_next_one_is_loaded_before_the_first_request() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.gguf"), b"GGUF and nothing else").unwrap();
    let text =
        format!("default_models = [\"broken\", \"a\"]\nmodel_folders = [\"{}\"]", folder.path().display());
    let mut node = Node::start(&config(&text, ""));
    assert_eq!(node.state("a"), Some(ModelState::Ready), "by the first request");
    let Some(ModelState::Failed { cause }) = node.state("broken") else { panic!("{:?}", node.report()) };
    assert!(cause.contains("broken.gguf"), "{cause}");
    node.signal("TERM");
    assert_eq!(node.ends(), Some(0));
    let mut told = String::new();
    node.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("cannot load broken") && told.contains("going on with the next"), "{told}");
}

#[test]
fn options_of_the_command_line_go_before_the_file() {
    let b = model("qwen2/model-f16.gguf");
    let options = ["--model", b.to_str().unwrap(), "--name", "mine", "--ram-budget", "300M"];
    let node = Node::with(&config("default_models = [\"a\"]\nram_budget = \"200M\"", ""), &options);
    assert_eq!((node.state("mine"), node.state("a")), (Some(ModelState::Ready), Some(ModelState::Absent)));
    assert!(node.report().memory.budget_bytes > 200 << 20);
}

#[test]
fn a_file_with_a_mistake_is_told_by_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.toml");
    for (text, told) in [
        ("[node]\nprot = 1\n", "prot"),
        (
            "[node]\nhost = \"0.0.0.0\"\n[[gateways]]\nurl = \"http://127.0.0.1:1\"\n",
            "set address under [node]",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let refused = support::run(["serve", "--config", file.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(support::stderr(&refused).contains(told), "{}", support::stderr(&refused));
    }
}

#[test]
fn discovery_tells_what_the_node_is_made_of() {
    let node = Node::start(&config("name = \"attic\"\nram_budget = \"200M\"", ""));
    let discovery: Discovery =
        serde_json::from_value(node.call("GET", routes::DISCOVERY, &Value::Null).1).unwrap();
    assert_eq!((discovery.node_id.as_str(), discovery.backend.as_str()), ("attic", "cpu"));
    assert_eq!(discovery.boot_id, node.report().boot_id);
    assert!(discovery.cores > 0 && discovery.ram_bytes > 0 && !discovery.build.is_empty(), "{discovery:?}");
    assert!((1..=200 << 20).contains(&discovery.budget_bytes), "{discovery:?}");
    let [device] = &discovery.devices[..] else { panic!("{discovery:?}") };
    assert_eq!((device.index, device.backend.as_str()), (0, "cpu"));
    assert!(
        !device.name.is_empty() && !device.capability.is_empty() && device.memory_bytes > 0,
        "{device:?}"
    );
    assert_eq!(device.free_bytes, discovery.budget_bytes, "nothing is loaded");
}

#[test]
fn what_never_fits_and_what_a_pin_keeps_out_is_told() {
    // The process itself, the margin, and one and a half of the models, which take about 1 MB each.
    let node = Node::start(&config("ram_budget = \"41344000\"", ""));
    let small = |name: &str, pin: bool| json!({"model_id": name, "ctx_cap": 256, "pin": pin});
    let large = node.ensure(&json!({"model_id": "a", "name": "large", "ctx_cap": 16384}));
    let Ensured::NeverFits { needs_bytes, has_bytes } = large else { panic!("{large:?}") };
    assert!(needs_bytes > has_bytes && has_bytes > 0, "{large:?}");
    assert!(matches!(node.ensure(&small("a", true)), Ensured::Loading { .. } | Ensured::Ready));
    node.becomes("a", &ModelState::Ready);
    assert_eq!(node.ensure(&small("b", false)), Ensured::PinnedOut { by: vec!["a".into()] });
}

#[test]
fn reports_grow_in_number_tell_changes_at_once_and_start_anew_with_the_node() {
    let gateway = Gateway::start();
    let text = config("name = \"attic\"", &reporting_to(&gateway, "secret"));
    let node = Node::start(&text);
    let (head, first) = gateway.heard.recv_timeout(PATIENCE).unwrap();
    assert!(
        head.starts_with("post /fleet/heartbeat ") && head.contains("authorization: bearer secret\r\n"),
        "{head}"
    );
    assert_eq!((first.node_id.as_str(), first.draining), ("attic", false));
    assert_eq!(first.address, Some(format!("http://{}", node.address)));
    let second = gateway.next();
    assert!(second.sequence > first.sequence && second.boot_id == first.boot_id, "{second:?}");
    assert!(node.report().sequence > second.sequence, "over all receivers");
    node.ensure(&json!({"model_id": "a"}));
    let ready = gateway.until(|report| state(report, "a") == Some(ModelState::Ready));
    assert_eq!(ready.boot_id, first.boot_id);
    drop(node);
    let _again = Node::start(&text);
    let anew = gateway.until(|report| report.boot_id != first.boot_id);
    assert_eq!((anew.node_id.as_str(), state(&anew, "a")), ("attic", Some(ModelState::Absent)));
}

#[test]
fn a_gateway_that_is_away_is_tried_on_and_holds_up_nobody() {
    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let away = Gateway { address: place.local_addr().unwrap().to_string(), heard: channel().1 };
    let present = Gateway::start();
    // Connections to it come about, and nobody ever answers.
    let rest = reporting_to(&away, "x") + &reporting_to(&present, "x");
    let node = Node::start(&config("default_models = [\"a\"]", &rest));
    for _ in 0..5 {
        present.next();
    }
    let body = json!({"model": "a", "prompt": "hello", "max_tokens": 3});
    assert_eq!(node.call("POST", "/v1/completions", &body).0, 200);
    assert!(!Gateway::listen(place).next().draining, "it hears of the node once it is there");
}

#[test]
fn sigterm_tells_gateways_first_lets_the_stream_end_unloads_and_ends_with_success() {
    let gateway = Gateway::start();
    let mut node = Node::start(&config("default_models = [\"a\"]", &reporting_to(&gateway, "x")));
    let mut stream = node.stream("a", 6000);
    node.signal("TERM");
    let draining = gateway.until(|report| report.draining);
    let running: u32 = draining.models.iter().map(|model| model.in_flight).sum();
    assert_eq!((running, state(&draining, "a")), (1, Some(ModelState::Ready)), "{draining:?}");
    assert!(TcpStream::connect(&node.address).is_err(), "it takes no more connections");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let last = gateway.until(|report| state(report, "a") == Some(ModelState::Absent));
    assert!(last.draining);
    assert_eq!(node.ends(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut node = Node::start(&config("default_models = [\"a\"]\ndrain_s = 3600", ""));
    let _stream = node.stream("a", 12000);
    node.signal("TERM");
    let start = Instant::now();
    while TcpStream::connect(&node.address).is_ok() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    node.signal("TERM");
    node.ends();
}
