//! What happens over the life of a connection: silence, hang-up, shutdown.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::{Act, Scripted, Server};
use lichen_generate::FinishReason;
use lichen_server::Settings;
use serde_json::json;
use tokio::io::AsyncReadExt;

const CHAT: &str = "/v1/chat/completions";

fn body(stream: bool) -> String {
    json!({"stream": stream, "messages": [{"role": "user", "content": "hi"}]}).to_string()
}

#[tokio::test]
async fn a_hang_up_cancels_in_both_modes() {
    for stream in [false, true] {
        let engine = Scripted::new([Act::Forever]);
        let server = Server::start(&engine).await;
        let socket = server.open("POST", CHAT, "", &body(stream)).await;
        assert!(engine.was_submitted().await);
        drop(socket);
        assert!(engine.was_cancelled().await, "stream: {stream}");
    }
}

#[tokio::test]
async fn headers_and_the_opening_chunk_come_before_the_prompt_is_done() {
    let engine = Scripted::new([Act::Forever]);
    let server = Server::start(&engine).await;
    let mut socket = server.open("POST", CHAT, "", &body(true)).await;
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains("\"role\":\"assistant\"") {
        let read =
            tokio::time::timeout(Duration::from_secs(5), socket.read(&mut buffer)).await.unwrap().unwrap();
        assert!(read > 0, "closed after: {seen}");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(seen.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let silence = Act::Sleep(Duration::from_millis(400));
    let engine = Scripted::new([silence, Act::Say("a"), Act::Finish(FinishReason::Stop)]);
    let settings = Settings { keep_alive: Duration::from_millis(50), ..Settings::default() };
    let server = Server::with(&engine, settings, &["m"]).await;
    let reply = server.ask("POST", CHAT, "", &body(true)).await;
    let pings = reply.body.lines().filter(|line| *line == ": ping").count();
    assert!((2..=8).contains(&pings), "{pings} comments");
    assert_eq!(reply.events().last(), Some(&"[DONE]"));
}

#[tokio::test]
async fn health_answers_while_answers_run() {
    let engine = Scripted::new([Act::Forever]);
    let server = Server::start(&engine).await;
    let mut open = Vec::new();
    for _ in 0..16 {
        open.push(server.open("POST", CHAT, "", &body(true)).await);
    }
    assert!(engine.was_submitted().await);
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn shutdown_lets_running_answers_end() {
    let pause = Act::Sleep(Duration::from_millis(300));
    let engine = Scripted::new([pause, Act::Say("late"), Act::Finish(FinishReason::Stop)]);
    let mut server = Server::start(&engine).await;
    let mut socket = server.open("POST", CHAT, "", &body(true)).await;
    assert!(engine.was_submitted().await);
    server.stop();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("late") && answer.contains("[DONE]"), "{answer}");
    server.done.await.unwrap().unwrap();
}

#[tokio::test]
async fn shutdown_does_not_wait_forever() {
    let engine = Scripted::new([Act::Forever]);
    let settings = Settings { drain: Duration::from_millis(100), ..Settings::default() };
    let mut server = Server::with(&engine, settings, &["m"]).await;
    let _socket = server.open("POST", CHAT, "", &body(true)).await;
    assert!(engine.was_submitted().await);
    let start = Instant::now();
    server.stop();
    server.done.await.unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
}
