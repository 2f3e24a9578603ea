//! Errors as users see them: the OpenAI shape plus `details`.

use serde_json::{Value, json};

use crate::TurnSize;

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
        "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens. \
         Please reduce the length of the messages.",
        .0.context_cap, .0.prompt_tokens
    )]
    ContextOverBudget(Box<TurnSize>),
    /// Keys and values of the request fit into memory not even alone.
    #[error(
        "a prompt of {} tokens with {} tokens to answer does not fit into memory here, whatever else runs; {}",
        .0.prompt_tokens, .0.requested_tokens, .0.suggestion()
    )]
    TurnImpossible(Box<TurnSize>),
    /// The request has waited for memory in vain.
    #[error(
        "the request needs {need_bytes} bytes for keys and values and {available_bytes} are free; it waited for \
         {waited} s; try again later or ask for less"
    )]
    TurnOverMemory {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes that can be promised now.
        available_bytes: u64,
        /// How short memory is: `normal`, `watch`, `tight` or `critical`.
        level: &'static str,
        /// The largest owners of memory and their bytes, largest first.
        largest: Vec<(String, u64)>,
        /// Seconds that it has waited.
        waited: u64,
        /// Seconds until there is likely room.
        estimate: u64,
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
    /// Models that don't give way hold the room that it needs.
    #[error("the model '{model}' can't be loaded: {} must stay; unpin one of them, or ask for another model", by.join(", "))]
    ModelPinnedOut {
        /// The model asked for.
        model: String,
        /// The models in its way.
        by: Vec<String>,
    },
    /// No node of the fleet can answer now.
    #[error("the model '{model}' has no node that can answer: {reason}; try again in {retry_after} s")]
    NodeUnavailable {
        /// The model asked for.
        model: String,
        /// What happened.
        reason: String,
        /// Seconds after which a retry makes sense.
        retry_after: u64,
    },
    /// A node has broken off in the middle of an answer.
    #[error("the node broke off before the answer was complete: {reason}; ask again")]
    NodeLost {
        /// What happened.
        reason: String,
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
    /// A session that has no state.
    #[error("the session '{session}' has no state here: it was never used, or has been given up")]
    SessionNotFound {
        /// The name asked for.
        session: String,
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
            Self::InvalidRequest { .. }
            | Self::ContextOverBudget(_)
            | Self::TurnImpossible(_)
            | Self::MemoryImpossible { .. } => 400,
            Self::ModelNotFound { .. } | Self::SessionNotFound { .. } | Self::RouteNotFound { .. } => 404,
            Self::Unauthorized { .. } => 401,
            Self::MethodNotAllowed { .. } => 405,
            Self::BodyTooLarge { .. } => 413,
            Self::ModelPinnedOut { .. } => 409,
            Self::QueueFull { .. } => 429,
            Self::EngineFault { .. } => 500,
            Self::NodeLost { .. } => 502,
            Self::NodeUnavailable { .. }
            | Self::ModelNotReady { .. }
            | Self::ModelFailed { .. }
            | Self::TurnOverMemory { .. }
            | Self::MemoryOverBudget { .. } => 503,
            Self::DeadlineExceeded { .. } => 504,
        }
    }

    /// The name in `error.type`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } => "invalid_request",
            Self::ContextOverBudget(_) => "context_over_budget",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::ModelNotReady { .. } | Self::ModelFailed { .. } => "model_not_ready",
            Self::MemoryOverBudget { .. } | Self::TurnOverMemory { .. } => "memory_over_budget",
            Self::MemoryImpossible { .. } | Self::TurnImpossible(_) => "memory_impossible",
            Self::ModelPinnedOut { .. } => "model_pinned_out",
            Self::NodeUnavailable { .. } => "node_unavailable",
            Self::NodeLost { .. } => "node_lost",
            Self::QueueFull { .. } => "queue_full",
            Self::SessionNotFound { .. } => "session_not_found",
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
            Self::ContextOverBudget(_) => "context_length_exceeded",
            other => other.kind(),
        }
    }

    /// Value of the `Retry-After` header in seconds, for errors that pass.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            Self::ModelNotReady { retry_after: s, .. }
            | Self::ModelFailed { retry_after: s, .. }
            | Self::NodeUnavailable { retry_after: s, .. }
            | Self::QueueFull { estimate: s, .. } => Some((*s).clamp(1, LONGEST_RETRY_AFTER)),
            // When room comes free can't be told.
            Self::MemoryOverBudget { .. } => Some(MEMORY_RETRY_AFTER),
            Self::TurnOverMemory { estimate, .. } => {
                Some((*estimate).clamp(MEMORY_RETRY_AFTER, LONGEST_RETRY_AFTER))
            }
            _ => None,
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidRequest { param, .. } => Some(param),
            Self::ContextOverBudget(_) | Self::TurnImpossible(_) => Some("messages"),
            Self::ModelNotFound { .. } | Self::MemoryImpossible { .. } | Self::ModelPinnedOut { .. } => {
                Some("model")
            }
            _ => None,
        }
    }

    fn details(&self) -> Value {
        match self {
            Self::InvalidRequest { param, reason } => json!({"param": param, "reason": reason}),
            Self::ContextOverBudget(size) => size.details(),
            Self::TurnImpossible(size) => size.impossible_details(),
            Self::TurnOverMemory { need_bytes, available_bytes, level, largest, waited, .. } => {
                let owner = |(owner, bytes): &(String, u64)| json!({"owner": owner, "bytes": bytes});
                json!({
                    "need_bytes": need_bytes,
                    "available_bytes": available_bytes,
                    "level": level,
                    "largest_owners": largest.iter().map(owner).collect::<Vec<_>>(),
                    "waited_s": waited,
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
            Self::ModelPinnedOut { model, by } => json!({"model": model, "pinned_out_by": by}),
            Self::NodeUnavailable { model, reason, retry_after } => {
                json!({"model": model, "reason": reason, "retry_after_s": retry_after})
            }
            Self::NodeLost { reason } => json!({"reason": reason}),
            Self::QueueFull { queued, limit, estimate } => {
                json!({"queued": queued, "limit": limit, "estimate_s": estimate})
            }
            Self::SessionNotFound { session } => json!({"session": session}),
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
    use crate::TurnMemory;

    #[test]
    fn an_overlong_prompt_is_worded_for_agents() {
        let size = TurnSize {
            prompt_tokens: 90,
            requested_tokens: 1,
            context_cap: 80,
            kv_bytes_per_token: 100,
            memory: None,
        };
        let error = Error::ContextOverBudget(Box::new(size));
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
    fn what_can_never_fit_into_memory_says_what_would() {
        let memory = TurnMemory {
            kv_bytes_needed: 900,
            kv_bytes_available: 100,
            kv_bytes_alone: 500,
            kv_bytes_per_token_floor: 10,
            floor: "q4",
            max_prompt_tokens_now: 0,
            max_prompt_tokens_alone: 40,
            max_requested_tokens_alone: 0,
            limit_bytes: 2000,
            limit_source: "cgroup:/box".into(),
            level: "watch",
        };
        let size = TurnSize {
            prompt_tokens: 80,
            requested_tokens: 10,
            context_cap: 100,
            kv_bytes_per_token: 36,
            memory: Some(memory),
        };
        let error = Error::TurnImpossible(Box::new(size));
        let details = error.body()["error"]["details"].take();
        assert_eq!((error.status(), error.code()), (400, "memory_impossible"));
        assert_eq!((&details["need_bytes"], &details["limit_bytes"]), (&json!(2400), &json!(2000)));
        assert_eq!(details["suggestion"], "shorten the prompt to at most 40 tokens");
        assert_eq!(details["limit"], json!({"bytes": 2000, "source": "cgroup:/box"}));
    }

    #[test]
    fn retry_after_is_bounded() {
        let wait = |estimate| Error::QueueFull { queued: 1, limit: 1, estimate }.retry_after();
        assert_eq!((wait(0), wait(7), wait(9000)), (Some(1), Some(7), Some(60)));
        assert_eq!(Error::invalid("n", "one only").retry_after(), None);
    }
}
