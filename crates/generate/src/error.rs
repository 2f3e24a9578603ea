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

/// A request and the room there is for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnSize {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens asked for.
    pub requested_tokens: usize,
    /// Most tokens of prompt and answer together.
    pub context_cap: usize,
    /// Bytes of keys and values that one token takes.
    pub kv_bytes_per_token: u64,
    /// What memory has to do with it, where that is watched.
    pub memory: Option<TurnMemory>,
}

/// The memory for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnMemory {
    /// Bytes of keys and values that must be promised to it, at the precision of promises.
    pub kv_bytes_needed: u64,
    /// Bytes that can be promised now.
    pub kv_bytes_available: u64,
    /// Bytes that could be promised if nothing else ran.
    pub kv_bytes_alone: u64,
    /// Bytes that one token takes at the precision of promises.
    pub kv_bytes_per_token_floor: u64,
    /// The precision of promises, the coarsest that keys and values are stored in.
    pub floor: &'static str,
    /// The longest prompt, with as many tokens asked for, that would be admitted now; 0 if none.
    pub max_prompt_tokens_now: u64,
    /// The longest prompt, with as many tokens asked for, that would be admitted if nothing else ran; 0 if none.
    pub max_prompt_tokens_alone: u64,
    /// The most tokens that could be asked for with this prompt if nothing else ran; 0 if none.
    pub max_requested_tokens_alone: u64,
    /// Bytes that are this process's.
    pub limit_bytes: u64,
    /// Where that limit comes from.
    pub limit_source: String,
    /// How short memory is: `normal`, `watch`, `tight` or `critical`.
    pub level: &'static str,
}

/// Why a request was refused or broke off.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum GenerateError {
    /// Prompt plus requested output exceed the context cap.
    #[error(
        "This model's maximum context length is {} tokens. However, your messages resulted in {} tokens. \
         Please reduce the length of the messages.",
        .0.context_cap, .0.prompt_tokens
    )]
    ContextOverBudget(Box<TurnSize>),
    /// Its keys and values fit into the memory there is not even alone.
    #[error(
        "a prompt of {} tokens with {} tokens to answer fits into memory not even alone; shorten the prompt \
         or ask for fewer tokens",
        .0.prompt_tokens, .0.requested_tokens
    )]
    MemoryImpossible(Box<TurnSize>),
    /// It has waited for memory in vain.
    #[error(
        "the request needs {need_bytes} bytes of keys and values and {available_bytes} are free; it has waited \
         for {waited:?}; try again later or ask for less"
    )]
    MemoryOverBudget {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes that can be promised now.
        available_bytes: u64,
        /// How short memory is: `normal`, `watch`, `tight` or `critical`.
        level: &'static str,
        /// The largest owners of memory and their bytes, largest first.
        largest: Vec<(String, u64)>,
        /// How long it has waited.
        waited: Duration,
        /// Time until there is likely room, from measured throughput.
        estimate: Duration,
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
            Self::ContextOverBudget(_)
            | Self::MemoryImpossible(_)
            | Self::Invalid { .. }
            | Self::Constraint(_) => Fault::Client,
            Self::QueueFull { .. } | Self::MemoryOverBudget { .. } | Self::DeadlineExceeded(_) => {
                Fault::Capacity
            }
            Self::Engine(_) => Fault::Engine,
        }
    }

    /// Whether the same request may succeed later.
    pub fn retryable(&self) -> bool {
        self.fault() == Fault::Capacity
    }
}
