//! Errors as HTTP responses.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lichen_api::Error;
use lichen_generate::GenerateError;

use crate::edge::RequestId;

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
        let status = StatusCode::from_u16(self.0.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0.body())).into_response();
        if let Some(seconds) = self.0.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// An engine's error in the terms of the API.
pub(crate) fn from_engine(error: GenerateError, id: &RequestId) -> Error {
    match error {
        GenerateError::ContextOverBudget {
            prompt_tokens,
            requested_tokens,
            context_cap,
            kv_bytes_per_token,
        } => Error::ContextOverBudget { prompt_tokens, requested_tokens, context_cap, kv_bytes_per_token },
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

/// A fault of ours.
pub(crate) fn fault(reason: impl Into<String>, id: &RequestId) -> Error {
    Error::EngineFault { reason: reason.into(), request_id: id.0.clone() }
}
