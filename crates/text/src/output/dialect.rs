//! How models write tool calls, and what is known of the tools.

use std::fmt::Debug;

use serde_json::Value;

use super::events::Events;
use super::hermes::{self, HermesReader};
use super::json::{self, JsonReader};
use super::llama3::{self, Llama3Reader};
use super::mistral::{self, MistralReader};
use super::qwen3_coder::{self, Qwen3CoderReader};

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolDialect {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen and many others.
    Hermes,
    /// `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or not: Llama 3.1 and later.
    Llama3,
    /// `[TOOL_CALLS]` and an array of calls, or a name and arguments: Mistral.
    Mistral,
    /// `<tool_call><function=…><parameter=…>…`: Qwen3-Coder and later Qwen.
    Qwen3Coder,
    /// An object with a name and arguments, or an array of such, as the whole answer: any other model.
    Json,
}

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallableTool {
    /// Name by which it is called.
    pub name: String,
    /// JSON Schema of the arguments, an object. Null or no properties: the tool takes none.
    pub parameters: Value,
}

pub(super) fn is_on_offer(tools: &[CallableTool], name: &str) -> bool {
    tools.iter().any(|tool| tool.name == name)
}

/// Reads an answer of one dialect. What is told depends on the characters alone, not on how they arrive.
pub(super) trait AnswerReader: Debug + Send {
    fn push(&mut self, c: char, events: &mut Events);

    /// Tells what was held back, at the end of the answer.
    fn finish(&mut self, events: &mut Events);

    /// Whether no call is being read.
    fn in_text(&self) -> bool;
}

impl ToolDialect {
    /// The dialect that a chat template's source shows by its marks.
    pub fn of_template(source: &str) -> Self {
        let has = |text: &str| source.contains(text);
        let llama = has("<|start_header_id|>") && has("\"parameters\"");
        match () {
            () if has(hermes::OPEN) && has(qwen3_coder::FUNCTION) => Self::Qwen3Coder,
            () if has(hermes::OPEN) => Self::Hermes,
            () if has(mistral::CALLS) => Self::Mistral,
            () if has(llama3::TAG) || llama => Self::Llama3,
            () => Self::Json,
        }
    }

    /// Texts that a model may emit as control tokens and that [`OutputParser`](super::OutputParser) has to
    /// see.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Hermes | Self::Qwen3Coder => &[hermes::OPEN, hermes::CLOSE],
            Self::Llama3 => &[llama3::TAG],
            Self::Mistral => &[mistral::CALLS, mistral::ARGUMENTS, mistral::CALL_ID],
            Self::Json => &[],
        }
    }

    /// The text that begins a call, after which [`ToolDialect::grammar`] holds. Calls of Llama 3 may come
    /// without it, and [`ToolDialect::Json`] has none.
    pub fn trigger(self) -> Option<&'static str> {
        self.marks().first().copied()
    }

    /// Whether calls always begin with the trigger, so that no JSON text can be taken for one.
    pub fn marks_every_call(self) -> bool {
        match self {
            Self::Hermes | Self::Mistral | Self::Qwen3Coder => true,
            Self::Llama3 | Self::Json => false,
        }
    }

    /// A Lark grammar, in the dialect of llguidance, that lets only well-formed calls of these tools through:
    /// one, or with `several` one or more. `begun`: the trigger has been written already. `mark` writes a
    /// mark in Lark, as a quoted text or a reference to a control token. Without tools nothing is let
    /// through.
    pub fn grammar(
        self,
        tools: &[CallableTool],
        several: bool,
        begun: bool,
        mark: &dyn Fn(&str) -> String,
    ) -> String {
        match self {
            _ if tools.is_empty() => "start: \"\"\n".to_owned(),
            Self::Hermes => hermes::grammar(tools, several, begun, mark),
            Self::Llama3 => llama3::grammar(tools, several, begun, mark),
            Self::Mistral => mistral::grammar(tools, several, begun, mark),
            Self::Qwen3Coder => qwen3_coder::grammar(tools, several, begun, mark),
            Self::Json => json::grammar(tools, several),
        }
    }

    pub(super) fn reader(self, tools: Vec<CallableTool>) -> Box<dyn AnswerReader> {
        match self {
            Self::Hermes => Box::new(HermesReader::new(tools)),
            Self::Llama3 => Box::new(Llama3Reader::new(tools)),
            Self::Mistral => Box::new(MistralReader::new(tools)),
            Self::Qwen3Coder => Box::new(Qwen3CoderReader::new(tools)),
            Self::Json => Box::new(JsonReader::new(tools)),
        }
    }
}
