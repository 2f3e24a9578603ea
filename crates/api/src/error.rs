//! Errors as users see them: the OpenAI shape plus `details`.

use serde_json::{Value, json};

/// Longest `Retry-After` in seconds: OpenAI's clients give up retrying on much larger ones.
const LONGEST_RETRY_AFTER: u64 = 60;

/// `Retry-After` in seconds where room in memory is waited for.
const MEMORY_RETRY_AFTER: u64 = 10;

/// Why a request got no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field is malformed, or asks for what can't be done.
    #[error("{param}: {reason}")]
    InvalidRequest {
        /// The field, as a path such as `messages[2].content`.
        param: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// Prompt plus requested output exceed the context cap. Agents match on this wording.
    #[error(
        "This model's maximum context length is {context_cap} tokens. However, your messages resulted in \
         {prompt_tokens} tokens. Please reduce the length of the messages."
    )]
    ContextOverBudget {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for.
        requested_tokens: usize,
        /// The cap in tokens.
        context_cap: usize,
        /// Bytes of keys and values that one token takes.
        kv_bytes_per_token: u64,
    },
    /// No such model is loaded.
    #[error("the model '{model}' is not loaded here; loaded: {}", if loaded.is_empty() { "none".into() } else { loaded.join(", ") })]
    ModelNotFound {
        /// The name asked for.
        model: String,
        /// Names that would work.
        loaded: Vec<String>,
    },
    /// The model is not in a state to answer.
    #[error("the model is {state}; try again later")]
    ModelNotReady {
        /// `loading`, `draining` or `failed`.
        state: &'static str,
        /// Share of the load that is done, 0 to 1.
        progress: f32,
        /// Seconds after which a retry makes sense.
        retry_after: u64,
    },
    /// The model's load failed, or it broke later.
    #[error("the model '{model}' failed: {reason}; load it again once the cause is gone")]
    ModelFailed {
        /// The model asked for.
        model: String,
        /// What broke.
        reason: String,
        /// Seconds after which a retry makes sense.
        retry_after: u64,
    },
    /// It does not fit into memory now, but could later.
    #[error("{message}")]
    MemoryOverBudget {
        /// What is in the way.
        message: String,
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes that can be had now.
        available_bytes: u64,
    },
    /// It can never fit into the memory there is.
    #[error("{message}")]
    MemoryImpossible {
        /// What would fit.
        message: String,
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes there are.
        limit_bytes: u64,
    },
    /// Too many requests wait.
    #[error("{queued} requests are waiting and the limit is {limit}; try again in {estimate} s")]
    QueueFull {
        /// Waiting now.
        queued: usize,
        /// The limit.
        limit: usize,
        /// Seconds until there is likely room.
        estimate: u64,
    },
    /// No such route.
    #[error("there is no route {path}")]
    RouteNotFound {
        /// The path asked for.
        path: String,
    },
    /// The route exists, the method doesn't.
    #[error("{path} does not answer {method}")]
    MethodNotAllowed {
        /// The method used.
        method: String,
        /// The path.
        path: String,
    },
    /// The body is larger than the node takes.
    #[error("the request body is larger than {limit} bytes")]
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// No key, or one that is not known here.
    #[error("{reason}; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")]
    Unauthorized {
        /// What is wrong with the key.
        reason: &'static str,
    },
    /// A deadline passed before the answer was complete.
    #[error("the request was not served within its deadline of {seconds} s")]
    DeadlineExceeded {
        /// The deadline in seconds.
        seconds: u64,
    },
    /// A fault of ours.
    #[error("engine fault: {reason}")]
    EngineFault {
        /// What broke.
        reason: String,
        /// Finds the request in the log.
        request_id: String,
    },
}

impl Error {
    /// An [`Error::InvalidRequest`].
    pub fn invalid(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidRequest { param: param.into(), reason: reason.into() }
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::InvalidRequest { .. } | Self::ContextOverBudget { .. } | Self::MemoryImpossible { .. } => {
                400
            }
            Self::ModelNotFound { .. } | Self::RouteNotFound { .. } => 404,
            Self::Unauthorized { .. } => 401,
            Self::MethodNotAllowed { .. } => 405,
            Self::BodyTooLarge { .. } => 413,
            Self::QueueFull { .. } => 429,
            Self::EngineFault { .. } => 500,
            Self::ModelNotReady { .. } | Self::ModelFailed { .. } | Self::MemoryOverBudget { .. } => 503,
            Self::DeadlineExceeded { .. } => 504,
        }
    }

    /// The name in `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } => "invalid_request",
            Self::ContextOverBudget { .. } => "context_over_budget",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::ModelNotReady { .. } | Self::ModelFailed { .. } => "model_not_ready",
            Self::MemoryOverBudget { .. } => "memory_over_budget",
            Self::MemoryImpossible { .. } => "memory_impossible",
            Self::QueueFull { .. } => "queue_full",
            Self::RouteNotFound { .. } => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::Unauthorized { .. } => "unauthorized",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::EngineFault { .. } => "engine_fault",
        }
    }

    /// The name in `error.code`: the type, except where clients know another one.
    pub fn code(&self) -> &'static str {
        match self {
            Self::ContextOverBudget { .. } => "context_length_exceeded",
            other => other.kind(),
        }
    }

    /// Value of the `Retry-After` header in seconds, for errors that pass.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::ModelNotReady { retry_after: s, .. }
            | Self::ModelFailed { retry_after: s, .. }
            | Self::QueueFull { estimate: s, .. } => Some((*s).clamp(1, LONGEST_RETRY_AFTER)),
            // When room comes free can't be told.
            Self::MemoryOverBudget { .. } => Some(MEMORY_RETRY_AFTER),
            _ => None,
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { param, .. } => Some(param),
            Self::ContextOverBudget { .. } => Some("messages"),
            Self::ModelNotFound { .. } | Self::MemoryImpossible { .. } => Some("model"),
            _ => None,
        }
    }

    fn details(&self) -> Value {
        match self {
            Self::InvalidRequest { param, reason } => json!({"param": param, "reason": reason}),
            Self::ContextOverBudget { prompt_tokens, requested_tokens, context_cap, kv_bytes_per_token } => {
                let kv_bytes = |tokens: usize| kv_bytes_per_token.saturating_mul(tokens as u64);
                json!({
                    "prompt_tokens": prompt_tokens,
                    "requested_tokens": requested_tokens,
                    "ctx_cap": context_cap,
                    "kv_bytes_per_token": kv_bytes_per_token,
                    "kv_bytes_needed": kv_bytes(prompt_tokens.saturating_add(*requested_tokens)),
                    "kv_bytes_available": kv_bytes(*context_cap),
                    "suggestion": format!(
                        "shorten the prompt or ask for at most {} tokens",
                        context_cap.saturating_sub(*prompt_tokens)
                    ),
                    "retryable": false,
                })
            }
            Self::ModelNotFound { model, loaded } => json!({"model": model, "loaded": loaded}),
            Self::ModelNotReady { state, progress, retry_after } => {
                json!({"state": state, "progress": progress, "retry_after_s": retry_after})
            }
            Self::ModelFailed { model, reason, retry_after } => {
                json!({"model": model, "state": "failed", "reason": reason, "retry_after_s": retry_after})
            }
            Self::MemoryOverBudget { need_bytes, available_bytes, .. } => {
                json!({"need_bytes": need_bytes, "available_bytes": available_bytes})
            }
            Self::MemoryImpossible { need_bytes, limit_bytes, .. } => {
                json!({"need_bytes": need_bytes, "limit_bytes": limit_bytes})
            }
            Self::QueueFull { queued, limit, estimate } => {
                json!({"queued": queued, "limit": limit, "estimate_s": estimate})
            }
            Self::RouteNotFound { path } => json!({"path": path}),
            Self::MethodNotAllowed { method, path } => json!({"method": method, "path": path}),
            Self::BodyTooLarge { limit } => json!({"limit_bytes": limit}),
            Self::Unauthorized { reason } => json!({"reason": reason}),
            Self::DeadlineExceeded { seconds } => json!({"deadline_s": seconds}),
            Self::EngineFault { request_id, .. } => json!({"request_id": request_id}),
        }
    }

    /// The JSON body, also the payload of an error event inside a stream.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "code": self.code(),
            "param": self.param(),
            "details": self.details(),
        }})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlong_prompt_is_worded_for_agents() {
        let error = Error::ContextOverBudget {
            prompt_tokens: 90,
            requested_tokens: 1,
            context_cap: 80,
            kv_bytes_per_token: 100,
        };
        let body = error.body();
        assert_eq!(body["error"]["type"], "context_over_budget");
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!(body["error"]["details"]["ctx_cap"], 80);
        assert_eq!(body["error"]["details"]["kv_bytes_needed"], 9100);
        assert_eq!(body["error"]["details"]["kv_bytes_available"], 8000);
        assert!(error.to_string().starts_with("This model's maximum context length is 80 tokens. However,"));
        assert!(error.to_string().contains("resulted in 90 tokens"));
    }

    #[test]
    fn retry_after_is_bounded() {
        let wait = |estimate| Error::QueueFull { queued: 1, limit: 1, estimate }.retry_after();
        assert_eq!((wait(0), wait(7), wait(9000)), (Some(1), Some(7), Some(60)));
        assert_eq!(Error::invalid("n", "one only").retry_after(), None);
    }
}
