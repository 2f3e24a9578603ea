//! A gateway on the loopback over mock nodes, and a client.

#![allow(unreachable_pub, dead_code, reason = "each test file uses a part of it")]

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lichen_contract::{ModelState, ModelStatus};
use lichen_gateway::Gateway;
use lichen_gateway::catalogue::Catalogue;
use lichen_gateway::config::Config;
use lichen_mock_node::{MockNode, Script};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

pub const GIB: u64 = 1 << 30;
pub const TOKEN: &str = "join";
/// Longest wait for something that must happen; it fails the test, it measures nothing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that runs until the test ends.
pub struct TestGateway {
    pub url: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer, read to its end.
pub struct Reply {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Starts a gateway with these configured nodes, and waits until it has heard of each that can be reached.
pub async fn gateway(nodes: &[&MockNode], config: &str, models: &str) -> TestGateway {
    let listed = |(index, node): (usize, &&MockNode)| {
        format!("[[nodes]]\nname = \"n{index}\"\nendpoint = \"{}\"\n", node.url())
    };
    let nodes_text: String = nodes.iter().enumerate().map(listed).collect();
    let fleet =
        if config.contains("[fleet]") { "" } else { "[fleet]\nheartbeat_ms = 50\nmissed_heartbeats = 10\n" };
    let gateway = start(&format!("{config}\n{fleet}{nodes_text}"), models).await;
    gateway
        .until(|fleet| fleet["nodes"].as_array().unwrap().iter().all(|node| node["standing"] == "up"))
        .await;
    gateway
}

/// Starts a gateway and waits for nothing.
pub async fn start(config: &str, models: &str) -> TestGateway {
    let config = Config::parse(config, "gateway.toml").unwrap();
    let catalogue = Catalogue::parse(models, "models.toml").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Gateway::new(config, catalogue);
    tokio::spawn(lichen_gateway::serve(listener, gateway, std::future::pending()));
    TestGateway { url, client: Client::builder(TokioExecutor::new()).build_http() }
}

impl TestGateway {
    /// Sends a request and returns as soon as the head of its answer is there.
    pub async fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(Method::POST).uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client.request(request.body(Full::from(body.into())).unwrap()).await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Reply {
        read(self.open(path, headers, body).await).await
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::builder().uri(format!("{}{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        read(self.client.request(request.body(Full::default()).unwrap()).await.unwrap()).await
    }

    /// A short chat that is not streamed.
    pub async fn chat(&self, model: &str) -> Reply {
        self.post("/v1/chat/completions", &chat(model, false)).await
    }

    /// Waits until the fleet, as the gateway tells it, is so.
    pub async fn until(&self, holds: impl Fn(&Value) -> bool) {
        let wait = async {
            while !holds(&self.get("/admin/fleet", &[]).await.json()) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the fleet never gets there");
    }
}

pub async fn read(response: Response<Incoming>) -> Reply {
    let (parts, body) = response.into_parts();
    let body = timeout(PATIENCE, body.collect()).await.expect("the answer never ends").unwrap().to_bytes();
    Reply {
        status: parts.status.as_u16(),
        headers: parts.headers,
        text: String::from_utf8_lossy(&body).into_owned(),
    }
}

/// The next bytes of a stream.
pub async fn next(body: &mut Incoming) -> String {
    let frame = timeout(PATIENCE, body.frame()).await.expect("nothing comes").expect("the stream has ended");
    String::from_utf8_lossy(&frame.unwrap().into_data().unwrap()).into_owned()
}

pub fn chat(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

pub fn messages(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})
}

/// A node with this script that holds the model `m`.
pub async fn scripted(id: &str, change: impl FnOnce(&mut Script)) -> MockNode {
    let node = MockNode::start(id, &["m"]).await.unwrap();
    node.set(change);
    node
}

pub fn model(id: &str, state: ModelState, gib: u64) -> ModelStatus {
    ModelStatus { id: id.into(), state, bytes: gib * GIB, priority: 100, ..ModelStatus::default() }
}

/// A node with this budget in GiB that holds these models.
pub async fn holding(id: &str, budget: u64, models: Vec<ModelStatus>, script: Script) -> MockNode {
    MockNode::start_at("127.0.0.1:0".parse().unwrap(), id, budget * GIB, models, script).await.unwrap()
}

/// Waits until something holds.
pub async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
