//! What is asked for.

use std::fmt;
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
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
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
            logit_bias: Vec::new(),
            seed: None,
        }
    }
}

/// Limits what may come next, token by token, to what some grammar allows.
pub trait Constraint: fmt::Debug + Send {
    /// Sets the logits of tokens that may not come next to minus infinity.
    ///
    /// # Errors
    /// A limit of the grammar engine was reached; the text for the user to read.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes note of the token that came.
    ///
    /// # Errors
    /// It was not allowed, or as [`Constraint::mask`].
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// A copy in the same state.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.fork()
    }
}

/// Thinking that is to be watched: how it begins and ends in the text, and how long it may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Thinking {
    /// Text that begins it, unless the prompt has begun it already.
    pub open: String,
    /// Text that ends it.
    pub close: String,
    /// The prompt ends within it.
    pub begun: bool,
    /// After this many tokens of thinking `closing` is forced.
    pub budget: Option<usize>,
    /// Tokens that end it.
    pub closing: Vec<u32>,
}

/// How the hidden states of an input become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Their mean over all tokens.
    #[default]
    Mean,
    /// The first token's.
    First,
    /// The last token's.
    Last,
}

/// What is wanted of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// A continuation.
    #[default]
    Generate,
    /// One vector of length 1 for all of it.
    Embed(Pooling),
}

/// One generation.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// What is wanted.
    pub task: Task,
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
    /// What the answer must look like, from the end of thinking on.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Report log-probabilities, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// Thinking to watch.
    pub thinking: Option<Thinking>,
    /// Control tokens whose text is part of the answer, for parsers that look for it.
    pub visible: Vec<u32>,
    /// The conversation that this belongs to; its state is kept longer.
    pub session: Option<u64>,
    /// Who asks: askers get equal shares.
    pub key: u64,
    /// Higher goes first.
    pub priority: i8,
    /// After this time an answer is not wanted any more.
    pub deadline: Option<Duration>,
}
