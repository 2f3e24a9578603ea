//! What the server needs of a model's tokenizer and chat template.

use serde_json::Value;

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
    fn apply_template(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, String>;
}
