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

/// Follows one grammar through one answer.
#[derive(Clone)]
pub(crate) struct GrammarConstraint {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    /// What it still waits for.
    trigger: Option<Trigger>,
    /// An end-of-generation token has come.
    ended: bool,
}

impl GrammarConstraint {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>, matcher: Matcher, trigger: Option<Trigger>) -> Self {
        Self { vocabulary, matcher, trigger, ended: false }
    }

    /// Whether the grammar is complete and nothing can follow.
    fn is_complete(&self) -> Result<bool, String> {
        match self.matcher.get_error() {
            Some(reason) => Err(engine_reason(&reason)),
            None => Ok(self.ended || self.matcher.is_stopped()),
        }
    }

    fn may_end(&mut self) -> Result<bool, String> {
        Ok(self.is_complete()?
            || self.matcher.is_accepting().map_err(|reason| engine_reason(&reason.to_string()))?)
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
        let allowed = self.matcher.compute_mask().map_err(|reason| engine_reason(&reason.to_string()))?;
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
        match self.matcher.try_consume_tokens(&[token]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(format!("the grammar does not allow token {token} here")),
            Err(reason) => Err(engine_reason(&reason.to_string())),
        }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
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
