//! SentencePiece-style BPE: merges ordered by the scores of the pieces, with bytes for what has no piece.

use std::collections::HashMap;

use crate::merge::{NO_ID, Symbol, merge};
use crate::vocabulary::{TokenKind, Vocabulary};

/// SentencePiece's visible space, U+2581.
pub(crate) const SPACE: &str = "\u{2581}";

/// BPE over characters, by score.
#[derive(Debug)]
pub(crate) struct SentencePieceBpe {
    /// Pieces to the priority of a merge that results in them (lower is earlier) and their id.
    pieces: HashMap<Box<str>, (u32, u32)>,
    /// Bytes of the longest piece: nothing longer has to be looked up.
    longest: usize,
    /// The id of the token of each byte, or [`NO_ID`].
    bytes: Box<[u32; 256]>,
    unk: Option<u32>,
}

impl SentencePieceBpe {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Self {
        let mut pieces: HashMap<Box<str>, _> = HashMap::with_capacity(vocabulary.tokens.len());
        let mut bytes = Box::new([NO_ID; 256]);
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            let index = id as usize;
            match vocabulary.kinds.get(index).copied().unwrap_or(TokenKind::Normal) {
                TokenKind::Byte => {
                    if let Some(byte) = byte_of_token(token) {
                        bytes[usize::from(byte)] = id;
                    }
                }
                TokenKind::Control | TokenKind::Unknown => {}
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused => {
                    let score = vocabulary.scores.get(index).copied().unwrap_or(0.0);
                    pieces.entry(token.as_str().into()).or_insert((priority(score), id));
                }
            }
        }
        let longest = pieces.keys().map(|piece| piece.len()).max().unwrap_or(0);
        Self { pieces, longest, bytes, unk: vocabulary.unk }
    }

    /// Appends the ids of `text`, whose spaces are U+2581 already.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let lookup = |start: usize, len: usize| {
            if len > self.longest { None } else { self.pieces.get(&text[start..start + len]).copied() }
        };
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .map(|(start, c)| {
                let len = c.len_utf8();
                Symbol { start, len, id: lookup(start, len).map_or(NO_ID, |(_, id)| id) }
            })
            .collect();
        merge(&mut symbols, |a, b| lookup(a.start, a.len + b.len));
        for symbol in symbols {
            if symbol.id != NO_ID {
                ids.push(symbol.id);
                continue;
            }
            for byte in text[symbol.start..symbol.start + symbol.len].bytes() {
                let id = self.bytes[usize::from(byte)];
                ids.extend(if id == NO_ID { self.unk } else { Some(id) });
            }
        }
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Maps scores to integers in reverse order: the highest score is merged first.
fn priority(score: f32) -> u32 {
    // Adding zero turns -0.0 into 0.0. The bits of a float order like an integer once negative ones are inverted.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_scores_come_first() {
        let scores = [3.5, 0.0, -0.5, -1.0, -1e6, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| priority(pair[0]) < priority(pair[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
