//! From requests to tokens: one thread owns a model, batches the requests that run, samples and reports.

mod admission;
mod gate;
mod memory;
mod prefix_cache;
mod pressure;
mod sampler;
mod sequence;
mod session;
mod speculation;
mod spill;
mod thinking;
mod worker;

pub use gate::{KvGate, divergence};
pub use memory::{Enlisted, Governor, GovernorConfig, GovernorError, MemoryReport, Reliever, RungReport};
pub use pressure::FINE_PAGES;
pub use sampler::{Sampler, SamplerScratch};
pub use session::{ImportError, Imported, KeptSession, SessionState};
pub use spill::{ColdTier, LeavingPage, TakePage};

use lichen_backend::{Executor, KvPrecision};
use lichen_generate::{Admissions, Generate, GenerateError, Request, Sink, Stats, Ticket};
use lichen_memory::{ModelBytes, Owner, Reservation};
use lichen_text::Tokenizer;
use memory::Member;
use sequence::Job;
use spill::Spill;
use std::sync::mpsc::{Sender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Command, Worker};

/// Limits of one engine. All of them can be changed while it runs.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Most tokens of prompt and answer together.
    pub context_cap: usize,
    /// Most prompt tokens that one step works on.
    pub prefill_tokens: usize,
    /// Most requests that run at once; others wait.
    pub max_running: usize,
    /// Most requests that wait; others are refused.
    pub queue_limit: usize,
    /// Tokens that are promised to an answer whose request doesn't say how long it may be, and then again and again:
    /// it ends at the context cap.
    pub answer_reserve: usize,
    /// Requests that have waited so long for memory are refused.
    pub queue_timeout: Duration,
    /// Most KV pages of running requests and prefix cache together; at least one context is always allowed.
    pub kv_pages: usize,
    /// Most sessions whose state is kept in preference to others.
    pub max_sessions: usize,
    /// Bytes of keys and values that one token takes; errors and statistics tell it.
    pub kv_bytes_per_token: u64,
    /// How keys and values are stored while memory is not short.
    pub kv_precision: KvPrecision,
    /// Which precisions they may be brought to when memory is short.
    pub kv_gate: KvGate,
    /// Guess tokens from what the text has said before.
    pub speculate: bool,
    /// Steps of running requests may take this long for the sake of new prompts, or a small multiple of what they
    /// take alone, whichever is longer.
    pub latency_goal: Duration,
}

impl EngineConfig {
    /// What pages of this precision are stored in: what was configured if that is coarser, else the next finer
    /// precision that the model bears. Single precision is for comparison and stays.
    #[must_use]
    pub fn kv_at_most(&self, precision: KvPrecision) -> KvPrecision {
        match self.kv_precision {
            KvPrecision::F32 => KvPrecision::F32,
            configured => configured.min(self.kv_gate.at_least(precision)),
        }
    }

    /// The coarsest precision that keys and values can come to, in which promises are made.
    #[must_use]
    pub fn kv_floor(&self) -> KvPrecision {
        self.kv_at_most(KvPrecision::Q4)
    }

    /// [`EngineConfig::kv_floor`] by the ladder's name.
    #[must_use]
    pub fn promised_precision(&self) -> lichen_memory::KvPrecision {
        memory::rank(self.kv_floor())
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            context_cap: 4096,
            prefill_tokens: 256,
            max_running: 8,
            queue_limit: 64,
            answer_reserve: 1024,
            queue_timeout: Duration::from_secs(120),
            kv_pages: 1024,
            max_sessions: 64,
            kv_bytes_per_token: 0,
            kv_precision: KvPrecision::F16,
            kv_gate: KvGate::default(),
            speculate: true,
            latency_goal: Duration::from_millis(20),
        }
    }
}

/// What the engine's thread shares with its callers.
#[derive(Debug, Default)]
struct Shared {
    /// Published after each step.
    stats: Stats,
    /// Requests sent and not taken in yet: a burst comes within a step.
    arriving: usize,
    /// Requests that were refused before the engine's thread saw them.
    refused: Admissions,
}

/// A model and the thread that runs it. Dropping it ends the thread; requests then are reported as cancelled.
pub struct Engine {
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Mutex<Shared>>,
    vocab: usize,
    config: Mutex<EngineConfig>,
    member: Option<Arc<Member>>,
    /// What was reserved for it besides pages; given back with the engine.
    _reserved: Vec<Arc<Reservation>>,
}

/// An engine's place in the memory of its process.
pub struct Placement {
    /// Who watches.
    pub governor: Governor,
    /// Whose its bytes are.
    pub owner: Owner,
    /// What it needs, as its load was admitted.
    pub model: ModelBytes,
    /// What has been reserved for weights, scratch and the rest. Replicas share their weights.
    pub reserved: Vec<Arc<Reservation>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that is done under these locks can leave a half-made value behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the thread, with nobody watching the memory.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        executor: Box<dyn Executor>,
        tokenizer: Arc<Tokenizer>,
        config: EngineConfig,
    ) -> std::io::Result<Self> {
        Self::start_placed(executor, tokenizer, config, None, None)
    }

    /// Starts the thread of an engine that takes part in the memory of its process, and puts what it doesn't keep there
    /// into a colder tier.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start_placed(
        executor: Box<dyn Executor>,
        tokenizer: Arc<Tokenizer>,
        config: EngineConfig,
        placement: Option<Placement>,
        tier: Option<Arc<dyn ColdTier>>,
    ) -> std::io::Result<Self> {
        let (commands, incoming) = std::sync::mpsc::channel();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let vocab = executor.vocab();
        let (member, reserved) = match placement {
            None => (None, Vec::new()),
            Some(Placement { governor, owner, model, reserved }) => {
                (Some(governor.join(owner, model, commands.clone())), reserved)
            }
        };
        let spill =
            tier.map(|tier| Spill::start(tier, executor.page_tokens(), member.as_deref())).transpose()?;
        let for_worker = (shared.clone(), config.clone(), member.clone());
        let thread = std::thread::Builder::new().name("lichen-engine".to_owned()).spawn(move || {
            let (shared, config, member) = for_worker;
            Worker::new(executor, &tokenizer, incoming, shared, config, member, spill).work();
        })?;
        let (commands, thread, config) = (Some(commands), Some(thread), Mutex::new(config));
        Ok(Self { commands, thread, shared, vocab, config, member, _reserved: reserved })
    }

    /// Changes the limits. Requests that were taken keep what they were promised.
    pub fn reconfigure(&self, change: impl FnOnce(&mut EngineConfig)) {
        let mut config = lock(&self.config);
        change(&mut config);
        if let Some(member) = &self.member {
            member.promise_in(config.promised_precision());
        }
        // Sending fails only if the thread has ended, which the next request will be told. The lock is kept so that the
        // thread has changes in the order of those who make them.
        let _ = self.commands().send(Command::Reconfigure(config.clone()));
    }

    /// The limits in force.
    pub fn config(&self) -> EngineConfig {
        lock(&self.config).clone()
    }

    /// Writes what the cache holds to the cold tier, for an engine that comes after this one, and waits until it is there.
    /// Nothing goes there any more after that.
    pub fn retire(&self) {
        let (answer, answered) = sync_channel(1);
        if self.commands().send(Command::Retire(answer)).is_ok() {
            // If the thread has ended, it has written before.
            let _ = answered.recv();
        }
    }

    pub(crate) fn commands(&self) -> &Sender<Command> {
        self.commands.as_ref().expect("the sender lives until the engine is dropped")
    }
}

impl Generate for Engine {
    fn context_cap(&self) -> usize {
        lock(&self.config).context_cap
    }

    fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, GenerateError> {
        let config = self.config();
        self.check(&request, &config)?;
        {
            let mut shared = lock(&self.shared);
            let (stats, limit) = (&shared.stats, config.queue_limit);
            let all = shared.arriving + stats.waiting + stats.paused + stats.running;
            let queued = all.saturating_sub(config.max_running.max(1));
            if all >= config.max_running.max(1) && queued >= limit {
                let estimate = Duration::from_secs_f64(shared.stats.wait_seconds.clamp(0.0, 3600.0));
                shared.refused.queue_full += 1;
                return Err(GenerateError::QueueFull { queued, limit, estimate });
            }
            shared.arriving += 1;
        }
        let (ticket, cancelled) = Ticket::new();
        let job = Job { request, sink, cancelled, submitted: Instant::now() };
        self.commands()
            .send(Command::Submit(Box::new(job)))
            .map_err(|_| GenerateError::Engine("the engine's thread has ended".to_owned()))?;
        Ok(ticket)
    }

    fn stats(&self) -> Stats {
        let shared = lock(&self.shared);
        let Admissions { over_context, over_memory, queue_full, .. } = shared.refused;
        let admissions = Admissions { over_context, over_memory, queue_full, ..shared.stats.admissions };
        Stats { waiting: shared.arriving + shared.stats.waiting, admissions, ..shared.stats }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(member) = &self.member {
            member.leave();
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
