//! Guesses the next tokens from what the text has said before (prompt lookup decoding, Saxena 2023), and stops
//! guessing where it costs more than it gives. Guesses are verified by the model, so the text is the same without.

use std::collections::HashMap;
use std::time::Duration;

/// Tokens of context that must have occurred before.
const CONTEXT: usize = 3;
/// Most tokens guessed at once.
pub(crate) const MOST_DRAFTS: usize = 7;
/// Steps without guesses after they did not pay.
const REST: u32 = 64;
/// Steps with guesses before they are judged, and the least weight of the newest measurement in the means.
const TRIAL: u32 = 8;
const NEWEST: f64 = 0.1;

/// A mean that follows change: plain at first, moving later.
#[derive(Debug, Default)]
struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) * (1.0 / f64::from(self.count)).max(NEWEST);
    }
}

/// Where each context of a text was seen last.
#[derive(Debug, Default)]
pub(crate) struct NGrams {
    next: HashMap<[u32; CONTEXT], usize>,
    indexed: usize,
}

impl NGrams {
    /// What followed the end of `tokens` when it came before, at most `most` tokens. `tokens` only ever grows.
    pub(crate) fn propose<'t>(&mut self, tokens: &'t [u32], most: usize) -> &'t [u32] {
        let Some(end) = tokens.last_chunk::<CONTEXT>() else { return &[] };
        while self.indexed + CONTEXT < tokens.len() {
            let context = &tokens[self.indexed..self.indexed + CONTEXT];
            let context = context.try_into().expect("the slice has this length");
            self.next.insert(context, self.indexed + CONTEXT);
            self.indexed += 1;
        }
        match self.next.get(end) {
            Some(&start) => &tokens[start..tokens.len().min(start + most)],
            None => &[],
        }
    }
}

/// Decides from measured steps whether guessing pays.
#[derive(Debug, Default)]
pub(crate) struct Payoff {
    /// Seconds of a step without guesses.
    plain: Mean,
    /// Seconds of a step with guesses.
    drafted: Mean,
    /// Tokens that a step with guesses gave to each sequence.
    given: Mean,
    resting: u32,
}

impl Payoff {
    /// Whether to guess in this step.
    pub(crate) fn wants_drafts(&mut self) -> bool {
        if self.resting > 0 {
            self.resting -= 1;
            return false;
        }
        // Without a plain step there is nothing to compare with.
        self.plain.count > 0
    }

    /// Takes note of a step of decoding alone: how long it took, and tokens given to each sequence if it had guesses.
    pub(crate) fn record(&mut self, took: Duration, tokens: Option<f64>) {
        let Some(tokens) = tokens else { return self.plain.add(took.as_secs_f64()) };
        self.drafted.add(took.as_secs_f64());
        self.given.add(tokens);
        if self.drafted.count >= TRIAL && self.given.value * self.plain.value < self.drafted.value {
            self.resting = REST;
            // Another text may be easier to guess: begin afresh after the rest.
            (self.drafted, self.given) = (Mean::default(), Mean::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_what_followed_last_time() {
        let mut grams = NGrams::default();
        let mut tokens = vec![1, 2, 3, 4, 5, 9, 1, 2, 3];
        assert_eq!(grams.propose(&tokens, 7), [4, 5, 9, 1, 2, 3]);
        assert_eq!(grams.propose(&tokens, 2), [4, 5]);
        tokens.extend([6, 1, 2, 3]);
        assert_eq!(grams.propose(&tokens, 2), [6, 1]);
        tokens.push(77);
        assert!(grams.propose(&tokens, 2).is_empty());
        assert!(grams.propose(&tokens[..2], 2).is_empty());
    }

    #[test]
    fn rests_when_guesses_cost_more_than_they_give() {
        let mut payoff = Payoff::default();
        let ms = Duration::from_millis;
        assert!(!payoff.wants_drafts(), "a plain step comes first");
        payoff.record(ms(10), None);
        assert!(payoff.wants_drafts());
        payoff.record(ms(15), Some(3.0));
        assert!(payoff.wants_drafts(), "three tokens in 15 ms beat one in 10");
        for _ in 0..50 {
            payoff.record(ms(15), Some(1.0));
        }
        assert!(!payoff.wants_drafts());
        let rest = (0..REST).take_while(|_| !payoff.wants_drafts()).count();
        assert_eq!(rest as u32, REST - 1);
        assert!(payoff.wants_drafts(), "it tries again after a rest");
    }
}
