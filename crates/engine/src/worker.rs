//! The step loop: take requests in, ask the scheduler who runs, build one ragged batch, run it, sample.

use crate::memory::{Account, Member};
use crate::prefix_cache::PrefixCache;
use crate::sampler::SamplerScratch;
use crate::sequence::{Job, Next, Sequence};
use crate::session::SessionCommand;
use crate::speculation::{MOST_DRAFTS, Payoff};
use crate::spill::Spill;
use crate::{EngineConfig, Shared, lock};
use lichen_backend::{Executor, ExecutorError};
use lichen_generate::{FinishReason, GenerateError, Stats};
use lichen_memory::{Effects, Level};
use lichen_op::Batch;
use lichen_sched::{Arrival, Limits, Progress, Scheduler, State, Step, Work};
use lichen_text::Tokenizer;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Steps with prompts in them may take this multiple of a step without, for those who wait for their next token.
const LATENCY_FACTOR: f64 = 1.7;
/// Where memory is short for all who are there, it is looked at again after this time.
const STALL: Duration = Duration::from_millis(5);
/// Guessing is for when few decode: a full batch has better uses for its rows.
const MOST_GUESSING: usize = 2;

pub(crate) enum Command {
    Submit(Box<Job>),
    Reconfigure(EngineConfig),
    Session(SessionCommand),
    /// The cache is to be written to the cold tier.
    Retire(SyncSender<()>),
    /// Memory is at another level.
    Level,
    /// Memory is to be freed.
    Relieve(lichen_memory::Request),
}

pub(crate) struct Worker<'t> {
    pub(crate) executor: Box<dyn Executor>,
    tokenizer: &'t Tokenizer,
    incoming: Receiver<Command>,
    shared: Arc<Mutex<Shared>>,
    pub(crate) config: EngineConfig,
    pub(crate) scheduler: Scheduler,
    pub(crate) cache: PrefixCache,
    pub(crate) account: Account,
    /// The level of memory that is in force here.
    pub(crate) level: Level,
    payoff: Payoff,
    pub(crate) sequences: BTreeMap<u64, Sequence<'t>>,
    start: Instant,
    next_id: u64,
    pub(crate) totals: Stats,
    /// Sequences that this step has completed.
    over: Vec<u64>,
    space: Space,
    /// Who would begin next waits for memory.
    pub(crate) held: bool,
    /// There are sequences and none of them could run.
    stalled: bool,
    open: bool,
}

/// What a step fills, kept so that the next one doesn't have to allocate it.
#[derive(Default)]
struct Space {
    plan: Step,
    batch: Batch,
    /// Tokens and guesses of one sequence in the batch.
    rows: Vec<u32>,
    logits: Vec<f32>,
    sampler: SamplerScratch,
    progress: Vec<Progress>,
}

impl<'t> Worker<'t> {
    pub(crate) fn new(
        executor: Box<dyn Executor>,
        tokenizer: &'t Tokenizer,
        incoming: Receiver<Command>,
        shared: Arc<Mutex<Shared>>,
        config: EngineConfig,
        member: Option<Arc<Member>>,
        spill: Option<Spill>,
    ) -> Self {
        let mut executor = executor;
        executor.set_kv_precision(config.kv_precision);
        Self {
            scheduler: Scheduler::new(limits(&config, Level::Normal, &*executor)),
            account: Account::new(member),
            level: Level::Normal,
            cache: PrefixCache::new(executor.page_tokens(), config.max_sessions, spill),
            executor,
            tokenizer,
            incoming,
            shared,
            config,
            payoff: Payoff::default(),
            sequences: BTreeMap::new(),
            start: Instant::now(),
            next_id: 0,
            totals: Stats::default(),
            over: Vec::new(),
            space: Space::default(),
            held: false,
            stalled: false,
            open: true,
        }
    }

    pub(crate) fn work(mut self) {
        loop {
            self.take_commands();
            if !self.open {
                self.sequences.values_mut().for_each(|sequence| {
                    sequence.finish(FinishReason::Cancelled);
                });
                self.cache.spill_all(&*self.executor);
                return;
            }
            self.end_cancelled();
            self.end_expired();
            self.begin();
            self.step();
            self.publish();
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Takes in what has come; sleeps only if there is nothing to do.
    fn take_commands(&mut self) {
        loop {
            let command = if self.scheduler.is_empty() {
                self.incoming.recv().map_err(|_| TryRecvError::Disconnected)
            } else if std::mem::take(&mut self.stalled) {
                self.incoming.recv_timeout(STALL).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.incoming.try_recv()
            };
            match command {
                Ok(Command::Submit(job)) => self.submit(*job),
                Ok(Command::Reconfigure(config)) => {
                    self.cache.set_max_sessions(config.max_sessions);
                    self.config = config;
                    self.scheduler.set_limits(self.limits());
                }
                Ok(Command::Session(command)) => self.session(command),
                Ok(Command::Retire(answer)) => {
                    self.cache.spill_all(&*self.executor);
                    // Whoever asked may have gone.
                    let _ = answer.send(());
                }
                Ok(Command::Level) => self.apply_level(),
                Ok(Command::Relieve(request)) => {
                    self.relieve(request);
                    self.publish();
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.open = false,
            }
        }
    }

    fn submit(&mut self, job: Job) {
        let arrival = Arrival {
            id: self.next_id,
            key: job.request.key,
            priority: job.request.priority,
            deadline: job.request.deadline,
            prompt_tokens: job.request.prompt.len(),
        };
        self.totals.prompt_tokens += job.request.prompt.len() as u64;
        self.scheduler.submit(self.start.elapsed(), arrival);
        let sequence = Sequence::new(job, self.tokenizer, self.config.context_cap);
        self.sequences.insert(self.next_id, sequence);
        self.next_id += 1;
        let mut shared = lock(&self.shared);
        shared.arriving -= 1;
        shared.stats.waiting += 1;
    }

    /// Ends a sequence; what it has computed stays in the cache.
    pub(crate) fn remove(&mut self, id: u64) {
        self.keep(id);
        self.forget(id);
    }

    /// Ends a sequence and its state.
    pub(crate) fn forget(&mut self, id: u64) {
        self.scheduler.remove(self.now(), id);
        self.executor.drop_sequence(id);
        self.sequences.remove(&id);
    }

    /// Puts the state of a sequence into the cache. Hidden states are not kept there, so embeddings have no use for it.
    fn keep(&mut self, id: u64) {
        let Some(sequence) = self.sequences.get(&id).filter(|sequence| sequence.pooling().is_none()) else {
            return;
        };
        let tokens = &sequence.tokens()[..sequence.past];
        self.cache.keep(&mut *self.executor, id, tokens, sequence.session);
    }

    pub(crate) fn limits(&self) -> Limits {
        limits(&self.config, self.level, &*self.executor)
    }

    /// Most pages. One context always fits, with a page for a copy and one to spare.
    pub(crate) fn page_limit(&self) -> usize {
        let least = self.config.context_cap.div_ceil(self.executor.page_tokens()) + 2;
        self.config.kv_pages.max(least)
    }

    fn step(&mut self) {
        self.extend();
        self.park_last();
        self.guess();
        let mut plan = std::mem::take(&mut self.space.plan);
        self.scheduler.plan(self.room(), &mut plan);
        self.pause(&plan.pause);
        if plan.work.is_empty() {
            self.stalled = self.scheduler.running().next().is_none();
        } else {
            self.compute(&mut plan.work);
        }
        self.space.plan = plan;
    }

    /// Computes what the scheduler has planned.
    fn compute(&mut self, work: &mut [Work]) {
        self.make_room(self.needed(work));
        self.note_reduced(work);
        let began = Instant::now();
        let embeds = |work: &Work| self.sequences[&work.id].pooling().is_some();
        work.sort_by_key(embeds);
        let (generations, embeddings) = work.split_at(work.partition_point(|work| !embeds(work)));
        let mut progress = std::mem::take(&mut self.space.progress);
        progress.clear();
        self.generate(generations, &mut progress);
        self.embed(embeddings, &mut progress);
        let took = began.elapsed();
        self.scheduler.report(took, &progress);
        self.totals.steps += 1;
        self.learn(took, work, &progress);
        self.space.progress = progress;
        for id in std::mem::take(&mut self.over) {
            self.remove(id);
        }
        self.settle(0);
        if let Some(member) = self.account.member() {
            member.count_pass();
        }
    }

    /// Drops the state of sequences that give way; the cache keeps what it can.
    pub(crate) fn pause(&mut self, ids: &[u64]) {
        for &id in ids {
            self.keep(id);
            self.executor.drop_sequence(id);
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.pause();
            }
            self.totals.pauses += 1;
        }
    }

    /// Lets decoding sequences guess, if that pays.
    fn guess(&mut self) {
        let decoding = self.scheduler.count(State::Decoding);
        let wanted =
            self.config.speculate && (1..=MOST_GUESSING).contains(&decoding) && self.payoff.wants_drafts();
        for (&id, sequence) in &mut self.sequences {
            let decodes = self.scheduler.state(id) == Some(State::Decoding);
            sequence.guess(if wanted && decodes { MOST_DRAFTS } else { 0 });
            self.scheduler.offer_drafts(id, sequence.drafts.len());
        }
    }

    /// Tells the payoff of guesses from steps of decoding alone.
    fn learn(&mut self, took: Duration, work: &[Work], progress: &[Progress]) {
        if work.iter().any(|work| work.tokens > 1) || progress.len() != work.len() {
            return;
        }
        let drafted = work.iter().any(|work| work.drafts > 0);
        let gained: usize =
            work.iter().zip(progress).map(|(work, done)| done.past.saturating_sub(work.past)).sum();
        self.payoff.record(took, drafted.then(|| gained as f64 / work.len() as f64));
    }

    /// Makes `batch` the tokens of these, and their guesses.
    fn fill(&mut self, batch: &mut Batch, work: &[Work]) {
        let rows = &mut self.space.rows;
        batch.clear();
        for work in work {
            let sequence = &self.sequences[&work.id];
            rows.clear();
            rows.extend_from_slice(&sequence.pending()[..work.tokens]);
            rows.extend_from_slice(&sequence.drafts[..work.drafts]);
            batch.push(work.id, work.past, rows, work.drafts > 0);
            if work.tokens < sequence.pending().len() {
                // In the middle of a prompt nothing is sampled.
                batch.outputs.pop();
            }
        }
    }

    /// Computes logits for these and samples.
    fn generate(&mut self, work: &[Work], progress: &mut Vec<Progress>) {
        if work.is_empty() {
            return;
        }
        let (mut batch, mut logits) =
            (std::mem::take(&mut self.space.batch), std::mem::take(&mut self.space.logits));
        self.fill(&mut batch, work);
        if self.guarded(work, |executor| executor.run(&batch, &mut logits)).is_some() {
            self.sample(work, &mut logits, progress);
        }
        (self.space.batch, self.space.logits) = (batch, logits);
    }

    /// Takes the tokens that follow from `logits`.
    fn sample(&mut self, work: &[Work], logits: &mut [f32], progress: &mut Vec<Progress>) {
        let mut rows = logits.chunks_exact_mut(self.executor.vocab());
        for work in work {
            let sequence = self.sequences.get_mut(&work.id).expect("it was in the batch");
            let sampled = work.tokens == sequence.pending().len();
            sequence.advance(work.tokens);
            let before = sequence.tokens().len();
            let mut drafts = std::mem::take(&mut sequence.drafts);
            let mut over = false;
            if sampled {
                let mut mine = rows.by_ref().take(1 + work.drafts);
                // A guess that the model confirms makes the next row good.
                for guess in drafts[..work.drafts].iter().map(Some).chain([None]) {
                    let row = mine.next().expect("one row of logits per sampled token");
                    match sequence.take(row, self.tokenizer, &mut self.space.sampler) {
                        Next::Over => over = true,
                        Next::Token(token) if Some(&token) == guess => continue,
                        Next::Token(_) => {}
                    }
                    break;
                }
                mine.for_each(drop);
            }
            drafts.clear();
            sequence.drafts = drafts;
            let generated = sequence.tokens().len() - before;
            let accepted = generated.saturating_sub(1);
            sequence.past += accepted;
            sequence.note_accepted(accepted);
            self.totals.generated_tokens += generated as u64;
            self.totals.drafted_tokens += work.drafts as u64;
            self.totals.accepted_tokens += accepted as u64;
            let (past, length) = (sequence.past, sequence.tokens().len());
            if over {
                self.over.push(work.id);
            } else if sampled && work.tokens > 1 {
                self.share_prompt(work.id);
            }
            progress.push(Progress { id: work.id, past, length });
        }
    }

    /// Puts the full pages of a prompt into the cache as soon as they are computed, for others who begin like it.
    fn share_prompt(&mut self, id: u64) {
        let sequence = &self.sequences[&id];
        let full = sequence.past - sequence.past % self.executor.page_tokens();
        let tokens = &sequence.tokens()[..full];
        self.cache.keep(&mut *self.executor, id, tokens, sequence.session);
    }

    /// Computes hidden states for these and pools them.
    fn embed(&mut self, work: &[Work], progress: &mut Vec<Progress>) {
        for work in work {
            let sequence = &self.sequences[&work.id];
            let mut batch = Batch::default();
            batch.push(work.id, work.past, &sequence.pending()[..work.tokens], true);
            let one = std::slice::from_ref(work);
            let Some(hidden) = self.guarded(one, |executor| executor.hidden(&batch)) else { continue };
            let sequence = self.sequences.get_mut(&work.id).expect("it was in the batch");
            let pooling = sequence.pooling().expect("only embeddings come here");
            sequence.advance(work.tokens);
            if sequence.pool(&hidden, hidden.len() / work.tokens, pooling) == Next::Over {
                self.over.push(work.id);
            }
            progress.push(Progress { id: work.id, past: sequence.past, length: sequence.tokens().len() });
        }
    }

    /// Runs the backend. If it fails or panics, those who were in the step fail, and everything else goes on.
    fn guarded<T>(
        &mut self,
        work: &[Work],
        run: impl FnOnce(&mut dyn Executor) -> Result<T, ExecutorError>,
    ) -> Option<T> {
        let executor = &mut self.executor;
        let reason = match catch_unwind(AssertUnwindSafe(|| run(&mut **executor))) {
            Ok(Ok(result)) => return Some(result),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the backend broke down in a step".to_owned(),
        };
        for work in work {
            let error = GenerateError::Engine(reason.clone());
            if let Some(sequence) = self.sequences.get_mut(&work.id) {
                sequence.fail(error);
            }
            self.forget(work.id);
        }
        None
    }

    pub(crate) fn publish(&mut self) {
        self.offer();
        let waiting = self.scheduler.count(State::Waiting);
        let paused = self.scheduler.count(State::Paused);
        let stats = Stats {
            running: self.sequences.len() - waiting - paused,
            waiting,
            paused,
            pages: self.executor.pages(),
            cached_pages: self.cache.pages(&*self.executor),
            page_limit: self.page_limit(),
            page_bytes: self.config.kv_bytes_per_token * self.executor.page_tokens() as u64,
            sessions: self.cache.sessions(),
            wait_seconds: self.scheduler.estimate_wait().as_secs_f64(),
            ..self.totals
        };
        lock(&self.shared).stats = stats;
    }
}

fn limits(config: &EngineConfig, level: Level, executor: &dyn Executor) -> Limits {
    let effects = Effects::of(level);
    Limits {
        max_running: effects.concurrency.of(config.max_running),
        page_tokens: executor.page_tokens(),
        prefill_tokens: effects.prefill_window.tokens(config.prefill_tokens),
        latency_goal: config.latency_goal,
        latency_factor: LATENCY_FACTOR,
    }
}
