//! Errors in Anthropic's shape.

use serde_json::{Value, json};

use crate::Error;

/// The body of an error on Anthropic's routes, also the data of an `error` event.
pub fn anthropic_error(error: &Error, request_id: &str) -> Value {
    let mut body = json!({
        "type": "error",
        "error": {"type": kind(error), "message": message(error)},
        "request_id": request_id,
    });
    body["error"]["details"] = error.body()["error"]["details"].take();
    body
}

/// The HTTP status of an error on Anthropic's routes: 529 for a model that is not ready, else as everywhere.
pub fn anthropic_status(error: &Error) -> u16 {
    match error {
        Error::ModelNotReady { .. }
        | Error::ModelFailed { .. }
        | Error::NodeUnavailable { .. }
        | Error::TurnOverMemory { .. }
        | Error::MemoryOverBudget { .. } => 529,
        other => other.status(),
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::InvalidRequest { .. }
        | Error::ContextOverBudget(_)
        | Error::TurnImpossible(_)
        | Error::MemoryImpossible { .. }
        | Error::ModelPinnedOut { .. }
        | Error::MethodNotAllowed { .. } => "invalid_request_error",
        Error::Unauthorized { .. } => "authentication_error",
        Error::ModelNotFound { .. } | Error::SessionNotFound { .. } | Error::RouteNotFound { .. } => {
            "not_found_error"
        }
        Error::BodyTooLarge { .. } => "request_too_large",
        Error::QueueFull { .. } => "rate_limit_error",
        Error::ModelNotReady { .. }
        | Error::ModelFailed { .. }
        | Error::NodeUnavailable { .. }
        | Error::TurnOverMemory { .. }
        | Error::MemoryOverBudget { .. } => "overloaded_error",
        Error::DeadlineExceeded { .. } => "timeout_error",
        Error::EngineFault { .. } | Error::NodeLost { .. } => "api_error",
    }
}

/// By the wording agents tell an overlong prompt, which they shorten, from too large a `max_tokens`, which
/// they lower.
fn message(error: &Error) -> String {
    match error {
        Error::ContextOverBudget(size) if size.prompt_tokens > size.context_cap => {
            format!("prompt is too long: {} tokens > {} maximum", size.prompt_tokens, size.context_cap)
        }
        Error::ContextOverBudget(size) => format!(
            "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or \
             `max_tokens` and try again",
            size.prompt_tokens, size.requested_tokens, size.context_cap
        ),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TurnSize;

    #[test]
    fn every_error_has_the_type_that_belongs_to_its_status() {
        let cases = [
            (Error::invalid("top_k", "no"), 400, "invalid_request_error"),
            (Error::Unauthorized { reason: "no key" }, 401, "authentication_error"),
            (Error::RouteNotFound { path: "/x".into() }, 404, "not_found_error"),
            (Error::ModelNotFound { model: "m".into(), loaded: vec![] }, 404, "not_found_error"),
            (Error::BodyTooLarge { limit: 1 }, 413, "request_too_large"),
            (Error::QueueFull { queued: 1, limit: 1, estimate: 1 }, 429, "rate_limit_error"),
            (Error::ModelPinnedOut { model: "m".into(), by: vec![] }, 409, "invalid_request_error"),
            (Error::NodeLost { reason: "r".into() }, 502, "api_error"),
            (
                Error::NodeUnavailable { model: "m".into(), reason: "r".into(), retry_after: 1 },
                529,
                "overloaded_error",
            ),
            (Error::EngineFault { reason: "r".into(), request_id: "q".into() }, 500, "api_error"),
            (Error::DeadlineExceeded { seconds: 1 }, 504, "timeout_error"),
            (
                Error::ModelNotReady { state: "loading", progress: 0.5, retry_after: 1 },
                529,
                "overloaded_error",
            ),
        ];
        for (error, status, kind) in cases {
            let body = anthropic_error(&error, "req_1");
            assert_eq!((anthropic_status(&error), &body["error"]["type"]), (status, &json!(kind)));
            assert_eq!((&body["type"], &body["request_id"]), (&json!("error"), &json!("req_1")));
            assert_eq!(body["error"]["message"], error.to_string());
        }
    }

    #[test]
    fn agents_learn_what_to_shorten() {
        let message = |prompt_tokens| {
            let size =
                TurnSize { prompt_tokens, requested_tokens: 9, context_cap: 80, ..TurnSize::default() };
            let error = Error::ContextOverBudget(Box::new(size));
            assert_eq!(anthropic_error(&error, "r")["error"]["details"]["ctx_cap"], 80);
            anthropic_error(&error, "r")["error"]["message"].as_str().unwrap().to_owned()
        };
        assert_eq!(message(90), "prompt is too long: 90 tokens > 80 maximum");
        assert!(message(75).contains("exceed context limit: 75 + 9 > 80"));
    }
}
