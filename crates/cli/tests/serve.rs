//! `lichen serve` over loopback, from the first line to the last.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{lichen, model, run, stderr};

struct Server {
    child: Child,
    address: String,
    head: Vec<String>,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = lichen()
            .args(["serve", "--port", "0", "--model", model("llama/model-f16.gguf").to_str().unwrap()])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let head: Vec<String> = lines.take(3).map(Result::unwrap).collect();
        let address = head[2].strip_prefix("listening on http://").unwrap().to_owned();
        Self { child, address, head }
    }

    /// Status line and body.
    fn call(&self, method: &str, path: &str, body: &str) -> (String, serde_json::Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), serde_json::from_str(body).unwrap())
    }

    fn signal(&mut self, name: &str) -> Option<i32> {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server did not end on SIG{name}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already can't be killed; either way it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn answers_and_ends_on_sigterm() {
    let mut server = Server::start(&["--name", "tiny"]);
    assert!(server.head[0].starts_with("backend=cpu build="), "{:?}", server.head);
    assert!(server.head[0].ends_with("accelerator=none"), "{:?}", server.head);
    assert_eq!(server.head[1], "devices=1");
    let (status, health) = server.call("GET", "/health", "");
    assert_eq!((status.as_str(), &health["ready"]), ("HTTP/1.1 200 OK", &true.into()));
    assert_eq!(health["models"][0]["id"], "tiny");
    let body = r#"{"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}"#;
    let (status, answer) = server.call("POST", "/v1/chat/completions", body);
    assert_eq!(status, "HTTP/1.1 200 OK", "{answer}");
    assert_eq!(answer["choices"][0]["message"]["role"], "assistant");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() <= 5, "{answer}");
    assert_eq!(server.signal("TERM"), Some(0));
}

#[test]
fn is_named_after_its_file_and_ends_on_sigint() {
    let mut server = Server::start(&[]);
    let (_, models) = server.call("GET", "/v1/models", "");
    assert_eq!(models["data"][0]["id"], "model-f16");
    assert_eq!(server.signal("INT"), Some(0));
}

#[test]
fn a_taken_port_is_said_in_one_line() {
    let server = Server::start(&[]);
    let port = server.address.rsplit(':').next().unwrap();
    let model = model("llama/model-f16.gguf");
    let second = run(["serve", "--port", port, "--model", model.to_str().unwrap()]);
    assert_eq!(second.status.code(), Some(1));
    assert!(
        stderr(&second).contains("--port") && stderr(&second).lines().count() == 1,
        "{}",
        stderr(&second)
    );
}
