//! Wire types of the OpenAI-compatible API and the pure checks on them: no sockets, no tokens, no model.
//!
//! Bodies are read field by field, so that a refusal names the field. Unknown fields are ignored, because clients
//! send many; fields whose meaning would be lost by ignoring them are refused.

mod answer;
mod chat;
mod completion;
mod embeddings;
mod error;
mod event;
mod fields;
mod model;
mod sampling;
mod turn;

pub use answer::{Answer, Shape, Usage};
pub use chat::{ChatRequest, check_messages};
pub use completion::{CompletionRequest, Prompt};
pub use embeddings::{EmbeddingRequest, embeddings};
pub use error::Error;
pub use event::{Call, Encoder, Finish, Piece, Reply, Sse, TokenLogprob};
pub use fields::Fields;
pub use model::ModelCard;
pub use sampling::{Sampling, StreamOptions};
pub use turn::{Format, Reasoning, Tool, ToolChoice, Turn};
