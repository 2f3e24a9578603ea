//! A model hub on the loopback interface that can misbehave on request.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the server holds and how it behaves.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) content: Vec<u8>,
    /// Value of `X-Linked-Etag`.
    pub(crate) linked_etag: String,
    /// So many content responses stop in the middle.
    pub(crate) cuts: AtomicUsize,
    pub(crate) ignore_range: AtomicBool,
    /// First line and range of each request.
    pub(crate) log: Mutex<Vec<String>>,
}

/// Starts the server; returns its address without a trailing slash.
pub(crate) fn start(state: Arc<State>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || answer(stream, &state));
        }
    });
    address
}

fn answer(mut stream: TcpStream, state: &State) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let first = lines.next().and_then(Result::ok).unwrap_or_default();
    let headers: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).map(|l| l.to_lowercase()).collect();
    let find = |name: &str| headers.iter().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let range = find("range: bytes=").and_then(|range| range.trim_end_matches('-').parse::<usize>().ok());
    state.log.lock().unwrap().push(format!("{first} {}", range.map_or(String::new(), |at| at.to_string())));
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let size = state.content.len();
    let head = |status: &str, more: &str, length: usize| {
        format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{more}\r\n")
    };
    let reply = |stream: &mut TcpStream, text: String, body: &[u8]| {
        let _ = stream.write_all(text.as_bytes());
        if method != "HEAD" {
            let _ = stream.write_all(body);
        }
    };
    if path.starts_with("/api/models/o/r/") {
        let body = br#"{"siblings":[{"rfilename":"m-Q8_0.gguf"},{"rfilename":"m-Q4_K_M.gguf"}]}"#;
        reply(&mut stream, head("200 OK", "", body.len()), body);
    } else if path.starts_with("/o/r/resolve/main/m-Q4_K_M.gguf") {
        let etag = &state.linked_etag;
        let more = format!("location: /cdn/blob\r\nx-linked-etag: \"{etag}\"\r\nx-linked-size: {size}\r\n");
        reply(&mut stream, head("302 Found", &more, 0), b"");
    } else if path == "/cdn/blob" || path == "/plain.gguf" {
        let etag_matches = find("if-range:").is_none_or(|etag| etag == "\"v1\"");
        let start = range.filter(|_| etag_matches && !state.ignore_range.load(Ordering::SeqCst));
        let body = &state.content[start.unwrap_or(0).min(size)..];
        let cut = state.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        let sent = if cut { &body[..body.len() / 2] } else { body };
        let text = match start {
            Some(start) => {
                let more = format!("etag: \"v1\"\r\ncontent-range: bytes {start}-{}/{size}\r\n", size - 1);
                head("206 Partial Content", &more, body.len())
            }
            None => head("200 OK", "etag: \"v1\"\r\n", body.len()),
        };
        reply(&mut stream, text, sent);
    } else {
        reply(&mut stream, head("404 Not Found", "", 0), b"");
    }
}
