//! The program under test and the models of the oracle.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by several test programs")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

/// A tiny model.
pub fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data").join(name)
}

/// The program with an empty environment of its own, a cache that is not there, and nothing from earlier runs.
pub fn lichen() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lichen"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LICHEN_") {
            command.env_remove(name);
        }
    }
    command.env("LICHEN_HOME", std::env::temp_dir().join("lichen-cli-tests-empty"));
    command.env("LICHEN_SPILL_BUDGET", "0");
    command
}

/// Reads the address that a server says it listens on; `None` if it ends without.
pub fn address(server: &mut Child) -> Option<String> {
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find_map(|line| Some(line.strip_prefix("listening on http://")?.to_owned()))
}

/// One request without a client's library in between: head and body of the response.
pub fn exchange(address: &str, method: &str, path: &str, body: &str) -> io::Result<(String, String)> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(300)))?;
    let length = body.len();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The status in the head of a response.
pub fn status(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Runs it to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    lichen().args(args).stdin(std::process::Stdio::null()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
