//! Tokenizer and chat template of one model, as the server and the commands use them.

use std::sync::Arc;

use lichen_server::{Conversation, Language};
use lichen_text::{ChatTemplate, EncodeOptions, Tokenizer};

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

    fn apply_template(&self, conversation: Conversation<'_>) -> Result<String, String> {
        let template = self
            .template
            .as_ref()
            .ok_or("the model has no chat template; use the route or the option for plain text")?;
        let Conversation { messages, tools, add_generation_prompt, variables } = conversation;
        template.render(messages, tools, add_generation_prompt, variables).map_err(|error| error.to_string())
    }

    fn template_source(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::source)
    }

    fn vocabulary_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    fn token_bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.piece_bytes(token)
    }

    fn is_control(&self, token: u32) -> bool {
        self.tokenizer.is_control(token)
    }

    fn end_tokens(&self) -> Vec<u32> {
        let tokens = 0..u32::try_from(self.tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let others = tokens.filter(|&token| self.tokenizer.is_end_of_generation(token));
        let usual = self.tokenizer.eos();
        usual.into_iter().chain(others.filter(|token| Some(*token) != usual)).collect()
    }
}
