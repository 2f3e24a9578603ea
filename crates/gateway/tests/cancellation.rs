//! A client that goes takes its request with it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{chat, eventually, gateway, messages, scripted};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn send(url: &str, path: &str, body: &Value) -> TcpStream {
    let address = url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn a_client_that_goes_during_a_silent_prefill_frees_the_node_in_both_modes_and_dialects() {
    for late_head in [false, true] {
        let node =
            scripted("a", |script| (script.first_token_ms, script.late_head) = (600_000, late_head)).await;
        let gateway = gateway(&[&node], "", "").await;
        let mut canceled = 0;
        for stream in [false, true] {
            for (path, body) in
                [("/v1/chat/completions", chat("m", stream)), ("/v1/messages", messages("m", stream))]
            {
                let socket = send(&gateway.url, path, &body).await;
                eventually("the node has it", || node.stats().in_flight == 1).await;
                drop(socket);
                canceled += 1;
                eventually("the node is told", || node.stats().canceled == canceled).await;
                assert_eq!(node.stats().in_flight, 0);
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_in_mid_stream_frees_the_node() {
    let node = scripted("a", |script| (script.token_ms, script.tokens) = (5, 10_000)).await;
    let gateway = gateway(&[&node], "", "").await;
    let mut socket = send(&gateway.url, "/v1/chat/completions", &chat("m", true)).await;
    let mut some = [0; 512];
    socket.read_exact(&mut some).await.unwrap();
    drop(socket);
    eventually("the node is told", || node.stats().canceled == 1 && node.stats().in_flight == 0).await;
}

#[tokio::test]
async fn hundreds_of_clients_that_go_leave_nothing_behind() {
    let node = scripted("a", |script| script.first_token_ms = 600_000).await;
    let gateway = gateway(&[&node], "", "").await;
    for round in 0..20 {
        let mut sockets = Vec::new();
        for index in 0..20 {
            sockets.push(send(&gateway.url, "/v1/chat/completions", &chat("m", index % 2 == 0)).await);
        }
        eventually("the node has them", || node.stats().in_flight == 20).await;
        drop(sockets);
        eventually("the node is told", || node.stats().canceled == 20 * (round + 1)).await;
    }
    let idle = |fleet: &Value| {
        let model = &fleet["nodes"][0]["models"][0];
        model["in_flight"] == 0 && model["in_flight_here"] == 0
    };
    gateway.until(idle).await;
    node.set(|script| script.first_token_ms = 0);
    assert_eq!(gateway.chat("m").await.status, 200);
}
