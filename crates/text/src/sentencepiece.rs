//! SentencePiece-style BPE: merges ordered by the scores of the pieces, with bytes for what has no piece.

use crate::merge::{NO_ID, Symbol, merge};
use crate::pieces::{PieceIndex, Pieces};
use crate::vocabulary::{TokenKind, Vocabulary};

/// SentencePiece's visible space, U+2581.
pub(crate) const SPACE: &str = "\u{2581}";

/// BPE over characters, by score.
#[derive(Debug)]
pub(crate) struct SentencePieceBpe {
    /// Tokens as they are spelled, with U+2581 for spaces.
    pieces: Pieces,
    /// Those of them that text is made of.
    ids: PieceIndex,
    /// The priority of a merge that results in a token (lower is earlier).
    priorities: Vec<u32>,
    /// Bytes of the longest piece: nothing longer has to be looked up.
    longest: usize,
    /// The id of the token of each byte, or [`NO_ID`].
    bytes: Box<[u32; 256]>,
    unk: Option<u32>,
}

impl SentencePieceBpe {
    pub(crate) fn new(vocabulary: &Vocabulary<'_>) -> Self {
        let kind = |id: u32| vocabulary.kinds.get(id as usize).copied().unwrap_or(TokenKind::Normal);
        let is_text =
            |id: u32| matches!(kind(id), TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
        let (mut pieces, mut longest) = (Pieces::default(), 0);
        let mut bytes = Box::new([NO_ID; 256]);
        for (id, token) in (0..).zip(&vocabulary.tokens) {
            pieces.push(|bytes| bytes.extend_from_slice(token.as_bytes()));
            if is_text(id) {
                longest = longest.max(token.len());
            }
            if kind(id) == TokenKind::Byte
                && let Some(byte) = byte_of_token(token)
            {
                bytes[usize::from(byte)] = id;
            }
        }
        let ids = PieceIndex::new(&pieces, is_text);
        let priorities = vocabulary.scores.iter().map(|&score| priority(score)).collect();
        Self { pieces, ids, priorities, longest, bytes, unk: vocabulary.unk }
    }

    /// Appends the ids of `text`, whose spaces are U+2581 already.
    pub(crate) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let lookup = |start: usize, len: usize| {
            if len > self.longest {
                return None;
            }
            let id = self.ids.get(&self.pieces, &text.as_bytes()[start..start + len])?;
            Some((self.priorities[id as usize], id))
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
