//! The internal stream of an answer: what engine and parsers produce and every dialect encodes.

use crate::{Error, Usage};
use serde_json::Value;

/// A piece of one answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// More thinking.
    Reasoning(String),
    /// More text, with the log-probabilities of its tokens if they were asked for.
    Text {
        /// Whole characters; may be empty while tokens are held back.
        text: String,
        /// One entry a token.
        logprobs: Vec<TokenLogprob>,
    },
    /// A tool call begins.
    ToolStart {
        /// Which call of this answer, from 0.
        index: usize,
        /// Unique name of the call.
        id: String,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments.
    ToolArguments {
        /// Which call.
        index: usize,
        /// JSON text; the fragments of a call make one JSON object.
        fragment: String,
    },
}

/// A token's log-probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token's text.
    pub token: String,
    /// Its bytes, which `token` can't always show.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens at this place.
    pub top: Vec<(String, Vec<u8>, f32)>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn.
    Stop,
    /// This stop text came.
    StopText(String),
    /// The limit of tokens was reached.
    Length,
    /// The model waits for the results of its tool calls.
    ToolCalls,
}

impl Finish {
    /// The reason in OpenAI's words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop | Self::StopText(_) => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// One answer put together from its pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The thinking.
    pub reasoning: String,
    /// The text.
    pub text: String,
    /// Log-probabilities of the text's tokens.
    pub logprobs: Vec<TokenLogprob>,
    /// The tool calls in order.
    pub calls: Vec<Call>,
    /// Why it ended; `None` while it goes on.
    pub finish: Option<Finish>,
}

/// A tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// Unique name of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl Reply {
    /// Adds a piece.
    pub fn push(&mut self, piece: Piece) {
        match piece {
            Piece::Reasoning(more) => self.reasoning.push_str(&more),
            Piece::Text { text, logprobs } => {
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Piece::ToolStart { id, name, .. } => {
                self.calls.push(Call { id, name, arguments: String::new() });
            }
            Piece::ToolArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
}

/// One server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sse {
    /// The event's name, where the dialect has names.
    pub event: Option<&'static str>,
    /// One line of data.
    pub data: String,
}

impl Sse {
    /// An event without a name.
    pub fn data(value: &Value) -> Self {
        Self { event: None, data: value.to_string() }
    }

    /// The mark at the end of OpenAI's streams.
    pub fn done() -> Self {
        Self { event: None, data: "[DONE]".into() }
    }

    /// An event with a name.
    pub fn named(event: &'static str, value: &Value) -> Self {
        Self { event: Some(event), data: value.to_string() }
    }
}

/// Turns the answers to one request into a dialect, whole or as a stream.
///
/// A stream is `start`, then for each choice any number of `piece` and one `end` (choices may be interleaved), then
/// `finish`; `error` may come instead of anything after `start` and ends the stream.
pub trait Encoder: Send {
    /// The events before the first piece; they go out before the prompt is processed.
    fn start(&mut self, prompt_tokens: usize) -> Vec<Sse>;
    /// The events of one piece of one choice.
    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse>;
    /// The events of the end of one choice.
    fn end(&mut self, choice: usize, finish: Finish) -> Vec<Sse>;
    /// The events after the end of all choices.
    fn finish(&mut self, usage: Usage) -> Vec<Sse>;
    /// The events that report a failure in the middle of the stream.
    fn error(&mut self, error: &Error) -> Vec<Sse>;
    /// What is sent during a silence; `None` for a comment.
    fn ping(&self) -> Option<Sse> {
        None
    }
    /// The body of an answer that is not streamed, one reply per choice.
    fn whole(&self, replies: &[Reply], usage: Usage) -> Value;
    /// The body of an error in this dialect.
    fn error_body(&self, error: &Error) -> Value {
        error.body()
    }
}
