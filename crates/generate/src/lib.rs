//! The narrow waist between what speaks protocols and what computes: a request in tokens, events out.
//!
//! No HTTP below it, no tensor above it. [`Generate`] is implemented by the engine and by scripted fakes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How the next token is chosen. Fields at their default leave the logits alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of tokens with at least this probability (nucleus sampling, arXiv 1904.09751).
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one.
    pub min_p: f32,
    /// Divide positive and multiply negative logits of recent tokens (arXiv 1909.05858); 1 is off.
    pub repetition_penalty: f32,
    /// How many recent tokens the penalties look at.
    pub penalty_window: usize,
    /// Subtracted once from the logit of each recent token.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent token once per occurrence.
    pub frequency_penalty: f32,
    /// Seed of the random numbers; `None` draws one.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalty_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

/// One generation.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The whole prompt, special tokens included.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; `None` means up to the context cap.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Go on past end-of-generation tokens (benchmarks).
    pub ignore_end: bool,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop text came.
    Stop,
    /// `max_tokens` or the context cap was reached.
    Length,
    /// The caller cancelled.
    Cancelled,
}

/// What a request used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens whose state was reused.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// From submission to the first generated token.
    pub time_to_first_token: Duration,
    /// From the first to the last generated token.
    pub decode_time: Duration,
}

/// What a generation reports, in order: progress, then text, then exactly one `Finished` or `Failed`.
#[derive(Debug, Clone)]
pub enum Event {
    /// Prompt tokens processed so far, of all.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More of the answer: whole characters only.
    Text(String),
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it used.
        usage: Usage,
    },
    /// The answer ends here because of an error.
    Failed(GenerateError),
}

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
    },
    /// A fault of ours.
    #[error("engine fault: {0}")]
    Engine(String),
}

impl GenerateError {
    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::ContextOverBudget { .. } | Self::Invalid { .. } => Fault::Client,
            Self::QueueFull { .. } => Fault::Capacity,
            Self::Engine(_) => Fault::Engine,
        }
    }

    /// Whether the same request may succeed later.
    pub fn retryable(&self) -> bool {
        self.fault() == Fault::Capacity
    }
}

/// A handle that ends its request when cancelled or dropped.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// A ticket and the flag that tells the worker of its end.
    pub fn new() -> (Self, Arc<AtomicBool>) {
        let flag = Arc::new(AtomicBool::new(false));
        (Self(flag.clone()), flag)
    }

    /// Ends the request at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Receives the events of one request, on the engine's thread: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Something that generates text from tokens.
pub trait Generate: Send + Sync {
    /// Most tokens that prompt and answer may have together.
    fn context_cap(&self) -> usize;

    /// Queues a request. Events go to `sink`; dropping the ticket cancels it within one step.
    ///
    /// # Errors
    /// Refuses at once what can't be served: too long, malformed, queue full.
    fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, GenerateError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_ticket_cancels() {
        let (ticket, cancelled) = Ticket::new();
        assert!(!cancelled.load(Ordering::Acquire));
        drop(ticket);
        assert!(cancelled.load(Ordering::Acquire));
    }

    #[test]
    fn an_overlong_prompt_is_the_clients_fault() {
        let error = GenerateError::ContextOverBudget {
            prompt_tokens: 9,
            requested_tokens: 1,
            context_cap: 8,
            kv_bytes_per_token: 4,
        };
        assert_eq!(error.fault(), Fault::Client);
        assert!(!error.retryable());
        assert!(error.to_string().contains("maximum context length is 8 tokens"));
    }
}
