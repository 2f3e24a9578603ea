//! Streams of nodes that think for long.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{chat, gateway, messages, next, read, scripted};
use lichen_mock_node::Output;

const SIGNS: &str = "[gateway]\nkeep_alive_s = 1\n";

#[tokio::test]
async fn a_silent_node_does_not_make_a_silent_stream() {
    for late_head in [false, true] {
        let node =
            scripted("a", |script| (script.first_token_ms, script.late_head) = (2500, late_head)).await;
        let gateway = gateway(&[&node], SIGNS, "").await;
        let chat = gateway.post("/v1/chat/completions", &chat("m", true)).await.text;
        assert!(chat.matches(": ping\n\n").count() >= 2, "{chat}");
        assert!(chat.contains("t15 ") && chat.ends_with("data: [DONE]\n\n"), "{chat}");
        let messages = gateway.post("/v1/messages", &messages("m", true)).await.text;
        assert!(messages.matches("ping").count() >= 2, "{messages}");
        let first = messages.lines().find(|line| line.starts_with("event:")).unwrap();
        assert_eq!(first, "event: message_start", "no named event comes before it");
        let kind = if late_head { ": ping\n\n" } else { "event: ping\ndata: {\"type\":\"ping\"}\n\n" };
        assert!(messages.contains(kind), "{messages}");
    }
}

#[tokio::test]
async fn a_sign_of_life_never_cuts_an_event() {
    let parts = ["data: {\"a\":", "1}\n\n", "data: [DONE]\n\n"].map(str::to_owned);
    let node = scripted("a", |script| {
        (script.token_ms, script.output) = (1500, Some(Output::Raw(parts.to_vec())));
    })
    .await;
    let gateway = gateway(&[&node], SIGNS, "").await;
    let text = gateway.post("/v1/chat/completions", &chat("m", true)).await.text;
    assert!(text.contains(": ping\n\n"), "{text}");
    assert_eq!(text.replace(": ping\n\n", ""), parts.concat());
}

#[tokio::test]
async fn a_refusal_after_the_head_has_gone_out_is_an_event_of_the_dialect() {
    let node = scripted("a", |script| script.hang = true).await;
    node.set(|script| script.hang = false);
    let gateway =
        gateway(&[&node], &format!("{SIGNS}[fleet]\nheartbeat_ms = 50\nmissed_heartbeats = 100\n"), "").await;
    node.set(|script| script.hang = true);
    let mut stream = gateway.open("/v1/messages", &[], messages("m", true).to_string()).await;
    assert_eq!(next(stream.body_mut()).await, ": ping\n\n");
    node.kill().await;
    let rest = read(stream).await.text;
    assert!(rest.contains("event: error\ndata: {") && rest.contains("overloaded_error"), "{rest}");
}
