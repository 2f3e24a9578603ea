//! `GET /metrics`: what Prometheus and its kin scrape.

mod engine;
mod exposition;
mod histogram;
mod traffic;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::Node;
use exposition::Exposition;

pub(crate) use traffic::{Traffic, seconds_per_token};

pub(crate) async fn metrics(State(node): State<Node>) -> Response {
    let mut text = Exposition::default();
    let info = node.info();
    text.family("lichen_build_info", "gauge", "What runs here; always 1.");
    let labels = [("version", &*info.version), ("backend", &info.backend), ("build", &info.build)];
    text.sample("lichen_build_info", &labels, 1.0);
    text.family("lichen_uptime_seconds", "gauge", "Time since the start.");
    text.sample("lichen_uptime_seconds", &[], node.uptime().as_secs_f64());
    engine::write_models(&mut text, &node.cards());
    engine::write_comings(&mut text, &node.host().comings());
    engine::write_engines(&mut text, &node.stats());
    node.traffic().write(&mut text);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let mut text = text.into_text();
    if let Some(memory) = &node.settings().memory {
        text.push_str(&memory.metrics());
    }
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
