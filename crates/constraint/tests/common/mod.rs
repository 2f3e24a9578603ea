//! A small vocabulary, and ways to drive a constraint with it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use lichen_constraint::{Grammar, GrammarCompiler, TokenText, Vocabulary};
use lichen_generate::Constraint;

/// Token that opens a call, a control token.
pub(crate) const CALL: u32 = 256;
/// The end-of-generation tokens.
pub(crate) const END: [u32; 2] = [257, 258];
/// Pieces of text that are longer than a byte.
const PIECES: [&str; 12] = ["{\"", "\":", ", ", ": ", "true", "\",", "}}", "12", "ab", "é", "\"}", "[["];

/// All bytes, some control tokens, and some longer pieces.
pub(crate) fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<TokenText> = (0..=u8::MAX).map(|byte| TokenText::Bytes(vec![byte])).collect();
    tokens.extend(["<call>", "<end>", "<end of turn>"].map(|name| TokenText::Control(name.to_owned())));
    tokens.extend(PIECES.map(|piece| TokenText::Bytes(piece.as_bytes().to_vec())));
    Vocabulary { tokens, end: END.to_vec() }
}

pub(crate) fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(vocabulary()).unwrap()
}

/// Tokens that may come next.
pub(crate) fn allowed(constraint: &mut dyn Constraint) -> Vec<u32> {
    let mut logits = vec![0.0; vocabulary().tokens.len()];
    constraint.mask(&mut logits).unwrap();
    (0..logits.len() as u32).filter(|&token| logits[token as usize] == 0.0).collect()
}

/// Whether all of `text` is allowed, byte by byte, and may end there.
pub(crate) fn follows(mut constraint: Box<dyn Constraint>, text: &str) -> bool {
    text.bytes().all(|byte| constraint.accept(u32::from(byte)).is_ok()) && constraint.accept(END[0]).is_ok()
}

/// As [`follows`], from a grammar.
pub(crate) fn accepts(grammar: &Grammar, text: &str) -> bool {
    follows(compiler().compile(grammar).unwrap(), text)
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Chooses allowed tokens by chance until an end token comes; `None` if it does not come in time.
pub(crate) fn walk(constraint: &mut dyn Constraint, random: &mut Random) -> Option<String> {
    let tokens = vocabulary().tokens;
    let patience = 10 + random.below(60);
    let mut text = Vec::new();
    for step in 0..400 {
        let choices = allowed(constraint);
        let ending = choices.iter().copied().find(|token| END.contains(token));
        let closing = b"\"}]".iter().map(|&byte| u32::from(byte)).find(|byte| choices.contains(byte));
        let chosen = choices[random.below(choices.len())];
        let token = if step > patience { ending.or(closing).unwrap_or(chosen) } else { chosen };
        constraint.accept(token).unwrap();
        match &tokens[token as usize] {
            _ if END.contains(&token) => return Some(String::from_utf8(text).unwrap()),
            TokenText::Bytes(bytes) => text.extend_from_slice(bytes),
            TokenText::Control(name) => text.extend_from_slice(name.as_bytes()),
        }
    }
    None
}

/// Reads what a walk wrote, which must be JSON; `None` if it has a number that the reader rounds or has no
/// room for.
pub(crate) fn read(text: &str) -> Option<serde_json::Value> {
    let is_rounded = text.split(|other: char| !other.is_ascii_digit()).any(|digits| digits.len() > 15);
    match serde_json::from_str(text) {
        Ok(instance) => (!is_rounded).then_some(instance),
        Err(reason) => {
            assert!(reason.to_string().contains("number out of range"), "{text}: {reason}");
            None
        }
    }
}
