//! One request while it lives.

use crate::sampler::{Logprobs, Sampler, SamplerScratch};
use crate::speculation::NGrams;
use crate::thinking::ThinkingWatch;
use lichen_generate::{
    Constraint, Event, FinishReason, GenerateError, Pooling, Request, Sink, Task, TokenLogprob, Usage,
};
use lichen_text::{Detokenizer, StopMatcher, Tokenizer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A request on its way to the engine's thread.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) sink: Sink,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
}

/// What becomes of a sequence after a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on with this token.
    Token(u32),
    /// It is complete, and has said so.
    Over,
}

pub(crate) struct Sequence<'t> {
    /// Tokens whose state the backend has.
    pub(crate) past: usize,
    /// The guesses that the next step verifies.
    pub(crate) drafts: Vec<u32>,
    pub(crate) session: Option<u64>,
    /// Tokens that it was promised memory for when it last began.
    pub(crate) promised: usize,
    /// It is counted among those that had to wait.
    queued: bool,
    /// It knows that it waits for others.
    told: bool,
    /// Prompt, then answer.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    most_tokens: usize,
    /// The request says how long the answer may be.
    bounded: bool,
    task: Task,
    ignore_end: bool,
    sink: Sink,
    cancelled: Arc<AtomicBool>,
    deadline: Option<Duration>,
    sampler: Sampler,
    constraint: Option<Box<dyn Constraint>>,
    logprobs: Option<usize>,
    pending_logprobs: Vec<TokenLogprob>,
    thinking: Option<ThinkingWatch>,
    /// Tokens that come next whatever the model says.
    forced: VecDeque<u32>,
    detokenizer: Detokenizer<'t>,
    stops: StopMatcher,
    grams: NGrams,
    /// Sum of hidden states, or the one that counts.
    pooled: Vec<f32>,
    submitted: Instant,
    begun: Option<Instant>,
    first_token: Option<Instant>,
    usage: Usage,
}

impl<'t> Sequence<'t> {
    pub(crate) fn new(job: Job, tokenizer: &'t Tokenizer, context_cap: usize) -> Self {
        let Job { request, sink, cancelled, submitted } = job;
        let mut sampler = Sampler::new(request.sampling);
        let tokens = request.prompt;
        tokens.iter().for_each(|&token| sampler.observe(token));
        let room = context_cap.saturating_sub(tokens.len());
        let mut thinking = request.thinking.map(ThinkingWatch::new);
        let forced = thinking.as_mut().map(ThinkingWatch::take_closing).unwrap_or_default();
        Self {
            past: 0,
            drafts: Vec::new(),
            session: request.session,
            promised: 0,
            queued: false,
            told: false,
            prompt_tokens: tokens.len(),
            most_tokens: tokens.len() + request.max_tokens.unwrap_or(room).min(room),
            bounded: request.max_tokens.is_some() || request.task != Task::Generate,
            tokens,
            task: request.task,
            ignore_end: request.ignore_end,
            sink,
            cancelled,
            deadline: request.deadline,
            sampler,
            constraint: request.constraint,
            logprobs: request.logprobs,
            pending_logprobs: Vec::new(),
            thinking,
            forced: forced.into(),
            detokenizer: Detokenizer::new(tokenizer).showing(request.visible),
            stops: StopMatcher::new(request.stop),
            grams: NGrams::default(),
            pooled: Vec::new(),
            submitted,
            begun: None,
            first_token: None,
            usage: Usage::default(),
        }
    }

    /// Its state is stored in this precision since memory is short.
    pub(crate) fn note_reduced(&mut self, precision: &'static str) {
        self.usage.reduced_kv = Some(precision);
    }

    /// Tokens so far, prompt and answer.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens whose state is still to be computed.
    pub(crate) fn pending(&self) -> &[u32] {
        &self.tokens[self.past..]
    }

    /// How it is pooled, if it is for an embedding.
    pub(crate) fn pooling(&self) -> Option<Pooling> {
        match self.task {
            Task::Embed(pooling) => Some(pooling),
            Task::Generate => None,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Tokens that memory is needed for: all there can be, or so many more than there are if the request doesn't say.
    pub(crate) fn reserve(&self, answer: usize) -> usize {
        let more = if self.bounded { usize::MAX } else { answer.max(1) };
        self.tokens.len().saturating_add(more).min(self.most_tokens).max(self.tokens.len())
    }

    /// Its next token has no promise.
    pub(crate) fn outgrows_promise(&self) -> bool {
        self.tokens.len() >= self.promised && self.tokens.len() < self.most_tokens
    }

    /// It has not begun.
    pub(crate) fn is_waiting(&self) -> bool {
        self.begun.is_none()
    }

    /// It begins without having waited.
    pub(crate) fn is_new(&self) -> bool {
        self.begun.is_none() && !self.queued
    }

    /// When it began, if it has.
    pub(crate) fn begun(&self) -> Option<Instant> {
        self.begun
    }

    /// How long ago it came.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.submitted)
    }

    /// Counts it among those that had to wait; false if it is already.
    pub(crate) fn note_queued(&mut self) -> bool {
        !std::mem::replace(&mut self.queued, true)
    }

    /// Tells the asker, once, that others have to end first.
    pub(crate) fn tell_waiting(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            self.report(Event::Waiting);
        }
    }

    /// Begins or goes on with `cached` tokens whose state exists.
    pub(crate) fn begin(&mut self, cached: usize) {
        self.past = cached;
        if self.begun.is_none() {
            self.begun = Some(Instant::now());
            self.usage.cached_tokens = cached;
            self.report(Event::Prefill { done: cached, total: self.prompt_tokens });
        }
    }

    /// Gives way: its state is gone.
    pub(crate) fn pause(&mut self) {
        self.past = 0;
        self.drafts.clear();
        self.pooled.clear();
    }

    /// Counts `computed` more tokens as done and reports progress of the prompt.
    pub(crate) fn advance(&mut self, computed: usize) {
        self.past += computed;
        if self.first_token.is_none() {
            self.report(Event::Prefill { done: self.past, total: self.prompt_tokens });
        }
    }

    /// Guesses at most `most` of the tokens that come after the last one.
    pub(crate) fn guess(&mut self, most: usize) {
        self.drafts.clear();
        let room = self.most_tokens.saturating_sub(self.tokens.len() + 1);
        if self.forced.is_empty() {
            self.drafts.extend_from_slice(self.grams.propose(&self.tokens, most.min(room)));
        }
    }

    /// Takes the next token from `logits`, which are changed.
    pub(crate) fn take(
        &mut self,
        logits: &mut [f32],
        tokenizer: &Tokenizer,
        scratch: &mut SamplerScratch,
    ) -> Next {
        if self.tokens.len() >= self.most_tokens {
            return self.finish(FinishReason::Length);
        }
        let token = match self.choose(logits, scratch) {
            Ok(token) => token,
            Err(reason) => return self.fail(GenerateError::Constraint(reason)),
        };
        self.sampler.observe(token);
        self.first_token.get_or_insert_with(Instant::now);
        self.tokens.push(token);
        if !self.ignore_end && tokenizer.is_end_of_generation(token) {
            return self.finish(FinishReason::Stop);
        }
        let text = self.detokenizer.push(token);
        if let Some(thinking) = &mut self.thinking {
            thinking.observe(text);
            self.forced.extend(thinking.take_closing());
        }
        let matched = self.stops.push(text);
        self.say(matched.text);
        if let Some(number) = matched.stopped {
            return self.complete(FinishReason::StopText(number));
        }
        if self.tokens.len() >= self.most_tokens {
            return self.finish(FinishReason::Length);
        }
        Next::Token(token)
    }

    fn choose(&mut self, logits: &mut [f32], scratch: &mut SamplerScratch) -> Result<u32, String> {
        let logprobs = self.logprobs.map(|count| Logprobs::new(logits, count, scratch));
        let constrained = !self.thinking.as_ref().is_some_and(ThinkingWatch::is_inside);
        let token = match self.forced.pop_front() {
            Some(token) => token,
            None => {
                self.sampler.adjust(logits, scratch);
                if constrained && let Some(constraint) = &mut self.constraint {
                    constraint.mask(logits)?;
                }
                self.sampler.pick(logits, scratch)
            }
        };
        if constrained && let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        if let Some(logprobs) = logprobs {
            self.pending_logprobs.push(logprobs.of(token, scratch));
        }
        Ok(token)
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() || !self.pending_logprobs.is_empty() {
            let logprobs = std::mem::take(&mut self.pending_logprobs);
            self.report(Event::Text { text, logprobs });
        }
    }

    /// Takes in hidden states `[tokens, width]` of the next tokens; ends the sequence when all are there.
    pub(crate) fn pool(&mut self, hidden: &[f32], width: usize, pooling: Pooling) -> Next {
        let rows = hidden.chunks_exact(width);
        match pooling {
            Pooling::Mean => {
                self.pooled.resize(width, 0.0);
                for row in rows {
                    self.pooled.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
            }
            Pooling::First if self.pooled.is_empty() => self.pooled = hidden[..width].to_vec(),
            Pooling::First => {}
            Pooling::Last => self.pooled = rows.last().map(<[f32]>::to_vec).unwrap_or_default(),
        }
        if !self.pending().is_empty() {
            return Next::Token(0);
        }
        let mut vector = std::mem::take(&mut self.pooled);
        let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32;
        if length > 0.0 {
            vector.iter_mut().for_each(|value| *value /= length);
        }
        self.report(Event::Embedding(vector));
        self.complete(FinishReason::Stop)
    }

    /// Notes how many guesses of a step were right.
    pub(crate) fn note_accepted(&mut self, accepted: usize) {
        self.usage.accepted_tokens += accepted;
    }

    /// Gives out what was held back, then ends.
    pub(crate) fn finish(&mut self, reason: FinishReason) -> Next {
        let rest = self.detokenizer.flush();
        let matched = self.stops.push(&rest);
        let mut text = matched.text;
        if matched.stopped.is_none() {
            text.push_str(&self.stops.flush());
        }
        self.say(text);
        self.complete(reason)
    }

    fn complete(&mut self, reason: FinishReason) -> Next {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.tokens.len() - self.prompt_tokens,
            thinking_tokens: self.thinking.as_ref().map_or(0, ThinkingWatch::tokens),
            time_to_first_token: first - self.submitted,
            decode_time: now - first,
            queue_time: self.begun.unwrap_or(now) - self.submitted,
            ..self.usage
        };
        self.report(Event::Finished { reason, usage });
        Next::Over
    }

    pub(crate) fn fail(&mut self, error: GenerateError) -> Next {
        self.report(Event::Failed(error));
        Next::Over
    }

    /// Ends it because its deadline has passed.
    pub(crate) fn expire(&mut self) {
        self.fail(GenerateError::DeadlineExceeded(self.deadline.unwrap_or_default()));
    }

    fn report(&mut self, event: Event) {
        (self.sink)(event);
    }
}
