//! Nodes that refuse, die, hang and come back.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{TOKEN, chat, eventually, gateway, messages, next, read, scripted, start};
use lichen_mock_node::{Gateway, MockNode, Output, Script};
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn standing(fleet: &Value, node: usize) -> &str {
    fleet["nodes"][node]["standing"].as_str().unwrap()
}

#[tokio::test]
async fn sixty_four_at_once_on_four_equal_nodes_spread_evenly_between_two_reports() {
    let mut nodes = Vec::new();
    for id in ["a", "b", "c", "d"] {
        nodes.push(scripted(id, |script| script.first_token_ms = 500).await);
    }
    let config = "[fleet]\nheartbeat_ms = 10000\n";
    let gateway = Arc::new(gateway(&nodes.iter().collect::<Vec<_>>(), config, "").await);
    let mut requests = JoinSet::new();
    for _ in 0..64 {
        let gateway = gateway.clone();
        requests.spawn(async move { gateway.chat("m").await.status });
    }
    assert!(requests.join_all().await.into_iter().all(|status| status == 200));
    let served: Vec<usize> = nodes.iter().map(|node| node.stats().requests).collect();
    assert!(served.iter().all(|count| (14..=18).contains(count)), "{served:?}");
}

#[tokio::test]
async fn a_node_that_refuses_connections_costs_no_request() {
    let (a, b) = (scripted("a", |_| {}).await, scripted("b", |_| {}).await);
    let gateway = gateway(&[&a, &b], "[fleet]\nheartbeat_ms = 60000\n", "").await;
    a.kill().await;
    for _ in 0..20 {
        assert_eq!(gateway.chat("m").await.status, 200);
    }
    assert_eq!(b.stats().requests, 20);
    let fleet = gateway.get("/admin/fleet", &[]).await.json();
    assert_eq!(standing(&fleet, 0), "down");
}

#[tokio::test]
async fn killing_a_node_under_load_fails_no_request_before_its_first_byte() {
    let slow = |script: &mut Script| script.first_token_ms = 100;
    let (a, b, c) = (scripted("a", slow).await, scripted("b", slow).await, scripted("c", slow).await);
    let gateway = Arc::new(gateway(&[&a, &b, &c], "", "").await);
    let mut requests = JoinSet::new();
    for _ in 0..48 {
        let gateway = gateway.clone();
        requests.spawn(async move { gateway.chat("m").await.status });
    }
    eventually("the node is busy", || a.stats().in_flight > 8).await;
    a.kill().await;
    let statuses = requests.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test]
async fn a_node_that_dies_in_mid_stream_is_an_error_event_of_the_dialect_and_no_quiet_end() {
    let node = scripted("a", |script| script.token_ms = 20).await;
    let gateway = gateway(&[&node], "", "").await;
    for (path, body, marks) in [
        ("/v1/chat/completions", chat("m", true), ["data: {\"error\":{", "node_lost"]),
        ("/v1/messages", messages("m", true), ["event: error\ndata: {", "api_error"]),
        (
            "/v1/responses",
            json!({"model": "m", "stream": true, "input": "hi"}),
            ["event: error\ndata: {", "response.failed"],
        ),
    ] {
        node.set(|script| script.break_after = Some(3));
        gateway.until(|fleet| standing(fleet, 0) == "up").await;
        let reply = gateway.post(path, &body).await;
        assert_eq!(reply.status, 200);
        assert!(reply.text.contains("t2 ") && !reply.text.contains("t3 "), "{}", reply.text);
        for mark in marks {
            assert!(reply.text.contains(mark), "{path}: {}", reply.text);
        }
        assert!(!reply.text.contains("[DONE]") && !reply.text.contains("message_stop"), "{}", reply.text);
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_its_end_is_an_error() {
    let raw = Output::Raw(vec!["data: {\"a\":1}\n\n".into(), "data: {\"cut".into()]);
    let node = scripted("a", |script| script.output = Some(raw)).await;
    let gateway = gateway(&[&node], "", "").await;
    let reply = gateway.post("/v1/chat/completions", &chat("m", true)).await;
    assert!(reply.text.contains("node_lost"), "{}", reply.text);
}

#[tokio::test]
async fn a_killed_node_in_mid_stream_is_told_and_another_one_serves_the_next_request() {
    let slow = |script: &mut Script| (script.token_ms, script.tokens) = (20, 1000);
    let (a, b) = (scripted("a", slow).await, scripted("b", |_| {}).await);
    b.set(|script| script.draining = true);
    let gateway =
        gateway(&[&a], &format!("[fleet]\nheartbeat_ms = 50\njoin_token = \"{TOKEN}\"\n"), "").await;
    let mut stream = gateway.open("/v1/messages", &[], messages("m", true).to_string()).await;
    assert!(next(stream.body_mut()).await.contains("message_start"));
    a.kill().await;
    let rest = read(stream).await.text;
    assert!(rest.contains("event: error"), "{rest}");
    b.set(|script| script.draining = false);
    b.join(Gateway { url: gateway.url.clone(), token: TOKEN.into(), interval: Duration::from_millis(50) });
    gateway.until(|fleet| fleet["nodes"].as_array().unwrap().len() == 2).await;
    assert_eq!(gateway.chat("m").await.status, 200);
}

#[tokio::test]
async fn refusals_of_bad_requests_take_no_node_down() {
    let node = scripted("a", |script| (script.fail_status, script.fail_count) = (Some(400), Some(50))).await;
    let gateway = gateway(&[&node], "", "").await;
    for _ in 0..50 {
        assert_eq!(gateway.chat("m").await.status, 400);
    }
    assert_eq!(gateway.chat("m").await.status, 200);
    assert_eq!(node.stats().requests, 51, "each was sent once");
}

#[tokio::test]
async fn an_overloaded_node_is_passed_over_and_the_longest_retry_after_is_told_if_all_are() {
    let fails = |seconds| {
        move |script: &mut Script| (script.fail_status, script.retry_after) = (Some(429), Some(seconds))
    };
    let (a, b) = (scripted("a", fails(7)).await, scripted("b", fails(3)).await);
    let gateway = gateway(&[&a, &b], "", "").await;
    for stream in [false, true] {
        for (path, body) in
            [("/v1/chat/completions", chat("m", stream)), ("/v1/messages", messages("m", stream))]
        {
            let reply = gateway.post(path, &body).await;
            assert_eq!((reply.status, reply.header("retry-after")), (429, "7"), "{path} {stream}");
        }
    }
    b.set(|script| script.fail_status = None);
    assert_eq!(gateway.chat("m").await.status, 200);
}

#[tokio::test]
async fn an_overloaded_node_that_names_no_time_is_given_one() {
    let node = scripted("a", |script| script.fail_status = Some(429)).await;
    let gateway = gateway(&[&node], "", "").await;
    assert_eq!(gateway.chat("m").await.header("retry-after"), "1");
}

#[tokio::test]
async fn retries_of_overload_are_bounded_by_their_share() {
    let fails = |script: &mut Script| script.fail_status = Some(503);
    let (a, b) = (scripted("a", fails).await, scripted("b", fails).await);
    let gateway = gateway(&[&a, &b], "", "").await;
    for _ in 0..200 {
        assert_eq!(gateway.chat("m").await.status, 503);
    }
    let sent = a.stats().requests + b.stats().requests;
    // Ten in reserve and a tenth of the requests.
    assert!((200 + 20..=200 + 31).contains(&sent), "{sent}");
}

#[tokio::test]
async fn without_a_node_a_known_model_is_unavailable_for_now_and_comes_back_with_its_node() {
    let node = scripted("a", |_| {}).await;
    let address = node.address();
    let gateway = gateway(&[&node], "", "").await;
    node.kill().await;
    for (path, body, status) in
        [("/v1/chat/completions", chat("m", false), 503), ("/v1/messages", messages("m", false), 529)]
    {
        let reply = gateway.post(path, &body).await;
        assert_eq!(reply.status, status, "{}", reply.text);
        assert!(!reply.header("retry-after").is_empty());
    }
    let models = vec![common::model("m", lichen_contract::ModelState::Ready, 1)];
    let _node = MockNode::start_at(address, "a", 1 << 40, models, Script::default()).await.unwrap();
    gateway.until(|fleet| standing(fleet, 0) == "up").await;
    assert_eq!(gateway.chat("m").await.status, 200);
}

#[tokio::test]
async fn a_node_that_hangs_falls_silent_and_its_requests_go_elsewhere() {
    let (a, b) = (scripted("a", |script| script.hang = true).await, scripted("b", |_| {}).await);
    a.set(|script| script.hang = false);
    let gateway = Arc::new(gateway(&[&a, &b], "", "").await);
    a.set(|script| script.hang = true);
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let gateway = gateway.clone();
        requests.spawn(async move { gateway.chat("m").await.status });
    }
    assert!(requests.join_all().await.into_iter().all(|status| status == 200));
    a.set(|script| script.hang = false);
    gateway.until(|fleet| standing(fleet, 0) == "up").await;
}

#[tokio::test]
async fn a_draining_node_gets_no_new_requests() {
    let (a, b) = (scripted("a", |_| {}).await, scripted("b", |_| {}).await);
    let gateway = gateway(&[&a, &b], "", "").await;
    a.set(|script| script.draining = true);
    gateway.until(|fleet| standing(fleet, 0) == "draining").await;
    for _ in 0..10 {
        assert_eq!(gateway.chat("m").await.status, 200);
    }
    assert_eq!((a.stats().requests, b.stats().requests), (0, 10));
}

#[tokio::test]
async fn ten_nodes_that_hang_do_not_keep_a_healthy_one_from_being_seen() {
    let mut dead = Vec::new();
    for index in 0..10 {
        dead.push(scripted(&format!("dead{index}"), |script| script.hang = true).await);
    }
    let alive = scripted("alive", |_| {}).await;
    let nodes: String = dead
        .iter()
        .chain([&alive])
        .enumerate()
        .map(|(index, node)| format!("[[nodes]]\nname = \"n{index:02}\"\nendpoint = \"{}\"\n", node.url()))
        .collect();
    let gateway = start(&format!("[fleet]\nheartbeat_ms = 500\nmissed_heartbeats = 60\n{nodes}"), "").await;
    // A look at one of the hanging nodes takes 30 s; this is over before the first of them is.
    gateway.until(|fleet| standing(fleet, 10) == "up").await;
    assert_eq!(gateway.chat("m").await.status, 200);
}

#[tokio::test]
async fn a_node_joins_with_the_token_only() {
    let node = scripted("a", |_| {}).await;
    let config = format!("[fleet]\nheartbeat_ms = 50\njoin_token = \"{TOKEN}\"\n");
    let gateway = start(&config, "").await;
    let report = serde_json::to_string(&node.report()).unwrap();
    for token in ["Bearer wrong", "Bearer ", TOKEN] {
        let headers = [("authorization", token), ("content-type", "application/json")];
        assert_eq!(
            gateway.post_with("/fleet/heartbeat", &headers, report.clone()).await.status,
            401,
            "{token}"
        );
    }
    assert_eq!(gateway.get("/admin/fleet", &[]).await.json()["nodes"], json!([]));
    node.join(Gateway { url: gateway.url.clone(), token: TOKEN.into(), interval: Duration::from_millis(50) });
    gateway.until(|fleet| fleet["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1)).await;
    assert_eq!(gateway.chat("m").await.status, 200);
    let closed = start("", "").await;
    let headers = [("authorization", "Bearer "), ("content-type", "application/json")];
    assert_eq!(
        closed.post_with("/fleet/heartbeat", &headers, report).await.status,
        401,
        "no token, no joining"
    );
}
