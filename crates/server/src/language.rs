//! What the server needs of a model's tokenizer and chat template.

use serde_json::{Map, Value};

/// A conversation for a chat template.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// The messages, in the form that templates expect.
    pub messages: &'a Value,
    /// The tools on offer.
    pub tools: Option<&'a Value>,
    /// Whether the header of the assistant's next message is wanted.
    pub add_generation_prompt: bool,
    /// Further variables.
    pub variables: &'a Map<String, Value>,
}

/// Text to tokens and back, and conversations to text.
pub trait Language: Send + Sync {
    /// Tokens of a text.
    ///
    /// `add_special` adds what the model expects around a prompt; `parse_special` reads the names of special tokens
    /// in the text as those tokens.
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32>;

    /// Text of tokens; unknown ids and broken characters become U+FFFD.
    fn decode(&self, tokens: &[u32]) -> String;

    /// Renders the model's chat template.
    ///
    /// # Errors
    /// The template's own complaint, for the user to read.
    fn apply_template(&self, conversation: Conversation<'_>) -> Result<String, String>;

    /// The source of the chat template: it shows how the model writes thinking and tool calls.
    fn template_source(&self) -> Option<&str>;

    /// How many tokens there are.
    fn vocabulary_size(&self) -> usize;

    /// What a token writes; the name of a control token.
    fn token_bytes(&self, token: u32) -> &[u8];

    /// Whether a token is a mark that is no text.
    fn is_control(&self, token: u32) -> bool;

    /// The tokens that end an answer, the usual one first.
    fn end_tokens(&self) -> Vec<u32>;
}
