//! Text in and out of a language model: tokenizers, incremental detokenization, stop strings and chat templates.
//!
//! A [`Tokenizer`] is built from a [`Vocabulary`] (the `tokenizer.ggml.*` metadata of a GGUF file) and does byte-level
//! BPE or SentencePiece-style BPE. A [`Detokenizer`] turns generated ids into text as they arrive, a [`StopMatcher`]
//! cuts that text at the first stop string, and a [`ChatTemplate`] renders a conversation to the prompt of a model. An
//! [`OutputParser`] takes what the model answers apart into thinking, text and tool calls.

mod byte_level;
mod chat_template;
mod detokenizer;
mod merge;
mod output;
mod pieces;
mod pre_tokenizer;
mod python_json;
mod sentencepiece;
mod stop_matcher;
mod strftime;
mod template_guard;
mod tokenizer;
mod vocabulary;

pub use chat_template::{ChatTemplate, ChatTemplateError};
pub use detokenizer::Detokenizer;
pub use output::{CallableTool, OutputEvent, OutputParser, OutputSetup, ThinkingMarks, ToolDialect};
pub use stop_matcher::{StopMatch, StopMatcher};
pub use tokenizer::{EncodeOptions, Tokenizer, TokenizerError};
pub use vocabulary::{TokenKind, Vocabulary, VocabularyModel};
