//! What every exchange gets: a request id, a check of its key, the CORS headers (Fetch standard, section 3.3), and a
//! line in the access log.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::Node;
use crate::exchange::{Exchange, unique};
use crate::reply::{Refusal, in_dialect};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The name that Anthropic's clients read.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// Longest request id that is taken over from the client.
const LONGEST_ID: usize = 128;
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, \
     anthropic-dangerous-direct-browser-access",
);
/// What anybody may see: probes and scrapers have no keys.
const OPEN_PATHS: [&str; 4] = ["/", "/health", "/metrics", "/openapi.json"];

/// Wraps every route, the fallback included.
pub(crate) async fn edge(State(node): State<Node>, mut request: Request, next: Next) -> Response {
    let settings = node.settings();
    let id = request_id(request.headers());
    let open = OPEN_PATHS.contains(&request.uri().path());
    let key = if open { Ok(0) } else { settings.api_keys.check(request.headers()) };
    let log = settings.access_log.clone().filter(|_| !open);
    let asker = key.as_ref().copied().unwrap_or(0);
    let exchange = Exchange::new(id.clone(), asker, route(&request), node.traffic().clone(), log);
    exchange.note("method", request.method().as_str());
    exchange.note("path", request.uri().path());
    let path = request.uri().path().to_owned();
    let response = match key {
        _ if request.method() == Method::OPTIONS => preflight(request.headers()),
        Err(error) => Refusal(error).into_response(),
        Ok(_) => {
            request.extensions_mut().insert(exchange.clone());
            next.run(request).await
        }
    };
    if let Some(error) = response.extensions().get() {
        exchange.note_error(error);
    }
    let mut response = in_dialect(&path, &id, response);
    exchange.note_status(response.status().as_u16());
    let headers = response.headers_mut();
    if let Some(origin) = &settings.allow_origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        let exposed = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id.clone());
        headers.insert(ANTHROPIC_REQUEST_ID, id);
    }
    response
}

/// Answers a preflight. What is asked for is allowed by name, because the OpenAI clients send a family of
/// `x-stainless-*` headers and `*` does not cover `authorization`.
fn preflight(asking: &HeaderMap) -> Response {
    let asked = asking.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut headers = HeaderMap::new();
    let methods = HeaderValue::from_static("GET, POST, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(ALLOWED_HEADERS));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The path as it is routed: paths that clients make up must not become labels of metrics.
fn route(request: &Request) -> String {
    let matched = request.extensions().get::<MatchedPath>();
    matched.map_or("none", MatchedPath::as_str).to_owned()
}

fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given {
        Some(id) if (1..=LONGEST_ID).contains(&id.len()) => id.to_owned(),
        _ => unique("req"),
    }
}
