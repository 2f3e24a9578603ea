//! Continuous batching: which sequences get how many tokens in the next step.
//!
//! A step of the caller's loop: [`Scheduler::expire`]; then, while [`Scheduler::candidate`] names a sequence, look up
//! its cached prefix and [`Scheduler::begin`] it; then [`Scheduler::plan`], pause whom it says, run the work, and
//! [`Scheduler::report`].

use crate::fairness::Service;
use crate::pace::Pace;
use std::collections::BTreeMap;
use std::time::Duration;

/// Waiting this long weighs as much as one level of priority.
const AGING: Duration = Duration::from_secs(5);

/// What one engine allows.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most sequences that run at once.
    pub max_running: usize,
    /// Tokens of a KV page.
    pub page_tokens: usize,
    /// Most prompt tokens of one step.
    pub prefill_tokens: usize,
    /// Steps in which somebody decodes take at most this long, or `latency_factor` times a step without prompts.
    pub latency_goal: Duration,
    /// See `latency_goal`.
    pub latency_factor: f64,
}

/// A new sequence.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// Its name.
    pub id: u64,
    /// Who asks.
    pub key: u64,
    /// Higher goes first.
    pub priority: i8,
    /// Time from now after which it is not wanted any more.
    pub deadline: Option<Duration>,
    /// Tokens to be computed before the first one is generated.
    pub prompt_tokens: usize,
}

/// Where a sequence is in its life. What is done is not here any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not begun.
    Waiting,
    /// Its prompt is being computed.
    Prefilling,
    /// It generates.
    Decoding,
    /// It had begun and gave way; its state is gone.
    Paused,
}

#[derive(Debug)]
struct Sequence {
    key: u64,
    priority: i8,
    submitted: Duration,
    deadline: Option<Duration>,
    state: State,
    /// Tokens so far, prompt and generated.
    length: usize,
    /// Tokens whose state exists.
    past: usize,
    /// The next write goes into a page that others may hold, so it needs a copy.
    copies: bool,
    /// When it first ran, as a running number: the order in which they keep their place.
    begun: Option<u64>,
    drafts: usize,
}

impl Sequence {
    fn runs(&self) -> bool {
        matches!(self.state, State::Prefilling | State::Decoding)
    }
}

/// What the caller does in one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Drop the state of these first; they come back later.
    pub pause: Vec<u64>,
    /// Then compute these.
    pub work: Vec<Work>,
}

/// Tokens of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The sequence.
    pub id: u64,
    /// Tokens of it that have state.
    pub past: usize,
    /// Tokens to compute now, of those that exist.
    pub tokens: usize,
    /// Guessed tokens to verify after them.
    pub drafts: usize,
}

/// What a step did for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The sequence.
    pub id: u64,
    /// Tokens with state now.
    pub past: usize,
    /// Tokens so far, prompt and generated.
    pub length: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    sequences: BTreeMap<u64, Sequence>,
    service: Service,
    pace: Pace,
    next_place: u64,
    /// Somebody gave way in the last plan: nobody new comes in until the others have got on.
    short: bool,
    /// Space for those that run, in the order in which they began.
    order: Vec<u64>,
}

impl Scheduler {
    /// A scheduler without sequences.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            sequences: BTreeMap::new(),
            service: Service::default(),
            pace: Pace::default(),
            next_place: 0,
            short: false,
            order: Vec::new(),
        }
    }

    /// Changes the limits; who runs goes on running.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes a sequence in. The caller bounds the queue, and refuses what could not fit the pages even alone.
    pub fn submit(&mut self, now: Duration, arrival: Arrival) {
        let active = self.sequences.values().map(|sequence| sequence.key);
        if !active.clone().any(|key| key == arrival.key) {
            self.service.arrive(arrival.key, active);
        }
        let sequence = Sequence {
            key: arrival.key,
            priority: arrival.priority,
            submitted: now,
            deadline: arrival.deadline.map(|deadline| now + deadline),
            state: State::Waiting,
            length: arrival.prompt_tokens,
            past: 0,
            copies: false,
            begun: None,
            drafts: 0,
        };
        self.sequences.insert(arrival.id, sequence);
    }

    /// Takes a sequence out: it is complete, failed or not wanted any more.
    pub fn remove(&mut self, now: Duration, id: u64) {
        if self.sequences.remove(&id).is_some_and(|sequence| sequence.begun.is_some()) {
            self.pace.record_end(now);
        }
        let sequences = &self.sequences;
        self.service.trim(|key| sequences.values().any(|sequence| sequence.key == key));
    }

    /// Takes out the sequences whose deadline has passed, and names them.
    pub fn expire(&mut self, now: Duration) -> Vec<u64> {
        let late = |sequence: &Sequence| sequence.deadline.is_some_and(|deadline| deadline <= now);
        let ids: Vec<u64> = self.sequences.iter().filter(|(_, s)| late(s)).map(|(&id, _)| id).collect();
        ids.iter().for_each(|&id| self.remove(now, id));
        ids
    }

    /// The sequence that should begin or come back now, if one can. `room` is how many pages could be allocated, what
    /// the cache could give up included.
    pub fn candidate(&self, now: Duration, room: usize) -> Option<u64> {
        let running = self.sequences.values().filter(|sequence| sequence.runs());
        let (mut count, mut promised) = (0, 0);
        for sequence in running {
            count += 1;
            promised += self.pages(sequence.length + 1).saturating_sub(self.pages(sequence.past));
        }
        if count >= self.limits.max_running.max(1) || (self.short && count > 0) {
            return None;
        }
        let (&id, first) = self
            .sequences
            .iter()
            .filter(|(_, sequence)| !sequence.runs())
            .min_by_key(|(id, sequence)| (self.rank(now, sequence), **id))?;
        // Alone it always fits; the caller's pages hold at least one context.
        let fits = count == 0 || self.pages(first.length + 1) + promised < room;
        fits.then_some(id)
    }

    /// Who comes first: smaller is earlier. Those who gave way, in their old order; then by priority, which grows
    /// while they wait; then whose key has had least; then who came first.
    fn rank(&self, now: Duration, sequence: &Sequence) -> (u64, i64, u64, Duration) {
        let paused = sequence.begun.unwrap_or(u64::MAX);
        let waited = now.saturating_sub(sequence.submitted).as_millis() / AGING.as_millis();
        let priority = i64::from(sequence.priority) + i64::try_from(waited).unwrap_or(i64::MAX / 2);
        (paused, -priority, self.service.of(sequence.key), sequence.submitted)
    }

    fn pages(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.page_tokens)
    }

    /// Begins a sequence, or lets it come back, with `cached` tokens whose state exists already.
    pub fn begin(&mut self, id: u64, cached: usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.state = State::Prefilling;
        sequence.past = cached;
        sequence.copies = !cached.is_multiple_of(self.limits.page_tokens);
        sequence.begun.get_or_insert_with(|| {
            self.next_place += 1;
            self.next_place
        });
    }

    /// Says how many guesses a decoding sequence has for the next step.
    pub fn offer_drafts(&mut self, id: u64, drafts: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.drafts = drafts;
        }
    }

    /// Makes `step` the next one, within `room` pages that can be allocated.
    pub fn plan(&mut self, mut room: usize, step: &mut Step) {
        step.pause.clear();
        step.work.clear();
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(self.running());
        order.sort_unstable_by_key(|id| self.sequences[id].begun);
        for &id in &order {
            if self.sequences[&id].state != State::Decoding || step.pause.contains(&id) {
                continue;
            }
            let drafts = std::mem::take(&mut self.sequences.get_mut(&id).expect("it runs").drafts);
            let granted = [drafts, 0].into_iter().find(|&drafts| self.need(id, 1 + drafts) <= room);
            if let Some(drafts) = granted {
                room -= self.need(id, 1 + drafts);
                step.work.push(Work { id, past: self.sequences[&id].past, tokens: 1, drafts });
            } else if let Some(youngest) = self.youngest(&order, step) {
                step.pause.push(youngest);
            }
        }
        let decoding = !step.work.is_empty();
        let mut budget = self.chunk(decoding);
        for &id in &order {
            let sequence = &self.sequences[&id];
            if sequence.state != State::Prefilling || step.pause.contains(&id) {
                continue;
            }
            let mut tokens = budget.min(sequence.length - sequence.past);
            while tokens > 0 && self.need(id, tokens) > room {
                tokens = tokens.saturating_sub(self.limits.page_tokens);
            }
            if tokens > 0 {
                budget -= tokens;
                room -= self.need(id, tokens);
                step.work.push(Work { id, past: sequence.past, tokens, drafts: 0 });
            }
        }
        if step.work.is_empty() && step.pause.is_empty() {
            // Only prompts, and none of them has room.
            step.pause.extend(self.youngest(&order, step));
        }
        self.pause(&step.pause);
        step.work.retain(|work| !step.pause.contains(&work.id));
        self.short = !step.pause.is_empty();
        self.order = order;
    }

    /// Pauses who began last until at most `running` run, and names them; who began first only if none is to run.
    /// Their state is to be dropped.
    pub fn park(&mut self, running: usize) -> Vec<u64> {
        let mut order: Vec<u64> = self.running().collect();
        order.sort_by_key(|id| self.sequences[id].begun);
        let mut step = Step::default();
        while order.len() - step.pause.len() > running {
            let next = self.youngest(&order, &step).or(order.first().copied());
            step.pause.extend(next);
        }
        self.pause(&step.pause);
        step.pause
    }

    fn pause(&mut self, ids: &[u64]) {
        for id in ids {
            let sequence = self.sequences.get_mut(id).expect("it runs");
            (sequence.state, sequence.past, sequence.copies) = (State::Paused, 0, false);
        }
    }

    fn chunk(&self, decoding: bool) -> usize {
        let most = self.limits.prefill_tokens.max(1);
        if !decoding {
            return most;
        }
        self.pace.chunk(self.limits.latency_goal, self.limits.latency_factor, most)
    }

    /// Pages that a sequence needs for more tokens.
    fn need(&self, id: u64, tokens: usize) -> usize {
        let sequence = &self.sequences[&id];
        self.pages(sequence.past + tokens) - self.pages(sequence.past) + usize::from(sequence.copies)
    }

    /// Who gives way: the lowest priority, then who began last; never who began first.
    fn youngest(&self, order: &[u64], step: &Step) -> Option<u64> {
        let others = order.iter().skip(1).filter(|id| !step.pause.contains(id));
        others.copied().min_by_key(|id| {
            let sequence = &self.sequences[id];
            (sequence.priority, std::cmp::Reverse(sequence.begun))
        })
    }

    /// Takes note of what a step did and how long it took. Sequences that ended are removed by [`Scheduler::remove`].
    pub fn report(&mut self, took: Duration, progress: &[Progress]) {
        let (mut prompt, mut decoding) = (0, 0);
        for done in progress {
            let Some(sequence) = self.sequences.get_mut(&done.id) else { continue };
            let generated = done.length - sequence.length;
            let computed = done.past - sequence.past;
            if sequence.state == State::Decoding {
                decoding += 1;
                self.service.serve(sequence.key, 0, generated);
            } else {
                prompt += computed;
                self.service.serve(sequence.key, computed, generated);
            }
            (sequence.past, sequence.length, sequence.copies) = (done.past, done.length, false);
            if sequence.past + 1 >= sequence.length {
                sequence.state = State::Decoding;
            }
        }
        self.pace.record(took, prompt, decoding);
    }

    /// Where a sequence is.
    pub fn state(&self, id: u64) -> Option<State> {
        self.sequences.get(&id).map(|sequence| sequence.state)
    }

    /// How many are in a state.
    pub fn count(&self, state: State) -> usize {
        self.sequences.values().filter(|sequence| sequence.state == state).count()
    }

    /// Those that run, in any order.
    pub fn running(&self) -> impl Iterator<Item = u64> {
        self.sequences.iter().filter(|(_, sequence)| sequence.runs()).map(|(&id, _)| id)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Time until a sequence that comes now is likely begun, from how fast others have ended.
    pub fn estimate_wait(&self) -> Duration {
        let idle = self.sequences.len() < self.limits.max_running;
        let ahead = self.count(State::Waiting) + self.count(State::Paused) + 1;
        if idle { Duration::ZERO } else { self.pace.wait(ahead) }
    }
}
