//! Errors as HTTP responses.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lichen_api::{Error, TurnMemory, TurnSize, anthropic_error, anthropic_status};
use lichen_generate::GenerateError;
use serde_json::Value;

/// An error on its way out.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = response(&self.0, self.0.status(), self.0.body());
        // For routes of another dialect.
        response.extensions_mut().insert(self.0);
        response
    }
}

/// A response in the dialect of its route: errors of Anthropic's routes have Anthropic's shape, wherever they arose.
pub(crate) fn in_dialect(path: &str, id: &str, mut given: Response) -> Response {
    match given.extensions_mut().remove::<Error>() {
        Some(error) if path.starts_with("/v1/messages") => {
            response(&error, anthropic_status(&error), anthropic_error(&error, id))
        }
        _ => given,
    }
}

fn response(error: &Error, status: u16, body: Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(body)).into_response();
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    } else if status.is_server_error() {
        // Clients would try again by themselves.
        let never = HeaderValue::from_static("false");
        response.headers_mut().insert(HeaderName::from_static("x-should-retry"), never);
    }
    response
}

/// An engine's error in the terms of the API.
pub(crate) fn from_engine(error: GenerateError, id: &str) -> Error {
    match error {
        GenerateError::ContextOverBudget(size) => Error::ContextOverBudget(Box::new(turn_size(*size))),
        GenerateError::MemoryImpossible(size) => Error::TurnImpossible(Box::new(turn_size(*size))),
        GenerateError::MemoryOverBudget { need_bytes, available_bytes, level, largest, waited, estimate } => {
            let (waited, estimate) = (waited.as_secs(), estimate.as_secs_f64().ceil() as u64);
            Error::TurnOverMemory { need_bytes, available_bytes, level, largest, waited, estimate }
        }
        GenerateError::Invalid { param, reason } => Error::invalid(param, reason),
        GenerateError::QueueFull { queued, limit, estimate } => {
            Error::QueueFull { queued, limit, estimate: estimate.as_secs_f64().ceil() as u64 }
        }
        GenerateError::DeadlineExceeded(deadline) => Error::DeadlineExceeded { seconds: deadline.as_secs() },
        GenerateError::Constraint(reason) => Error::invalid("grammar", reason),
        GenerateError::Engine(reason) => fault(reason, id),
        other => fault(other.to_string(), id),
    }
}

fn turn_size(size: lichen_generate::TurnSize) -> TurnSize {
    TurnSize {
        prompt_tokens: size.prompt_tokens,
        requested_tokens: size.requested_tokens,
        context_cap: size.context_cap,
        kv_bytes_per_token: size.kv_bytes_per_token,
        memory: size.memory.map(|memory| TurnMemory {
            kv_bytes_needed: memory.kv_bytes_needed,
            kv_bytes_available: memory.kv_bytes_available,
            kv_bytes_alone: memory.kv_bytes_alone,
            kv_bytes_per_token_floor: memory.kv_bytes_per_token_floor,
            floor: memory.floor,
            max_prompt_tokens_now: memory.max_prompt_tokens_now,
            max_prompt_tokens_alone: memory.max_prompt_tokens_alone,
            max_requested_tokens_alone: memory.max_requested_tokens_alone,
            limit_bytes: memory.limit_bytes,
            limit_source: memory.limit_source,
            level: memory.level,
        }),
    }
}

/// A fault of ours.
pub(crate) fn fault(reason: impl Into<String>, id: &str) -> Error {
    Error::EngineFault { reason: reason.into(), request_id: id.to_owned() }
}
