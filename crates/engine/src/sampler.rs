//! From logits to a token.

use lichen_generate::{Sampling, TokenLogprob};
use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

/// Tokens looked at first when the nucleus is searched; most nuclei are smaller, whatever the vocabulary.
const FIRST_LOOK: usize = 256;

/// Space to choose a token in. The sequences of an engine share it, since it is as large as the vocabulary.
#[derive(Debug, Default)]
pub struct SamplerScratch {
    candidates: Vec<(u32, f32)>,
    /// How often each token has occurred.
    counts: HashMap<u32, f32>,
    /// Logits before anything adjusts them, if somebody asked for log-probabilities.
    raw: Vec<f32>,
}

/// Chooses tokens for one sequence. The same seed and logits give the same tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
    recent: VecDeque<u32>,
}

impl Sampler {
    /// A sampler; without a seed it draws one.
    pub fn new(sampling: Sampling) -> Self {
        let state = sampling.seed.unwrap_or_else(|| RandomState::new().hash_one(0));
        Self { sampling, state, recent: VecDeque::new() }
    }

    /// Tells it of a token of the text so far, prompt included, which the penalties look at.
    pub fn observe(&mut self, token: u32) {
        self.recent.push_back(token);
        while self.recent.len() > self.sampling.penalty_window {
            self.recent.pop_front();
        }
    }

    /// Applies bias and penalties. What comes after, a constraint for example, has the last word.
    pub fn adjust(&self, logits: &mut [f32], scratch: &mut SamplerScratch) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        for &(token, bias) in &self.sampling.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        let counts = &mut scratch.counts;
        counts.clear();
        for &token in &self.recent {
            *counts.entry(token).or_default() += 1.0;
        }
        for (&token, &count) in &*counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            *logit -= presence_penalty + frequency_penalty * count;
        }
    }

    /// The next token. Not-a-number counts as impossible.
    pub fn pick(&mut self, logits: &[f32], scratch: &mut SamplerScratch) -> u32 {
        let best = most_likely(logits);
        if self.sampling.temperature <= 0.0 {
            return best;
        }
        self.find_candidates(logits, logits[best as usize], &mut scratch.candidates);
        self.draw(&scratch.candidates).unwrap_or(best)
    }

    /// Makes `kept` the tokens that may be drawn, with their unnormalised probabilities.
    fn find_candidates(&self, logits: &[f32], largest: f32, kept: &mut Vec<(u32, f32)>) {
        let scale = 1.0 / self.sampling.temperature;
        // Infinity minus infinity is no number: an infinite logit has all the weight.
        let weight = |logit: f32| if logit == largest { 1.0 } else { ((logit - largest) * scale).exp() };
        let weights = logits.iter().enumerate().map(|(token, &logit)| (token as u32, weight(logit)));
        kept.clear();
        kept.extend(weights.filter(|(_, weight)| *weight > 0.0));
        if self.sampling.top_k > 0 && self.sampling.top_k < kept.len() {
            kept.select_nth_unstable_by(self.sampling.top_k - 1, descending);
            kept.truncate(self.sampling.top_k);
        }
        if self.sampling.top_p < 1.0 {
            keep_nucleus(kept, self.sampling.top_p);
        }
        if self.sampling.min_p > 0.0 {
            let floor = self.sampling.min_p.min(1.0);
            kept.retain(|(_, weight)| *weight >= floor);
        }
        if self.sampling.top_k > 0 {
            // Selection leaves any order; drawing wants one that depends on the logits alone.
            kept.sort_unstable_by(descending);
        }
    }

    fn draw(&mut self, candidates: &[(u32, f32)]) -> Option<u32> {
        let total: f64 = candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let mut left = self.uniform() * total;
        for &(token, weight) in candidates {
            left -= f64::from(weight);
            if left < 0.0 {
                return Some(token);
            }
        }
        // Rounding: the last one that can be drawn at all.
        candidates.last().map(|&(token, _)| token)
    }

    /// Uniform in 0..1 by SplitMix64 (Steele, Lea, Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Most likely first, then by number.
fn descending(a: &(u32, f32), b: &(u32, f32)) -> std::cmp::Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the smallest set of most likely tokens whose probability reaches `mass`, most likely first. Looks at more
/// and more of them, since sorting a whole vocabulary takes longer than a small model takes for a token.
fn keep_nucleus(kept: &mut Vec<(u32, f32)>, mass: f32) {
    let total: f64 = kept.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let wanted = f64::from(mass) * total;
    let mut look = FIRST_LOOK;
    loop {
        if look < kept.len() {
            kept.select_nth_unstable_by(look, descending);
        }
        let head = look.min(kept.len());
        kept[..head].sort_unstable_by(descending);
        let mut sum = 0.0;
        let reached = kept[..head].iter().position(|(_, weight)| {
            sum += f64::from(*weight);
            sum >= wanted
        });
        match reached {
            Some(last) => return kept.truncate(last + 1),
            None if head == kept.len() => return,
            None => look *= 8,
        }
    }
}

/// The first of the largest logits.
fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || (logits[best].is_nan() && !logit.is_nan()) {
            best = token;
        }
    }
    best as u32
}

/// Log-probabilities at one place, before anything adjusts the logits.
#[derive(Debug)]
pub(crate) struct Logprobs {
    /// Logarithm of the sum of all exponentials.
    norm: f32,
    top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Takes note of the `count` most likely tokens, and of the logits for [`Logprobs::of`].
    pub(crate) fn new(logits: &[f32], count: usize, scratch: &mut SamplerScratch) -> Self {
        scratch.raw.clear();
        scratch.raw.extend_from_slice(logits);
        let largest = logits[most_likely(logits) as usize];
        let sum: f64 = logits.iter().map(|logit| f64::from((logit - largest).exp())).sum();
        let norm = largest + sum.ln() as f32;
        let top = &mut scratch.candidates;
        top.clear();
        if count > 0 {
            top.extend(logits.iter().enumerate().map(|(token, &logit)| (token as u32, logit - norm)));
            let count = count.min(top.len());
            top.select_nth_unstable_by(count - 1, descending);
            top.truncate(count);
            top.sort_unstable_by(descending);
        }
        Self { norm, top: top.clone() }
    }

    /// The entry for the token that was chosen, with the same `scratch`.
    pub(crate) fn of(self, token: u32, scratch: &SamplerScratch) -> TokenLogprob {
        TokenLogprob { token, logprob: scratch.raw[token as usize] - self.norm, top: self.top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picks(sampling: Sampling, logits: &[f32], times: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { seed: Some(7), ..sampling });
        let mut scratch = SamplerScratch::default();
        (0..times).map(|_| sampler.pick(logits, &mut scratch)).collect()
    }

    #[test]
    fn zero_temperature_takes_the_first_of_the_largest() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(picks(greedy.clone(), &[1.0, f32::NAN, 3.0, 3.0], 2), [2, 2]);
        assert_eq!(picks(greedy, &[f32::NAN, -1.0], 1), [1]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let draws = picks(Sampling::default(), &[0.0, 1.0, f32::NEG_INFINITY], 20_000);
        let share = draws.iter().filter(|&&token| token == 1).count() as f64 / 20_000.0;
        assert!((share - 0.7311).abs() < 0.01, "{share}");
        assert!(!draws.contains(&2));
    }

    #[test]
    fn top_k_top_p_and_min_p_bound_what_can_be_drawn() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let distinct = |sampling| {
            let mut tokens = picks(sampling, &logits, 2000);
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        assert_eq!(distinct(Sampling { top_k: 2, ..Sampling::default() }), [0, 1]);
        // Probabilities are 0.644, 0.237, 0.087, 0.032.
        assert_eq!(distinct(Sampling { top_p: 0.7, ..Sampling::default() }), [0, 1]);
        assert_eq!(distinct(Sampling { min_p: 0.1, ..Sampling::default() }), [0, 1, 2]);
        assert_eq!(distinct(Sampling { top_p: 0.0, ..Sampling::default() }), [0]);
    }

    #[test]
    fn a_wide_nucleus_is_found_whole() {
        let mut kept: Vec<(u32, f32)> = (0..10_000).map(|token| (token, 1.0)).collect();
        keep_nucleus(&mut kept, 0.5);
        let tokens: Vec<u32> = kept.iter().map(|&(token, _)| token).collect();
        assert_eq!(tokens, (0..5000).collect::<Vec<_>>());
    }

    #[test]
    fn penalties_look_at_a_window() {
        let sampling =
            Sampling { temperature: 0.0, repetition_penalty: 2.0, penalty_window: 1, ..Sampling::default() };
        let (mut sampler, mut scratch) = (Sampler::new(sampling), SamplerScratch::default());
        let mut after = |token| {
            sampler.observe(token);
            let mut logits = [3.0, 2.0];
            sampler.adjust(&mut logits, &mut scratch);
            sampler.pick(&logits, &mut scratch)
        };
        assert_eq!((after(0), after(1)), (1, 0));
    }

    #[test]
    fn a_bias_forbids_and_forces() {
        let biased = |bias| {
            let sampling = Sampling { temperature: 0.0, logit_bias: vec![bias], ..Sampling::default() };
            let mut logits = [3.0, 2.0];
            Sampler::new(sampling).adjust(&mut logits, &mut SamplerScratch::default());
            most_likely(&logits)
        };
        assert_eq!((biased((0, -100.0)), biased((1, 100.0)), biased((9, 100.0))), (1, 1, 0));
    }

    #[test]
    fn logprobs_are_the_logarithm_of_softmax() {
        let logits = [3.0, 2.0, 1.0, 0.0];
        let mut scratch = SamplerScratch::default();
        let entry = Logprobs::new(&logits, 2, &mut scratch).of(2, &scratch);
        assert!((entry.logprob - 0.0871f32.ln()).abs() < 1e-3);
        assert_eq!(entry.top.iter().map(|top| top.0).collect::<Vec<_>>(), [0, 1]);
        assert!((entry.top[0].1.exp() - 0.6439).abs() < 1e-3);
    }

    proptest! {
        #[test]
        fn any_logits_give_a_token_of_the_vocabulary(
            logits in proptest::collection::vec(any::<f32>(), 1..50),
            temperature in 0.0f32..3.0, top_k in 0usize..60, top_p in 0.0f32..1.2, min_p in 0.0f32..1.0,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
            let token = picks(sampling, &logits, 1)[0];
            prop_assert!((token as usize) < logits.len());
            Logprobs::new(&logits, top_k, &mut SamplerScratch::default());
        }

        #[test]
        fn the_nucleus_is_the_sorted_head_that_reaches_the_mass(
            weights in proptest::collection::vec(0.0f32..1.0, 1..2000), mass in 0.0f32..1.0,
        ) {
            let mut kept: Vec<(u32, f32)> = (0..).zip(weights).collect();
            let mut sorted = kept.clone();
            sorted.sort_unstable_by(descending);
            let total: f64 = kept.iter().map(|(_, weight)| f64::from(*weight)).sum();
            let mut sum = 0.0;
            let head = sorted.iter().position(|(_, weight)| {
                sum += f64::from(*weight);
                sum >= f64::from(mass) * total * (1.0 - 1e-12)
            });
            keep_nucleus(&mut kept, mass);
            let head = head.map_or(sorted.len(), |last| last + 1);
            prop_assert!(kept.len().abs_diff(head) <= 1, "{} {head}", kept.len());
            prop_assert_eq!(&kept[..], &sorted[..kept.len()]);
        }
    }
}
