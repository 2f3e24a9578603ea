//! One request while it runs.

use crate::sampler::Sampler;
use crate::worker::Job;
use lichen_generate::{Event, FinishReason, GenerateError, Usage};
use lichen_text::{Detokenizer, StopMatcher, Tokenizer};
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(crate) struct Sequence<'t> {
    pub(crate) id: u64,
    /// Tokens whose state the backend has.
    pub(crate) past: usize,
    job: Job,
    /// Prompt, then answer.
    tokens: Vec<u32>,
    most_tokens: usize,
    sampler: Sampler,
    detokenizer: Detokenizer<'t>,
    stops: StopMatcher,
    first_token: Option<Instant>,
}

impl<'t> Sequence<'t> {
    pub(crate) fn new(id: u64, mut job: Job, tokenizer: &'t Tokenizer, context_cap: usize) -> Self {
        let mut sampler = Sampler::new(job.request.sampling.clone());
        let tokens = std::mem::take(&mut job.request.prompt);
        tokens.iter().for_each(|&token| sampler.observe(token));
        let room = context_cap - tokens.len();
        let most_tokens = tokens.len() + job.request.max_tokens.unwrap_or(room).min(room);
        let stops = StopMatcher::new(std::mem::take(&mut job.request.stop));
        job.prompt_tokens = tokens.len();
        let detokenizer = Detokenizer::new(tokenizer);
        Self { id, past: 0, job, tokens, most_tokens, sampler, detokenizer, stops, first_token: None }
    }

    /// Tokens whose state is still to be computed.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.past..]
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.cancelled.load(Ordering::Acquire)
    }

    /// Counts `computed` more tokens as done and reports progress of the prompt.
    pub(crate) fn advance(&mut self, computed: usize) {
        self.past += computed;
        if self.first_token.is_none() {
            self.job.report(Event::Prefill { done: self.past, total: self.job.prompt_tokens });
        }
    }

    /// Takes the next token from `logits`; true when the answer is complete and reported.
    pub(crate) fn take(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) -> bool {
        if self.tokens.len() == self.most_tokens {
            self.finish(FinishReason::Length);
            return true;
        }
        let token = self.sampler.pick(logits);
        self.sampler.observe(token);
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        if !self.job.request.ignore_end && tokenizer.is_end_of_generation(token) {
            self.finish(FinishReason::Stop);
            return true;
        }
        let text = self.detokenizer.push(token);
        let matched = self.stops.push(&text);
        self.say(matched.text);
        if matched.stopped {
            self.complete(FinishReason::Stop);
            return true;
        }
        if self.tokens.len() == self.most_tokens {
            self.finish(FinishReason::Length);
            return true;
        }
        false
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() {
            self.job.report(Event::Text(text));
        }
    }

    /// Gives out what was held back, then ends.
    pub(crate) fn finish(&mut self, reason: FinishReason) {
        let rest = self.detokenizer.flush();
        let matched = self.stops.push(&rest);
        self.say(matched.text);
        if !matched.stopped {
            let held = self.stops.flush();
            self.say(held);
        }
        self.complete(reason);
    }

    fn complete(&mut self, reason: FinishReason) {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let usage = Usage {
            prompt_tokens: self.job.prompt_tokens,
            cached_tokens: 0,
            completion_tokens: self.tokens.len() - self.job.prompt_tokens,
            time_to_first_token: first - self.job.submitted,
            decode_time: now - first,
        };
        self.job.report(Event::Finished { reason, usage });
    }

    pub(crate) fn fail(&mut self, error: GenerateError) {
        self.job.report(Event::Failed(error));
    }
}
