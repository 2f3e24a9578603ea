//! From logits to a token.

use lichen_generate::Sampling;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

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

    /// The next token. `logits` are changed; not-a-number counts as impossible.
    pub fn pick(&mut self, logits: &mut [f32]) -> u32 {
        for logit in logits.iter_mut().filter(|logit| logit.is_nan()) {
            *logit = f32::NEG_INFINITY;
        }
        self.penalise(logits);
        if self.sampling.temperature <= 0.0 {
            return most_likely(logits);
        }
        let candidates = self.candidates(logits);
        self.draw(&candidates)
    }

    fn penalise(&self, logits: &mut [f32]) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.sampling;
        if repetition_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return;
        }
        let mut counts: HashMap<u32, f32> = HashMap::new();
        for &token in &self.recent {
            *counts.entry(token).or_default() += 1.0;
        }
        for (token, count) in counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            *logit = if *logit > 0.0 { *logit / repetition_penalty } else { *logit * repetition_penalty };
            *logit -= presence_penalty + frequency_penalty * count;
        }
    }

    /// Tokens that may be drawn with their unnormalised probabilities, most likely first.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let descending = |a: &u32, b: &u32| {
            let (a_logit, b_logit) = (logits[*a as usize], logits[*b as usize]);
            b_logit.total_cmp(&a_logit).then(a.cmp(b))
        };
        if self.sampling.top_k > 0 && self.sampling.top_k < order.len() {
            order.select_nth_unstable_by(self.sampling.top_k - 1, descending);
            order.truncate(self.sampling.top_k);
        }
        order.sort_unstable_by(descending);
        let Some(&first) = order.first() else { return Vec::new() };
        let largest = logits[first as usize];
        let weight = |token: u32| ((logits[token as usize] - largest) / self.sampling.temperature).exp();
        let mut kept: Vec<(u32, f32)> = order.into_iter().map(|token| (token, weight(token))).collect();
        self.keep_nucleus(&mut kept);
        kept
    }

    /// Applies top-p, then min-p; the most likely token always stays.
    fn keep_nucleus(&self, kept: &mut Vec<(u32, f32)>) {
        let total: f32 = kept.iter().map(|(_, weight)| weight).sum();
        if self.sampling.top_p < 1.0 {
            let mut mass = 0.0;
            let needed = kept.iter().take_while(|(_, weight)| {
                let before = mass;
                mass += weight / total;
                before < self.sampling.top_p
            });
            let needed = needed.count().max(1);
            kept.truncate(needed);
        }
        if self.sampling.min_p > 0.0 {
            let floor = self.sampling.min_p * kept[0].1;
            let needed = kept.iter().take_while(|(_, weight)| *weight >= floor).count().max(1);
            kept.truncate(needed);
        }
    }

    fn draw(&mut self, candidates: &[(u32, f32)]) -> u32 {
        let total: f32 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = self.uniform() * total;
        for &(token, weight) in candidates {
            left -= weight;
            if left < 0.0 {
                return token;
            }
        }
        // Rounding, or all logits were minus infinity: the most likely one is as good as any.
        candidates.first().map_or(0, |&(token, _)| token)
    }

    /// Uniform in 0..1 by SplitMix64 (Steele, Lea, Flood 2014).
    fn uniform(&mut self) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 40) as f32 / (1u32 << 24) as f32
    }
}

/// The first of the largest logits.
fn most_likely(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn picks(sampling: Sampling, logits: &[f32], times: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling { seed: Some(7), ..sampling });
        (0..times).map(|_| sampler.pick(&mut logits.to_vec())).collect()
    }

    #[test]
    fn zero_temperature_takes_the_first_of_the_largest() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(picks(greedy, &[1.0, f32::NAN, 3.0, 3.0], 2), [2, 2]);
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
    fn penalties_look_at_a_window() {
        let sampling =
            Sampling { temperature: 0.0, repetition_penalty: 2.0, penalty_window: 1, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling);
        sampler.observe(0);
        assert_eq!(sampler.pick(&mut [3.0, 2.0]), 1);
        sampler.observe(1);
        assert_eq!(sampler.pick(&mut [3.0, 2.0]), 0);
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
        }
    }
}
