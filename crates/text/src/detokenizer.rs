//! Text from token ids, as they arrive.

use crate::tokenizer::Tokenizer;

/// Turns generated ids into text one by one, and holds back the bytes of a character until it is complete.
#[derive(Debug)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    visible: Vec<u32>,
    pending: Vec<u8>,
    /// What the last token completed.
    text: String,
}

impl<'t> Detokenizer<'t> {
    /// Starts at the end of a prompt: nothing is pending.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, visible: Vec::new(), pending: Vec::new(), text: String::new() }
    }

    /// Shows the text of these control tokens too.
    #[must_use]
    pub fn showing(mut self, visible: Vec<u32>) -> Self {
        self.visible = visible;
        self
    }

    /// The text that is complete with this token; may be empty. Control tokens give nothing, and bytes that can not
    /// become a character give U+FFFD.
    pub fn push(&mut self, id: u32) -> &str {
        let bytes = if self.visible.contains(&id) {
            self.tokenizer.piece_bytes(id)
        } else {
            self.tokenizer.visible_bytes(id)
        };
        self.pending.extend_from_slice(bytes);
        let complete = complete_len(&self.pending);
        self.text.clear();
        self.text.push_str(&String::from_utf8_lossy(&self.pending[..complete]));
        self.pending.drain(..complete);
        &self.text
    }

    /// The text of what was held back, U+FFFD for half a character, at the end of a generation.
    pub fn flush(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// How many bytes come before a character that is begun but not finished at the end.
fn complete_len(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        // An invalid end is a begun character if completing it is possible, which `from_utf8` tells.
        Some(chunk) if !chunk.invalid().is_empty() => {
            let invalid = chunk.invalid();
            match std::str::from_utf8(invalid) {
                Err(error) if error.error_len().is_none() => bytes.len() - invalid.len(),
                _ => bytes.len(),
            }
        }
        _ => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TokenKind, Vocabulary, VocabularyModel};

    fn bytes_only() -> Tokenizer {
        Tokenizer::new(Vocabulary {
            model: VocabularyModel::SentencePiece,
            pre: String::new(),
            tokens: (0..256).map(|byte| format!("<0x{byte:02X}>").into()).collect(),
            scores: vec![0.0; 256],
            kinds: vec![TokenKind::Byte; 256],
            merges: Vec::new(),
            bos: None,
            eos: None,
            eot: None,
            unk: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            strip_after_control: false,
        })
        .unwrap()
    }

    #[test]
    fn gives_whole_characters_only() {
        let tokenizer = bytes_only();
        let mut detokenizer = Detokenizer::new(&tokenizer);
        let parts: Vec<String> =
            "a🙂é".bytes().map(|byte| detokenizer.push(byte.into()).to_owned()).collect();
        assert_eq!(parts, ["a", "", "", "", "🙂", "", "é"]);
        assert_eq!(detokenizer.flush(), "");
    }

    #[test]
    fn replaces_what_can_not_become_a_character() {
        let tokenizer = bytes_only();
        let mut detokenizer = Detokenizer::new(&tokenizer);
        assert_eq!(detokenizer.push(0xFF), "\u{FFFD}");
        assert_eq!(detokenizer.push(0xE2), "");
        assert_eq!(detokenizer.push(0x41), "\u{FFFD}A");
        assert_eq!(detokenizer.push(0xE2), "");
        assert_eq!(detokenizer.flush(), "\u{FFFD}");
        assert_eq!(detokenizer.push(99_999), "");
    }
}
