//! What goes wrong, and whose fault it is.

use std::time::Duration;

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request can't be served as it is.
    Client,
    /// There is no room now.
    Capacity,
    /// A bug or a broken device.
    Engine,
}

/// Why a request was refused or broke off.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GenerateError {
    /// Prompt plus requested output exceed the context cap.
    #[error(
        "This model's maximum context length is {context_cap} tokens. However, your messages resulted in \
         {prompt_tokens} tokens. Please reduce the length of the messages."
    )]
    ContextOverBudget {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens asked for.
        requested_tokens: usize,
        /// The cap.
        context_cap: usize,
        /// Bytes of keys and values that one token takes.
        kv_bytes_per_token: u64,
    },
    /// The request is malformed.
    #[error("{param}: {reason}")]
    Invalid {
        /// The field.
        param: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// Too many requests wait.
    #[error("{queued} requests are waiting and the limit is {limit}; try again later")]
    QueueFull {
        /// Waiting now.
        queued: usize,
        /// The limit.
        limit: usize,
        /// Time until there is likely room, from measured throughput.
        estimate: Duration,
    },
    /// The deadline of the request passed.
    #[error("the request was not served within its deadline of {0:?}")]
    DeadlineExceeded(Duration),
    /// The constraint could not be followed to its end.
    #[error("the answer can't go on under its grammar: {0}")]
    Constraint(String),
    /// A fault of ours.
    #[error("engine fault: {0}")]
    Engine(String),
}

impl GenerateError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::ContextOverBudget { .. } | Self::Invalid { .. } | Self::Constraint(_) => Fault::Client,
            Self::QueueFull { .. } | Self::DeadlineExceeded(_) => Fault::Capacity,
            Self::Engine(_) => Fault::Engine,
        }
    }

    /// Whether the same request may succeed later.
    pub fn retryable(&self) -> bool {
        self.fault() == Fault::Capacity
    }
}
