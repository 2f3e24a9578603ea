//! What goes through the gateway, and what stays behind.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{chat, gateway, messages, scripted};
use lichen_mock_node::{MockNode, Output};
use serde_json::json;

const ROUTES: [&str; 6] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
];

#[tokio::test]
async fn every_route_reaches_a_node_with_one_request_and_no_other() {
    let node = MockNode::start("a", &["m"]).await.unwrap();
    let gateway = gateway(&[&node], "[fleet]\nheartbeat_ms = 60000\n", "").await;
    let before = node.stats().contract_requests;
    for path in ROUTES {
        let body = json!({"model": "m", "prompt": "a", "input": "a", "messages": [], "max_tokens": 5});
        let reply = gateway.post(&format!("{path}?beta=true"), &body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        let seen = node.stats().seen.pop().unwrap();
        assert_eq!((seen.path, seen.body), (format!("{path}?beta=true"), body.to_string()));
    }
    assert_eq!((node.stats().requests, node.stats().contract_requests), (ROUTES.len(), before));
}

#[tokio::test]
async fn bytes_pass_untouched_and_only_the_name_of_an_alias_is_replaced() {
    let odd = "{ \"odd\" :1e2,\n\t\"x\":\"\\u00e9\"}";
    let node = scripted("a", |script| script.output = Some(Output::Raw(vec![odd.into()]))).await;
    let models = "[[models]]\nid = \"m\"\naliases = [\"chat\", \"claude-*\"]\n";
    let gateway = gateway(&[&node], "", models).await;
    let ask = |name: &str| {
        format!("{{\"temperature\": 1.0,  \"model\" :\"{name}\", \"messages\":[{{\"model\":\"chat\"}}]}}")
    };
    for name in ["m", "chat", "claude-3-haiku"] {
        let reply = gateway.post_with("/v1/chat/completions", &[], ask(name)).await;
        assert_eq!((reply.status, reply.text.as_str()), (200, odd));
        assert_eq!(node.stats().seen.pop().unwrap().body, ask("m"));
    }
}

#[tokio::test]
async fn events_pass_untouched() {
    let events = ["data: {\"a\":1}\r\n\r\n", ": note\n\nda", "ta: 2\n\n", "data: [DONE]\n\n"];
    let raw = Output::Raw(events.iter().map(|event| (*event).to_owned()).collect());
    let node = scripted("a", |script| script.output = Some(raw)).await;
    let gateway = gateway(&[&node], "", "").await;
    let reply = gateway.post("/v1/chat/completions", &chat("m", true)).await;
    assert_eq!((reply.status, reply.text), (200, events.concat()));
    assert!(reply.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    assert_eq!(reply.headers["x-accel-buffering"], "no");
}

#[tokio::test]
async fn a_single_event_of_five_megabytes_passes() {
    let event = format!("data: \"{}\"\r\n\r\ndata: [DONE]\r\n\r\n", "x".repeat(5 << 20));
    let node = scripted("a", |script| script.output = Some(Output::Raw(vec![event.clone()]))).await;
    let gateway = gateway(&[&node], "", "").await;
    let reply = gateway.post("/v1/chat/completions", &chat("m", true)).await;
    assert!(reply.text == event);
}

#[tokio::test]
async fn credentials_and_hop_by_hop_headers_stay_behind_and_the_node_s_own_key_is_shown() {
    let node = MockNode::start("a", &["m"]).await.unwrap();
    let config = format!(
        "[fleet]\nheartbeat_ms = 50\n[[nodes]]\nname = \"a\"\nendpoint = \"{}\"\napi_key = \"for-nodes\"\n",
        node.url()
    );
    let gateway = common::start(&config, "").await;
    gateway.until(|fleet| fleet["nodes"][0]["standing"] == "up").await;
    let headers = [
        ("authorization", "Bearer secret"),
        ("x-api-key", "secret"),
        ("cookie", "secret"),
        ("connection", "x-private"),
        ("x-private", "secret"),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "never-heard-of-2099"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    let reply = gateway.post_with("/v1/messages", &headers, messages("m", false).to_string()).await;
    assert_eq!(reply.status, 200);
    let seen = node.stats().seen.pop().unwrap();
    assert!(!format!("{:?}", seen.headers).contains("secret"), "{:?}", seen.headers);
    assert_eq!(seen.headers["authorization"], "Bearer for-nodes");
    for kept in ["anthropic-version", "anthropic-beta", "traceparent"] {
        assert!(seen.headers.contains_key(kept), "{kept}");
    }
}

#[tokio::test]
async fn client_gateway_and_node_know_a_request_by_one_id() {
    let node = MockNode::start("a", &["m"]).await.unwrap();
    let gateway = gateway(&[&node], "", "").await;
    let reply = gateway.chat("m").await;
    let id = reply.header("x-request-id").to_owned();
    assert!(id.starts_with("req_"));
    assert_eq!(reply.header("request-id"), id);
    assert_eq!(node.stats().seen.pop().unwrap().headers["x-request-id"], id);
    let own = gateway.post_with("/v1/messages", &[("x-request-id", "mine")], "{}").await;
    assert_eq!((own.status, own.header("request-id")), (400, "mine"));
    assert_eq!(own.json()["request_id"], "mine");
}

#[tokio::test]
async fn twelve_megabytes_pass_on_every_route_and_more_than_the_limit_is_refused_in_the_dialect() {
    let node = MockNode::start("a", &["m"]).await.unwrap();
    let gateway = gateway(&[&node], "", "").await;
    let body = |bytes: usize| format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "x".repeat(bytes));
    for path in ROUTES {
        let served = gateway.post_with(path, &[], body(12 << 20)).await;
        assert_eq!(served.status, 200, "{path}");
        let refused = gateway.post_with(path, &[], body(33 << 20)).await;
        assert_eq!(refused.status, 413, "{path}");
        let kind = &refused.json()["error"]["type"];
        assert_eq!(kind, "request_too_large", "{path}");
        assert_eq!(refused.json()["type"] == "error", path.starts_with("/v1/messages"));
    }
}

#[tokio::test]
async fn what_can_t_be_routed_is_refused_in_the_dialect() {
    let node = MockNode::start("a", &["m"]).await.unwrap();
    let gateway = gateway(&[&node], "", "").await;
    let unknown = gateway.chat("nope").await;
    assert_eq!((unknown.status, unknown.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    assert_eq!(unknown.json()["error"]["details"]["loaded"], json!(["m"]));
    let anthropic = gateway.post("/v1/messages", &messages("nope", true)).await;
    assert_eq!(
        (anthropic.status, anthropic.json()["error"]["type"].clone()),
        (404, json!("not_found_error"))
    );
    for body in ["{", "[]", "{\"messages\": []}", "{\"model\": 3}"] {
        assert_eq!(gateway.post_with("/v1/chat/completions", &[], body).await.status, 400, "{body}");
    }
    assert_eq!(gateway.get("/v1/nothing", &[]).await.status, 404);
    assert_eq!(node.stats().requests, 0);
}

#[tokio::test]
async fn models_of_the_fleet_are_listed_in_the_shape_that_the_caller_reads() {
    let (a, b) =
        (MockNode::start("a", &["m", "x/y"]).await.unwrap(), MockNode::start("b", &["m"]).await.unwrap());
    let models = "[[models]]\nid = \"cold\"\naliases = [\"claude-local-cold\", \"gpt-*\"]\n";
    let gateway = gateway(&[&a, &b], "", models).await;
    let openai = gateway.get("/v1/models", &[]).await.json();
    let ids = |list: &serde_json::Value| {
        list["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&openai), ["claude-local-cold", "cold", "m", "x/y"]);
    assert_eq!((&openai["object"], &openai["data"][2]["object"]), (&json!("list"), &json!("model")));
    assert_eq!((&openai["data"][2]["replicas"], &openai["data"][1]["state"]), (&json!(2), &json!("absent")));
    let anthropic = gateway.get("/v1/models?limit=1000", &[("anthropic-version", "2023-06-01")]).await.json();
    assert_eq!(ids(&anthropic), ids(&openai));
    assert_eq!(
        (&anthropic["has_more"], &anthropic["first_id"]),
        (&json!(false), &json!("claude-local-cold"))
    );
    assert!(anthropic.get("object").is_none() && anthropic["data"][0]["type"] == "model");
    let one = gateway.get("/v1/models/x/y", &[]).await;
    assert_eq!((one.status, one.json()["id"].clone()), (200, json!("x/y")));
    assert_eq!(gateway.get("/v1/models/none", &[]).await.status, 404);
}

#[tokio::test]
async fn two_requests_that_differ_only_in_their_nonce_go_to_one_node() {
    let nodes = [
        MockNode::start("a", &["m"]).await.unwrap(),
        MockNode::start("b", &["m"]).await.unwrap(),
        MockNode::start("c", &["m"]).await.unwrap(),
    ];
    let gateway = gateway(&nodes.iter().collect::<Vec<_>>(), "", "").await;
    for turn in 0..12 {
        let header = format!("x-anthropic-billing-header: cc_version=2.1; cch={turn:05x};\n");
        let text = "You are a careful engineer. ".repeat(500);
        let body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": format!("{turn}")}],
            "system": [{"type": "text", "text": header}, {"type": "text", "text": text}]});
        assert_eq!(gateway.post("/v1/messages", &body).await.status, 200);
    }
    let served: Vec<usize> = nodes.iter().map(|node| node.stats().requests).collect();
    assert!(served.contains(&12), "{served:?}");
}
