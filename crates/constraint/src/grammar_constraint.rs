//! A compiled grammar at work.

use crate::Vocabulary;
use crate::error::engine_reason;
use crate::trigger::Trigger;
use lichen_generate::Constraint;
use llguidance::Matcher;
use std::fmt;
use std::sync::Arc;
use toktrie::SimpleVob;

/// Tokens per word of a mask.
const WORD_BITS: usize = u32::BITS as usize;

/// Follows one of several grammars through one answer: whichever still fits what was generated.
#[derive(Clone)]
pub(crate) struct GrammarConstraint {
    vocabulary: Arc<Vocabulary>,
    /// One for each grammar that the answer may still be of; never empty.
    matchers: Vec<Matcher>,
    /// What it still waits for.
    trigger: Option<Trigger>,
    /// An end-of-generation token has come.
    ended: bool,
}

impl GrammarConstraint {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, matchers: Vec<Matcher>, trigger: Option<Trigger>) -> Self {
        Self { vocabulary, matchers, trigger, ended: false }
    }

    /// Whether a text is complete and nothing can follow it.
    fn is_complete(&self) -> Result<bool, String> {
        match self.matchers.iter().find_map(Matcher::get_error) {
            Some(reason) => Err(engine_reason(&reason)),
            None => Ok(self.ended || self.matchers.iter().all(Matcher::is_stopped)),
        }
    }

    fn may_end(&mut self) -> Result<bool, String> {
        let mut may_end = self.is_complete()?;
        for matcher in &mut self.matchers {
            may_end |= matcher.is_stopped() || matcher.is_accepting().map_err(told)?;
        }
        Ok(may_end)
    }

    /// The tokens that any of the grammars allows.
    fn allowed(&mut self) -> Result<SimpleVob, String> {
        let mut union: Option<SimpleVob> = None;
        for matcher in &mut self.matchers {
            // Of a complete text this gives the end of generation.
            let mask = matcher.compute_mask_or_eos().map_err(told)?;
            match &mut union {
                Some(union) => union.or(&mask),
                None => union = Some(mask),
            }
        }
        Ok(union.unwrap_or_default())
    }

    /// Goes on with the grammars that allow `token`.
    fn consume(&mut self, token: u32) -> Result<(), String> {
        let mut fits = Vec::with_capacity(self.matchers.len());
        for matcher in &mut self.matchers {
            fits.push(!matcher.is_stopped() && matcher.try_consume_tokens(&[token]).map_err(told)? == 1);
        }
        if !fits.contains(&true) {
            return Err(format!("the grammar does not allow token {token} here"));
        }
        let mut fits = fits.into_iter();
        self.matchers.retain(|_| fits.next() == Some(true));
        Ok(())
    }
}

impl Constraint for GrammarConstraint {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.trigger.is_some() {
            return Ok(());
        }
        if self.is_complete()? {
            return keep_only(logits, &self.vocabulary.end);
        }
        let allowed = self.allowed()?;
        apply(&allowed, logits, self.vocabulary.tokens.len())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if let Some(trigger) = &mut self.trigger {
            if trigger.observe(self.vocabulary.text(token)) {
                self.trigger = None;
            }
            return Ok(());
        }
        if self.vocabulary.end.contains(&token) && self.may_end()? {
            self.ended = true;
            return Ok(());
        }
        if self.is_complete()? {
            return Err(format!("token {token} came after the end of the grammar"));
        }
        self.consume(token)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// What the engine says, for the user to read.
fn told(reason: impl fmt::Display) -> String {
    engine_reason(&reason.to_string())
}

impl fmt::Debug for GrammarConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("GrammarConstraint");
        debug.field("trigger", &self.trigger).field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// Leaves the logits of `tokens` alone and makes all others impossible.
fn keep_only(logits: &mut [f32], tokens: &[u32]) -> Result<(), String> {
    let kept = tokens.iter().map(|&token| (token as usize, logits.get(token as usize).copied()));
    let kept: Vec<(usize, f32)> = kept.filter_map(|(token, logit)| Some((token, logit?))).collect();
    if kept.is_empty() {
        return Err("the grammar is complete and the model has no token to end with".to_owned());
    }
    logits.fill(f32::NEG_INFINITY);
    kept.into_iter().for_each(|(token, logit)| logits[token] = logit);
    Ok(())
}

/// Makes tokens that are not in `allowed` impossible, and those beyond the vocabulary.
fn apply(allowed: &SimpleVob, logits: &mut [f32], tokens: usize) -> Result<(), String> {
    let known = tokens.min(logits.len());
    let (logits, beyond) = logits.split_at_mut(known);
    beyond.fill(f32::NEG_INFINITY);
    if allowed.first_bit_set().is_none_or(|token| token >= known) {
        return Err("the grammar allows no token of this vocabulary here".to_owned());
    }
    for (logits, &word) in logits.chunks_mut(WORD_BITS).zip(allowed.as_slice()) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => logits
                .iter_mut()
                .enumerate()
                .filter(|(bit, _)| word >> bit & 1 == 0)
                .for_each(|(_, logit)| *logit = f32::NEG_INFINITY),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_applied_word_by_word_and_beyond_the_vocabulary() {
        let mut allowed = SimpleVob::alloc(100);
        allowed.allow_range(0..=40);
        allowed.allow_token(70);
        let mut logits = vec![1.0; 128];
        apply(&allowed, &mut logits, 100).unwrap();
        let left: Vec<usize> = (0..128).filter(|&token| logits[token] == 1.0).collect();
        assert_eq!(left, (0..=40).chain([70]).collect::<Vec<_>>());
    }

    #[test]
    fn a_mask_without_tokens_is_an_error() {
        let mut logits = vec![1.0; 100];
        assert!(apply(&SimpleVob::alloc(100), &mut logits, 100).unwrap_err().contains("no token"));
        assert!(keep_only(&mut logits, &[100]).is_err());
    }
}
