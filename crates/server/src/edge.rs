//! What every exchange gets: a request id and the CORS headers (Fetch standard, section 3.3).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Node;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id that is taken over from the client.
const LONGEST_ID: usize = 128;
const ALLOWED_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, x-api-key, anthropic-version, anthropic-beta");

/// Names one exchange, for finding it in logs.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// Wraps every route, the fallback included.
pub(crate) async fn edge(State(node): State<Node>, mut request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response =
        if request.method() == Method::OPTIONS { preflight(asked) } else { next.run(request).await };
    let headers = response.headers_mut();
    if let Some(origin) = &node.settings().allow_origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        let exposed = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// Answers a preflight. What is asked for is allowed by name, because the OpenAI clients send a family of
/// `x-stainless-*` headers and `*` does not cover `authorization`.
fn preflight(asked: Option<HeaderValue>) -> Response {
    let mut headers = HeaderMap::new();
    let methods = HeaderValue::from_static("GET, POST, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    (StatusCode::NO_CONTENT, headers).into_response()
}

fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given {
        Some(id) if (1..=LONGEST_ID).contains(&id.len()) => id.to_owned(),
        _ => unique("req"),
    }
}

/// A name that does not repeat: time in microseconds plus a counter.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    format!("{prefix}-{time:x}{:06x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}
