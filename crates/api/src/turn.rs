//! One turn of a conversation, in no dialect: what every chat-like route parses its body into.

use serde_json::{Map, Value};

use crate::{Sampling, StreamOptions};

/// A checked request for the next message of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The model's name, if given.
    pub model: Option<String>,
    /// The conversation, ready for a chat template: an array of objects with `role` and a `content` that is a string.
    /// Assistant messages may have `reasoning_content` (a string) and `tool_calls`
    /// (`[{id, type: "function", function: {name, arguments}}]`, `arguments` an object); tool messages have
    /// `tool_call_id` and, where known, `name`.
    pub messages: Value,
    /// The tools on offer.
    pub tools: Vec<Tool>,
    /// Which of them must or may be called.
    pub tool_choice: ToolChoice,
    /// Names of the tools that may be called; `None` allows all. The others are shown to the model nevertheless, so
    /// that the prompt stays the same and its state can be reused.
    pub allowed_tools: Option<Vec<String>>,
    /// Whether one answer may call several.
    pub parallel_tool_calls: bool,
    /// What the text of the answer must look like.
    pub format: Format,
    /// How tokens are chosen and when to stop.
    pub sampling: Sampling,
    /// How much the model may think.
    pub reasoning: Reasoning,
    /// Further variables of the chat template, as the client named them.
    pub template_variables: Map<String, Value>,
    /// Independent answers to give (`n`).
    pub choices: usize,
    /// Log-probabilities of the answer's tokens, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// Conversation whose state is worth keeping.
    pub session: Option<String>,
    /// The last message is the assistant's own beginning, to be continued without a new header.
    pub continues: bool,
    /// How the answer is delivered.
    pub delivery: StreamOptions,
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_` and `-`, at most 64.
    pub name: String,
    /// What it does, for the model to read.
    pub description: Option<String>,
    /// JSON Schema of its arguments, an object schema.
    pub parameters: Value,
}

impl Tool {
    /// The form that chat templates expect.
    pub fn template_form(&self) -> Value {
        let mut function = serde_json::json!({"name": self.name});
        if let Some(description) = &self.description {
            function["description"] = Value::String(description.clone());
        }
        function["parameters"] = self.parameters.clone();
        serde_json::json!({"type": "function", "function": function})
    }
}

/// Whether tools are called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// Never.
    None,
    /// As the model likes.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What the text of an answer must look like.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Format {
    /// Anything.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that this schema allows.
    JsonSchema(Value),
    /// A text of this grammar, in Lark or GBNF notation.
    Grammar(String),
}

/// How much the model may think before it answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reasoning {
    /// Most tokens of thinking; the end of thinking is forced then. `Some(0)` lets it not think at all.
    pub budget: Option<usize>,
    /// Whether to think, for templates that can be told; `None` leaves it to the template.
    pub enabled: Option<bool>,
}
