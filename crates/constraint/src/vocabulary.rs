//! The vocabulary as the grammar engine sees it.

use crate::GrammarError;
use std::collections::HashMap;
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Longest token that the trie can hold.
const MOST_TOKEN_BYTES: usize = 1000;
/// Most nodes of the trie, and so an upper bound of the bytes of all tokens.
const MOST_BYTES: usize = (1 << 22) - 1;
/// Tokens are numbered with 24 bits, and the largest number has a meaning of its own.
const MOST_TOKENS: usize = (1 << 24) - 2;

/// One token as the grammar engine sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenText {
    /// A piece of text; not necessarily whole characters.
    Bytes(Vec<u8>),
    /// A control token, never produced by a grammar except by name.
    Control(String),
}

/// All tokens of a model, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// Their texts.
    pub tokens: Vec<TokenText>,
    /// End-of-generation tokens; the first is the main one.
    pub end: Vec<u32>,
}

impl Vocabulary {
    /// The text that token number `token` adds to an answer that shows control tokens.
    pub(crate) fn text(&self, token: u32) -> &[u8] {
        match self.tokens.get(token as usize) {
            Some(TokenText::Bytes(bytes)) => bytes,
            Some(TokenText::Control(name)) => name.as_bytes(),
            None => &[],
        }
    }

    /// Control tokens by name; of equal names the first counts.
    pub(crate) fn control_tokens(&self) -> HashMap<String, u32> {
        let mut names = HashMap::new();
        for (number, token) in self.tokens.iter().enumerate() {
            if let TokenText::Control(name) = token {
                names.entry(name.clone()).or_insert(number as u32);
            }
        }
        names
    }

    pub(crate) fn environment(&self) -> Result<TokEnv, GrammarError> {
        let error = |reason: String| Err(GrammarError::Vocabulary(reason));
        if self.tokens.len() > MOST_TOKENS {
            return error(format!("it has {} tokens, at most {MOST_TOKENS} are possible", self.tokens.len()));
        }
        let Some(&main) = self.end.first() else {
            return error("it has no end-of-generation token".to_owned());
        };
        if let Some(token) = self.end.iter().find(|&&token| token as usize >= self.tokens.len()) {
            return error(format!("end-of-generation token {token} is not one of {}", self.tokens.len()));
        }
        let words: Vec<Vec<u8>> = (0..self.tokens.len() as u32).map(|token| self.word(token)).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if bytes > MOST_BYTES {
            return error(format!("its tokens have {bytes} bytes, at most {MOST_BYTES} are possible"));
        }
        let info = TokRxInfo::new(self.tokens.len() as u32, main);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&self.end);
        Ok(Arc::new(ApproximateTokEnv::new(trie)))
    }

    /// A token as the trie has it: control tokens begin with a byte that no UTF-8 text has.
    fn word(&self, token: u32) -> Vec<u8> {
        let text = self.text(token);
        let is_control =
            matches!(self.tokens[token as usize], TokenText::Control(_)) || self.end.contains(&token);
        let is_text =
            !is_control && text.len() <= MOST_TOKEN_BYTES && !text.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        if is_control && text.len() < MOST_TOKEN_BYTES {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], text].concat()
        } else if is_text {
            text.to_vec()
        } else {
            Vec::new()
        }
    }
}
