//! Reports to a gateway.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lichen_contract::routes;

use crate::node::{Shared, lock};

/// A gateway that the node belongs to.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// `http://HOST:PORT`.
    pub url: String,
    /// What lets the node join.
    pub token: String,
    /// Between two reports.
    pub interval: Duration,
}

/// Reports again and again. A gateway that is away is told the next time.
pub(crate) async fn report_to(shared: Arc<Shared>, gateway: Gateway) {
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    loop {
        let quiet = {
            let script = lock(&shared.script);
            script.mute || script.hang
        };
        if let Some(request) = (!quiet).then(|| request(&shared, &gateway)).flatten() {
            let _ = client.request(request).await;
        }
        tokio::time::sleep(gateway.interval).await;
    }
}

fn request(shared: &Shared, gateway: &Gateway) -> Option<Request<Full<Bytes>>> {
    let body = serde_json::to_vec(&shared.report()).ok()?;
    Request::builder()
        .method(Method::POST)
        .uri(format!("{}{}", gateway.url, routes::HEARTBEAT))
        .header(AUTHORIZATION, format!("Bearer {}", gateway.token))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::from(body))
        .ok()
}
