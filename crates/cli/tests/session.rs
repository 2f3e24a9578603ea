//! Conversations move from one node to another as files, through the real program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use serde_json::{Value, json};
use support::{lichen, model, run, stderr, stdout};

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(file: &str) -> Self {
        let mut child = lichen()
            .args([
                "serve",
                "--port",
                "0",
                "--threads",
                "1",
                "--access-log",
                "off",
                "--name",
                "tiny",
                "--model",
            ])
            .arg(model(file))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        Self { child, address: address.unwrap() }
    }

    /// The answer of a turn and how many tokens were reused.
    fn turn(&self, prompt: &str) -> (String, u64) {
        let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "ignore_eos": true, "session_id": "s"});
        let body = body.to_string();
        let mut socket = TcpStream::connect(self.address.strip_prefix("http://").unwrap()).unwrap();
        let length = body.len();
        write!(
            socket,
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let text = answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        (text, answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap())
    }

    /// An exchange about sessions.
    fn admin(&self, method: &str, path: &str) -> (String, Value) {
        let mut socket = TcpStream::connect(self.address.strip_prefix("http://").unwrap()).unwrap();
        let head = format!("{method} /admin/sessions{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        socket.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str(body).unwrap())
    }

    fn session(&self, action: &str, file: &Path) -> Output {
        run(["session", action, "s", file.to_str().unwrap(), "--endpoint", &self.address])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// So often repeated, the prompt has more than three pages of tokens.
const LONG: usize = 6;
const PROMPT: &str = "what about the weather in the north and the weather in the south";

#[test]
fn a_conversation_goes_on_on_another_node_as_if_it_had_never_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.session");
    let (here, there) = (Server::start("llama/model-f16.gguf"), Server::start("llama/model-f16.gguf"));
    let (first, _) = here.turn(PROMPT);
    let next = format!("{PROMPT}{first} and then");
    let exported = here.session("export", &file);
    assert!(exported.status.success(), "{}", stderr(&exported));
    let imported = there.session("import", &file);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let kept: u64 = stdout(&imported).split(' ').next().unwrap().parse().unwrap();
    let ((text, reused), (same, also)) = (there.turn(&next), here.turn(&next));
    assert_eq!(text, same);
    assert!(kept > 10 && reused >= kept.min(also) && reused > 0, "{kept} kept, {reused} and {also} reused");
}

#[test]
fn a_conversation_is_taken_at_a_coarser_precision_and_the_answer_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.session");
    let (here, there) = (Server::start("llama/model-f16.gguf"), Server::start("llama/model-f16.gguf"));
    // Three full pages and an open one, of which the second may be coarse.
    let long = PROMPT.repeat(LONG);
    let (first, _) = here.turn(&long);
    assert!(here.session("export", &file).status.success());
    let import = |kv: &str| {
        let file = file.to_str().unwrap();
        run(["session", "import", "s", file, "--endpoint", &there.address, "--kv", kv])
    };
    let unknown = import("q3");
    assert!(!unknown.status.success() && stderr(&unknown).contains("give f16, q8, q5 or q4"));
    let imported = import("q8");
    assert!(
        stdout(&imported).contains("pages: 1 in q8, 3 in f16"),
        "{}{}",
        stdout(&imported),
        stderr(&imported)
    );
    let next = format!("{long}{first} and then");
    let ((text, reused), (same, _)) = (there.turn(&next), here.turn(&next));
    assert_eq!(text, same, "eight bits change no word here");
    assert!(reused > 190, "{reused} reused");
}

#[test]
fn a_damaged_blob_and_one_of_another_model_are_refused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.session");
    let here = Server::start("llama/model-f16.gguf");
    here.turn(PROMPT);
    assert!(here.session("export", &file).status.success());
    let blob = std::fs::read(&file).unwrap();
    let there = Server::start("llama/model-f16.gguf");
    for at in (0..blob.len()).step_by(blob.len() / 40) {
        let mut damaged = blob.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&file, &damaged).unwrap();
        let refused = there.session("import", &file);
        assert!(!refused.status.success(), "byte {at}");
    }
    std::fs::write(&file, &blob[..blob.len() / 2]).unwrap();
    assert!(!there.session("import", &file).status.success());
    assert_eq!(there.turn(PROMPT).1, 0, "nothing was taken");
    std::fs::write(&file, &blob).unwrap();
    let other = Server::start("qwen2/model-f16.gguf").session("import", &file);
    assert!(!other.status.success() && stderr(&other).contains("of model"), "{}", stderr(&other));
}

#[test]
fn a_session_that_is_not_there_is_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = Server::start("llama/model-f16.gguf");
    let missing = here.session("export", &folder.path().join("s.session"));
    assert!(
        !missing.status.success() && stderr(&missing).contains("'s' has no state"),
        "{}",
        stderr(&missing)
    );
    assert!(!folder.path().join("s.session").exists());
}

#[test]
fn sessions_are_listed_by_name_and_dropped() {
    let here = Server::start("llama/model-f16.gguf");
    assert_eq!(here.admin("GET", "").1, json!({"sessions": []}));
    for method in ["GET", "DELETE"] {
        let (status, refused) = here.admin(method, "/s");
        assert_eq!((status.as_str(), &refused["error"]["type"]), ("404", &json!("session_not_found")));
    }
    here.turn(PROMPT);
    let (_, listed) = here.admin("GET", "?model=tiny");
    let session = &listed["sessions"][0];
    assert_eq!((&session["id"], &session["model"]), (&json!("s"), &json!("tiny")), "{listed}");
    let number = |field: &str| session[field].as_f64().unwrap_or_else(|| panic!("{listed}"));
    assert!(number("tokens") > 10.0 && number("bytes") > 1000.0 && number("idle_s") < 60.0, "{listed}");
    assert_eq!(here.admin("GET", "?model=other").0, "404");
    let told = run(["session", "list", "--endpoint", &here.address]);
    let line = format!("s  tiny  {} tokens", session["tokens"]);
    assert!(stdout(&told).starts_with(&line), "{}{}", stdout(&told), stderr(&told));
    let dropped = run(["session", "drop", "s", "--endpoint", &here.address]);
    assert!(stdout(&dropped).starts_with("'s' is gone; "), "{}{}", stdout(&dropped), stderr(&dropped));
    assert_eq!(here.admin("DELETE", "/s").0, "404");
    assert_eq!(here.admin("GET", "").1, json!({"sessions": []}));
    let again = run(["session", "drop", "s", "--endpoint", &here.address]);
    assert!(!again.status.success() && stderr(&again).contains("'s' has no state"), "{}", stderr(&again));
    let (_, reused) = here.turn(PROMPT);
    assert_eq!(reused, 0, "nothing of it is left");
    let (_, freed) = here.admin("DELETE", "/s");
    assert!(freed["freed_bytes"].as_u64().unwrap() > 1000, "{freed}");
}
