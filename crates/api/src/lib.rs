//! Wire types of the OpenAI-compatible API and the pure checks on them: no sockets, no tokens, no model.
//!
//! Bodies are read field by field, so that a refusal names the field. Unknown fields are ignored, because clients
//! send many; fields whose meaning would be lost by ignoring them are refused.

mod blocks;
mod chat;
mod chat_encoder;
mod chat_messages;
mod chat_tools;
mod completion;
mod completion_encoder;
mod effort;
mod embeddings;
mod error;
mod event;
mod fields;
mod messages;
mod messages_blocks;
mod messages_encoder;
mod messages_error;
mod model;
mod nested;
mod nonce;
mod responses;
mod responses_encoder;
mod responses_input;
mod responses_output;
mod sampling;
mod turn;
mod turn_size;
mod unsupported;
mod usage;

pub use chat::parse_chat;
pub use chat_encoder::ChatEncoder;
pub use chat_messages::check_messages;
pub use completion::{CompletionRequest, Prompt};
pub use completion_encoder::{CompletionEncoder, CompletionLogprobs};
pub use embeddings::{EmbeddingRequest, embeddings};
pub use error::Error;
pub use event::{Call, Encoder, Finish, Piece, Reply, Sse, TokenLogprob};
pub use fields::Fields;
pub use messages::{parse_count_tokens, parse_messages, token_count};
pub use messages_encoder::MessagesEncoder;
pub use messages_error::{anthropic_error, anthropic_status};
pub use model::ModelCard;
pub use nonce::without_nonce;
pub use responses::{ResponsesRequest, parse_responses};
pub use responses_encoder::{ResponseEnvelope, ResponsesEncoder};
pub use responses_input::assistant_message;
pub use sampling::{Sampling, StreamOptions};
pub use turn::{Format, Reasoning, Tool, ToolChoice, Turn};
pub use turn_size::{TurnMemory, TurnSize};
pub use usage::Usage;
