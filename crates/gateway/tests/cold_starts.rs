//! Models that are loaded because somebody asks for them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{TOKEN, chat, eventually, gateway, holding, messages, model, next, read, start};
use lichen_contract::{ModelState, ModelStatus};
use lichen_mock_node::{Gateway, MockNode, Script};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const COLD: &str = "[[models]]\nid = \"cold\"\nmemory_mb = 4096\n";

fn loading(load_ms: u64) -> Script {
    Script { load_ms, ..Script::default() }
}

fn absent(id: &str) -> ModelStatus {
    model(id, ModelState::Absent, 4)
}

/// A node of 8 GiB that knows `cold`, which takes 4.
async fn cold_node(id: &str, load_ms: u64) -> MockNode {
    holding(id, 8, vec![absent("cold")], loading(load_ms)).await
}

fn loads(nodes: &[&MockNode], id: &str) -> usize {
    nodes.iter().map(|node| node.stats().loads.get(id).copied().unwrap_or(0)).sum()
}

#[tokio::test]
async fn sixteen_first_requests_start_one_load_and_all_are_answered() {
    let (a, b) = (cold_node("a", 300).await, cold_node("b", 300).await);
    let gateway = Arc::new(gateway(&[&a, &b], "", COLD).await);
    let mut requests = JoinSet::new();
    for _ in 0..16 {
        let gateway = gateway.clone();
        requests.spawn(async move { gateway.chat("cold").await.status });
    }
    assert!(requests.join_all().await.into_iter().all(|status| status == 200));
    assert_eq!(loads(&[&a, &b], "cold"), 1);
}

#[tokio::test]
async fn two_gateways_and_twenty_requests_start_one_load() {
    let node = cold_node("a", 500).await;
    let gateways = [Arc::new(gateway(&[&node], "", COLD).await), Arc::new(gateway(&[&node], "", COLD).await)];
    let mut requests = JoinSet::new();
    for index in 0..20 {
        let gateway = gateways[index % 2].clone();
        requests.spawn(async move { gateway.chat("cold").await.status });
    }
    assert!(requests.join_all().await.into_iter().all(|status| status == 200));
    assert_eq!(loads(&[&node], "cold"), 1);
}

#[tokio::test]
async fn a_load_goes_on_when_all_who_wait_have_gone() {
    let node = cold_node("a", 400).await;
    let gateway = gateway(&[&node], "", COLD).await;
    let stream = gateway.open("/v1/chat/completions", &[], chat("cold", true).to_string()).await;
    assert_eq!(loads(&[&node], "cold"), 1);
    drop(stream);
    let ready =
        |fleet: &Value| fleet["nodes"][0]["models"][0]["state"] == "ready" && fleet["loads"] == json!([]);
    gateway.until(ready).await;
    assert_eq!(gateway.chat("cold").await.status, 200);
    assert_eq!(loads(&[&node], "cold"), 1);
}

#[tokio::test]
async fn a_stream_has_its_head_and_a_sign_of_life_while_the_model_loads() {
    for (path, body, end) in [
        ("/v1/chat/completions", chat("cold", true), "data: [DONE]"),
        ("/v1/messages", messages("cold", true), "event: message_stop"),
    ] {
        let node = cold_node("a", 2500).await;
        let gateway = gateway(&[&node], "[gateway]\nkeep_alive_s = 1\n", COLD).await;
        let mut stream = gateway.open(path, &[], body.to_string()).await;
        assert_eq!(stream.status(), 200);
        assert!(stream.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        assert_eq!(next(stream.body_mut()).await, ": ping\n\n");
        assert_eq!(node.stats().requests, 0, "it still loads");
        assert_eq!(next(stream.body_mut()).await, ": ping\n\n", "and again");
        let rest = read(stream).await.text;
        assert!(rest.contains("t15 ") && rest.contains(end), "{rest}");
    }
}

#[tokio::test]
async fn past_the_wait_budget_progress_is_told_and_the_load_goes_on() {
    let node = cold_node("a", 3000).await;
    let gateway = gateway(&[&node], "[gateway]\nwait_budget_s = 1\n", COLD).await;
    let reply = gateway.chat("cold").await;
    assert_eq!(reply.status, 503, "{}", reply.text);
    let error = &reply.json()["error"];
    assert_eq!((&error["type"], &error["details"]["state"]), (&json!("model_not_ready"), &json!("loading")));
    assert!(error["details"]["progress"].as_f64().unwrap() > 0.1);
    assert!(reply.header("retry-after").parse::<u64>().unwrap() >= 1);
    let streamed = gateway.post("/v1/messages", &messages("cold", true)).await;
    assert_eq!(streamed.status, 200);
    assert!(
        streamed.text.contains("event: error") && streamed.text.contains("overloaded_error"),
        "{}",
        streamed.text
    );
    gateway.until(|fleet| fleet["nodes"][0]["models"][0]["state"] == "ready").await;
    assert_eq!((gateway.chat("cold").await.status, loads(&[&node], "cold")), (200, 1));
}

#[tokio::test]
async fn a_load_that_fails_is_told_with_its_cause_and_when_to_come_back() {
    let node = cold_node("a", 0).await;
    node.set(|script| script.load_failure = Some("the file is cut short".into()));
    let gateway = gateway(&[&node], "", COLD).await;
    for stream in [false, true] {
        let reply = gateway.post("/v1/chat/completions", &chat("cold", stream)).await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, "5"), "{}", reply.text);
        assert!(reply.text.contains("the file is cut short"), "{}", reply.text);
    }
    node.set(|script| script.load_failure = None);
    assert_eq!(gateway.chat("cold").await.status, 200);
}

#[tokio::test]
async fn a_load_that_fails_on_one_node_is_done_by_another() {
    let (a, b) = (cold_node("a", 0).await, cold_node("b", 0).await);
    a.set(|script| script.load_failure = Some("no disk".into()));
    let gateway = gateway(&[&a, &b], "", COLD).await;
    assert_eq!(gateway.chat("cold").await.status, 200);
    assert_eq!(loads(&[&b], "cold"), 1);
}

#[tokio::test]
async fn what_never_fits_is_refused_with_numbers_and_evicts_nothing() {
    let node = holding("a", 8, vec![absent("huge"), model("m", ModelState::Ready, 4)], loading(0)).await;
    let gateway = gateway(&[&node], "", "[[models]]\nid = \"huge\"\nmemory_mb = 102400\n").await;
    let reply = gateway.chat("huge").await;
    assert_eq!((reply.status, reply.json()["error"]["type"].clone()), (400, json!("memory_impossible")));
    assert_eq!(reply.json()["error"]["details"]["limit_bytes"], 8 * common::GIB);
    assert_eq!((node.stats().unloads.len(), loads(&[&node], "huge")), (0, 0));
}

#[tokio::test]
async fn a_pinned_model_stays_and_is_named() {
    let pinned = ModelStatus { pinned: true, ..model("dear", ModelState::Ready, 8) };
    let node = holding("a", 8, vec![absent("cold"), pinned], loading(0)).await;
    let gateway = gateway(&[&node], "", COLD).await;
    let reply = gateway.chat("cold").await;
    assert_eq!((reply.status, reply.json()["error"]["type"].clone()), (409, json!("model_pinned_out")));
    assert_eq!(reply.json()["error"]["details"]["pinned_out_by"], json!(["dear"]));
    assert_eq!(gateway.chat("dear").await.status, 200);
}

#[tokio::test]
async fn a_model_goes_for_another_only_after_its_running_stream() {
    let script = Script { token_ms: 10, tokens: 100, ..loading(0) };
    let node = holding("a", 4, vec![absent("cold"), model("m", ModelState::Ready, 4)], script).await;
    let gateway = Arc::new(gateway(&[&node], "", COLD).await);
    let mut stream = gateway.open("/v1/chat/completions", &[], chat("m", true).to_string()).await;
    next(stream.body_mut()).await;
    let other = gateway.clone();
    let cold = tokio::spawn(async move { other.chat("cold").await.status });
    let whole = read(stream).await.text;
    assert!(whole.contains("t99 ") && whole.contains("[DONE]"), "nothing was cut");
    assert_eq!(cold.await.unwrap(), 200);
    assert_eq!(node.stats().unloads, ["m"]);
}

#[tokio::test]
async fn three_cold_models_at_once_on_a_node_for_one_are_all_answered() {
    let known = vec![absent("x"), absent("y"), absent("z"), model("m", ModelState::Ready, 4)];
    let node = holding("a", 4, known, loading(50)).await;
    let models: String =
        ["x", "y", "z"].map(|id| format!("[[models]]\nid = \"{id}\"\nmemory_mb = 4096\n")).concat();
    let gateway = Arc::new(gateway(&[&node], "", &models).await);
    let mut requests = JoinSet::new();
    for id in ["x", "y", "z"] {
        let gateway = gateway.clone();
        requests.spawn(async move { gateway.chat(id).await.status });
    }
    let statuses = requests.join_all().await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[tokio::test]
async fn a_load_holds_up_no_request_for_another_model() {
    let node =
        holding("a", 8, vec![absent("cold"), model("m", ModelState::Ready, 1)], loading(600_000)).await;
    let gateway = gateway(&[&node], "", COLD).await;
    let waiting = gateway.open("/v1/chat/completions", &[], chat("cold", true).to_string()).await;
    for _ in 0..50 {
        assert_eq!(gateway.chat("m").await.status, 200);
    }
    assert_eq!(waiting.status(), 200);
    assert_eq!(node.stats().requests, 50);
}

#[tokio::test]
async fn a_pinned_model_is_loaded_where_it_belongs_and_pinned_there() {
    let (a, b) = (cold_node("a", 0).await, cold_node("b", 0).await);
    let models = "[[models]]\nid = \"cold\"\nmemory_mb = 4096\npinned_on = [\"n1\"]\n";
    let gateway = gateway(&[&a, &b], "", models).await;
    assert_eq!(gateway.chat("cold").await.status, 200);
    assert_eq!((loads(&[&a], "cold"), loads(&[&b], "cold")), (0, 1));
    assert!(b.report().models[0].pinned);
}

#[tokio::test]
async fn a_node_that_dies_while_it_loads_is_replaced_by_another() {
    let (a, b) = (cold_node("a", 600_000).await, cold_node("b", 0).await);
    b.set(|script| script.draining = true);
    let gateway = Arc::new(gateway_of_both(&a, &b).await);
    let asking = gateway.clone();
    let request = tokio::spawn(async move { asking.chat("cold").await.status });
    eventually("the first node loads", || loads(&[&a], "cold") == 1).await;
    b.set(|script| script.draining = false);
    a.kill().await;
    assert_eq!(request.await.unwrap(), 200);
}

/// Both have joined; the second may be draining.
async fn gateway_of_both(a: &MockNode, b: &MockNode) -> common::TestGateway {
    let config = format!("[fleet]\nheartbeat_ms = 50\njoin_token = \"{TOKEN}\"\n");
    let gateway = start(&config, COLD).await;
    for node in [a, b] {
        let interval = Duration::from_millis(50);
        node.join(Gateway { url: gateway.url.clone(), token: TOKEN.into(), interval });
    }
    gateway.until(|fleet| fleet["nodes"].as_array().unwrap().len() == 2).await;
    gateway
}
