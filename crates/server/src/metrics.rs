//! `GET /metrics`: the text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use lichen_generate::Stats;

use crate::Node;

/// One metric: its name, kind, help, and how it is read.
type Row = (&'static str, &'static str, &'static str, fn(&Stats) -> f64);

const ROWS: [Row; 18] = [
    ("lichen_requests_running", "gauge", "Requests being worked on.", |s| s.running as f64),
    ("lichen_requests_waiting", "gauge", "Requests that wait for their turn.", |s| s.waiting as f64),
    ("lichen_requests_paused", "gauge", "Requests that were begun and gave way.", |s| s.paused as f64),
    ("lichen_queue_wait_estimate_seconds", "gauge", "Time until a new request is likely begun.", |s| {
        s.wait_seconds
    }),
    ("lichen_kv_pages", "gauge", "KV pages that exist.", |s| s.pages as f64),
    ("lichen_kv_pages_limit", "gauge", "Most KV pages.", |s| s.page_limit as f64),
    ("lichen_kv_bytes", "gauge", "Bytes of KV pages.", |s| s.pages as f64 * s.page_bytes as f64),
    ("lichen_prefix_cache_pages", "gauge", "KV pages that only the prefix cache holds.", |s| {
        s.cached_pages as f64
    }),
    ("lichen_sessions", "gauge", "Sessions whose state is kept in preference.", |s| s.sessions as f64),
    ("lichen_prompt_tokens_total", "counter", "Prompt tokens taken in.", |s| s.prompt_tokens as f64),
    ("lichen_prefix_tokens_reused_total", "counter", "Tokens whose state was reused.", |s| {
        s.reused_tokens as f64
    }),
    ("lichen_generated_tokens_total", "counter", "Tokens generated.", |s| s.generated_tokens as f64),
    ("lichen_draft_tokens_total", "counter", "Tokens guessed.", |s| s.drafted_tokens as f64),
    ("lichen_draft_tokens_accepted_total", "counter", "Guesses that were right.", |s| {
        s.accepted_tokens as f64
    }),
    ("lichen_pauses_total", "counter", "Times that a request gave way.", |s| s.pauses as f64),
    // What routers scrape from model servers.
    ("vllm:num_requests_running", "gauge", "Requests being worked on.", |s| s.running as f64),
    ("vllm:num_requests_waiting", "gauge", "Requests that wait.", |s| (s.waiting + s.paused) as f64),
    ("vllm:kv_cache_usage_perc", "gauge", "Share of KV pages that requests hold, 0 to 1.", |s| {
        let held = s.pages.saturating_sub(s.cached_pages);
        if s.page_limit == 0 { 0.0 } else { held as f64 / s.page_limit as f64 }
    }),
];

pub(crate) async fn metrics(State(node): State<Node>) -> Response {
    let stats = node.stats();
    let mut text = String::new();
    for (name, kind, help, read) in ROWS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (model, replica, stats) in &stats {
            let label = if name.starts_with("vllm:") { "model_name" } else { "model" };
            let model = escape(model);
            let _ = writeln!(text, "{name}{{{label}=\"{model}\",replica=\"{replica}\"}} {}", read(stats));
        }
    }
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// A label's value in the format's own escapes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        for (name, kind, help, _) in ROWS {
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(help.ends_with('.'));
        }
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
