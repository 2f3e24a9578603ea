//! Tokenizer and chat template of one model, as the server and the commands use them.

use std::sync::Arc;

use lichen_server::Language;
use lichen_text::{ChatTemplate, EncodeOptions, Tokenizer};
use serde_json::{Map, Value};

/// Text to tokens and back, and conversations to text.
pub(crate) struct ModelLanguage {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
}

impl Language for ModelLanguage {
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_special, parse_special })
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(tokens)
    }

    fn apply_template(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let template = self
            .template
            .as_ref()
            .ok_or("the model has no chat template; use the route or the option for plain text")?;
        template
            .render(messages, tools, add_generation_prompt, &Map::new())
            .map_err(|error| error.to_string())
    }
}
