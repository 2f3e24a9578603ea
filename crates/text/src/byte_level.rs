//! Byte-level BPE: every byte is a character of the vocabulary's own alphabet.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use unicode_normalization::UnicodeNormalization;

use crate::merge::{NO_ID, Symbol, merge};
use crate::pieces::{PieceIndex, Pieces};
use crate::pre_tokenizer::PreTokenizer;
use crate::tokenizer::TokenizerError;
use crate::vocabulary::{TokenKind, Vocabulary};

/// Byte-level BPE as of GPT-2, with a pre-tokenizer.
#[derive(Debug)]
pub(crate) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    /// The id of the token of each single byte, or [`NO_ID`].
    bytes: Box<[u32; 256]>,
    /// Two ids to the rank of their merge and the id of the result.
    merges: HashMap<(u32, u32), (u32, u32), RandomState>,
    /// Tokens by their bytes, if whole words are looked up.
    words: Option<PieceIndex>,
    unk: Option<u32>,
}

impl ByteLevelBpe {
    pub(crate) fn new(
        vocabulary: &Vocabulary<'_>,
        pre_tokenizer: PreTokenizer,
        pieces: &Pieces,
    ) -> Result<Self, TokenizerError> {
        let mut ids: HashMap<&str, u32, _> =
            HashMap::with_capacity_and_hasher(vocabulary.tokens.len(), RandomState::default());
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            ids.entry(&**token).or_insert(id);
        }
        let mut merges = HashMap::with_capacity_and_hasher(vocabulary.merges.len(), RandomState::default());
        let mut whole = String::new();
        for (rank, line) in (0..).zip(&vocabulary.merges) {
            let entry = merge_entry(&ids, line, &mut whole)
                .ok_or_else(|| TokenizerError::Merge { line: line.to_string() })?;
            merges.entry(entry.0).or_insert((rank, entry.1));
        }
        let mut bytes = Box::new([NO_ID; 256]);
        for byte in 0..=255u8 {
            let mut text = [0; 4];
            if let Some(&id) = ids.get(&*char_of_byte(byte).encode_utf8(&mut text)) {
                bytes[usize::from(byte)] = id;
            }
        }
        let normal =
            |id: u32| vocabulary.kinds.get(id as usize).is_none_or(|&kind| kind == TokenKind::Normal);
        let words = pre_tokenizer.whole_words.then(|| PieceIndex::new(pieces, normal));
        Ok(Self { pre_tokenizer, bytes, merges, words, unk: vocabulary.unk })
    }

    /// Appends the ids of `text`, in which no added token is looked for. The pieces are those that it was made with.
    pub(crate) fn encode(&self, text: &str, pieces: &Pieces, ids: &mut Vec<u32>) {
        if self.pre_tokenizer.nfc && !unicode_normalization::is_nfc(text) {
            let text: String = text.nfc().collect();
            self.pre_tokenizer.split(&text, |word| self.encode_word(word.as_bytes(), pieces, ids));
        } else {
            self.pre_tokenizer.split(text, |word| self.encode_word(word.as_bytes(), pieces, ids));
        }
    }

    fn encode_word(&self, word: &[u8], pieces: &Pieces, ids: &mut Vec<u32>) {
        if let Some(id) = self.words.as_ref().and_then(|words| words.get(pieces, word)) {
            ids.push(id);
            return;
        }
        let mut symbols: Vec<Symbol> = word
            .iter()
            .enumerate()
            .map(|(start, &byte)| Symbol { start, len: 1, id: self.bytes[usize::from(byte)] })
            .collect();
        merge(&mut symbols, |a, b| self.merges.get(&(a.id, b.id)).copied());
        for symbol in symbols {
            // A byte without a token: only in a broken vocabulary.
            ids.extend(if symbol.id == NO_ID { self.unk } else { Some(symbol.id) });
        }
    }
}

/// The ids of the two sides of a merge, and of the result; `whole` is space for its text.
fn merge_entry(
    ids: &HashMap<&str, u32, RandomState>,
    line: &str,
    whole: &mut String,
) -> Option<((u32, u32), u32)> {
    let (left, right) = line.split_once(' ')?;
    whole.clear();
    whole.extend([left, right]);
    Some(((*ids.get(left)?, *ids.get(right)?), *ids.get(whole.as_str())?))
}

/// The character that stands for a byte: itself if it is printable in Latin-1, else the next one from U+0100 on.
fn char_of_byte(byte: u8) -> char {
    let shift = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => return char::from(byte),
        0..=0x20 => u32::from(byte),
        0x7F..=0xA0 => u32::from(byte) - 0x7F + 0x21,
        0xAD => 0x43,
    };
    char::from_u32(0x100 + shift).expect("U+0100 to U+0143 are characters")
}

/// Appends the bytes that a token of the vocabulary stands for; characters outside the byte alphabet stand for
/// themselves.
pub(crate) fn token_bytes(token: &str, bytes: &mut Vec<u8>) {
    for c in token.chars() {
        match u32::from(c) {
            code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => bytes.push(code as u8),
            code @ 0x100..=0x120 => bytes.push((code - 0x100) as u8),
            code @ 0x121..=0x142 => bytes.push((code - 0x121 + 0x7F) as u8),
            0x143 => bytes.push(0xAD),
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_the_alphabet() {
        for byte in 0..=255u8 {
            let mut bytes = Vec::new();
            token_bytes(&char_of_byte(byte).to_string(), &mut bytes);
            assert_eq!(bytes, [byte]);
        }
    }
}
