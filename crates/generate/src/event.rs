//! What is answered.

use crate::GenerateError;
use std::time::Duration;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn.
    Stop,
    /// The stop text of this number came.
    StopText(usize),
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
    /// Of these, tokens of thinking.
    pub thinking_tokens: usize,
    /// Of these, tokens that were guessed and verified.
    pub accepted_tokens: usize,
    /// The coarsest precision that its keys and values were stored in, if memory was too short for the usual one.
    pub reduced_kv: Option<&'static str>,
    /// From submission to the first step on the prompt.
    pub queue_time: Duration,
    /// From submission to the first generated token.
    pub time_to_first_token: Duration,
    /// From the first to the last generated token.
    pub decode_time: Duration,
}

/// How likely a token was, before penalties, temperature and constraint.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens at this place, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// What a generation reports, in order: progress, then text, then exactly one `Finished` or `Failed`.
#[derive(Debug, Clone)]
pub enum Event {
    /// It waits until others have ended; nothing but its own deadline ends that.
    Waiting,
    /// Prompt tokens processed so far, of all.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More of the answer.
    Text {
        /// Whole characters only; empty while characters or possible stop texts are held back.
        text: String,
        /// Log-probabilities of the tokens since the last event, if asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// The vector, of length 1, before `Finished`.
    Embedding(Vec<f32>),
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
