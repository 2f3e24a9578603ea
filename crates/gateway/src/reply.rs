//! Responses of the gateway's own.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lichen_api::Error;
use serde_json::Value;

use crate::dialect::Route;

/// An error in the dialect of its route.
pub(crate) fn refusal(route: Route, error: &Error, request_id: &str) -> Response {
    let (status, body) = route.refusal(error, request_id);
    respond(error, status, body)
}

/// An error on a route that is not passed on.
pub(crate) fn plain_refusal(error: &Error) -> Response {
    respond(error, error.status(), error.body())
}

fn respond(error: &Error, status: u16, body: Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(body)).into_response();
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    } else if status.is_server_error() || status == StatusCode::CONFLICT {
        // Clients would try again by themselves.
        let never = HeaderValue::from_static("false");
        response.headers_mut().insert(HeaderName::from_static("x-should-retry"), never);
    }
    response
}

/// A stream of events.
pub(crate) fn stream(body: Body) -> Response {
    let mut response = Response::new(body);
    event_headers(&mut response);
    response
}

/// The headers of a stream.
pub(crate) fn event_headers(response: &mut Response) {
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Keeps nginx and its kin from collecting the stream before passing it on.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
}
