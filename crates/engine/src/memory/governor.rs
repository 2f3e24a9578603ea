//! Watches memory for all engines of a process: samples the sensors, moves the ledger's limit, climbs the ladder and
//! asks engines to free what a level calls for.

use super::report::{MemoryReport, RungReport};
use crate::lock;
use crate::worker::Command;
use lichen_memory::probe::MemorySource;
use lichen_memory::{
    Budget, Escalation, Ladder, Ledger, Level, ModelBytes, Observer, Owner, Request, Residency, Rung, Sample,
    Standing, Thresholds, Transition, UnknownSize, Work, Yields,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Changes of level that are remembered.
const REMEMBERED: usize = 64;

/// How memory is watched.
#[derive(Debug, Clone)]
pub struct GovernorConfig {
    /// Most bytes of this process; `None` leaves it to the machine and its control groups.
    pub budget: Option<u64>,
    /// Time between two samples. Ten a second follow a machine that fills within one; one a second doesn't.
    pub period: Duration,
    /// Where the levels begin and end.
    pub thresholds: Thresholds,
}

impl Default for GovernorConfig {
    fn default() -> Self {
        Self { budget: None, period: Duration::from_millis(100), thresholds: Thresholds::default() }
    }
}

/// Why memory can't be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GovernorError {
    /// Neither a sensor nor the operator says how much there is.
    #[error(transparent)]
    UnknownSize(#[from] UnknownSize),
    /// The system gives no thread.
    #[error("the thread that watches memory could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// See the module. Dropping the last clone ends the thread; engines then keep the last level.
#[derive(Clone)]
pub struct Governor(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    ledger: Ledger,
    state: Mutex<State>,
    level: AtomicU64,
    members: Mutex<Vec<Weak<Member>>>,
    stopped: Mutex<bool>,
    stop: Condvar,
    start: Instant,
}

struct State {
    budget: Budget,
    sample: Sample,
    transitions: VecDeque<Transition>,
    changes: u64,
    residency: BTreeMap<Level, Duration>,
    rungs: BTreeMap<Rung, RungReport>,
}

/// One engine or other part of the process, as the governor and its thread both see it.
pub(crate) struct Member {
    pub(crate) owner: Owner,
    shared: Arc<Shared>,
    /// Nothing once the engine ends.
    commands: Mutex<Option<Sender<Command>>>,
    model: Mutex<ModelBytes>,
    yields: Mutex<Yields>,
    /// When the oldest of its running sequences began, in nanoseconds since the governor's start; the largest number
    /// if none runs.
    oldest: AtomicU64,
    /// Asked for what it could free at each look; engines say it by themselves.
    outside: Option<Box<dyn Fn() -> Yields + Send + Sync>>,
    relieved: Mutex<Vec<Relief>>,
    /// Forward passes.
    passes: AtomicU64,
    busy: AtomicBool,
}

/// What a rung was asked for and has freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Relief {
    pub(crate) request: Request,
    pub(crate) freed: u64,
}

impl Member {
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// What it needs.
    pub(crate) fn model(&self) -> ModelBytes {
        *lock(&self.model)
    }

    /// From now on promises are made in this precision.
    pub(crate) fn promise_in(&self, floor: lichen_memory::KvPrecision) {
        lock(&self.model).floor = floor;
    }

    pub(crate) fn level(&self) -> Level {
        self.shared.level()
    }

    /// Says what each rung could free here now.
    pub(crate) fn offer(&self, yields: Yields) {
        *lock(&self.yields) = yields;
    }

    /// Says when the oldest of its running sequences began.
    pub(crate) fn note_oldest(&self, begun: Option<Instant>) {
        let age = begun.map(|begun| begun.saturating_duration_since(self.shared.start).as_nanos());
        let age = age.and_then(|age| u64::try_from(age).ok()).unwrap_or(u64::MAX);
        self.oldest.store(age, Ordering::Relaxed);
    }

    /// Whether the oldest running sequence of the process is this engine's.
    pub(crate) fn has_right_of_way(&self) -> bool {
        let mine = self.oldest.load(Ordering::Relaxed);
        self.shared.members().iter().all(|member| member.oldest.load(Ordering::Relaxed) >= mine)
    }

    /// What admission of a turn needs to know.
    pub(crate) fn standing(&self) -> Standing {
        let totals = self.ledger().totals();
        Standing {
            limit: lock(&self.shared.state).budget.limit,
            ceiling: totals.limit,
            margin: totals.margin,
            committed: totals.promised,
            permanent: totals.stationary,
            level: self.level(),
        }
    }

    /// Where the limit comes from.
    pub(crate) fn limit_source(&self) -> String {
        lock(&self.shared.state).budget.source.to_string()
    }

    fn offered(&self) -> Yields {
        match &self.outside {
            Some(offer) => offer(),
            None => lock(&self.yields).clone(),
        }
    }

    pub(crate) fn report(&self, relief: Relief) {
        lock(&self.relieved).push(relief);
        self.busy.store(false, Ordering::Relaxed);
    }

    pub(crate) fn count_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    /// The engine ends: it is asked for nothing more.
    pub(crate) fn leave(&self) {
        lock(&self.commands).take();
    }

    /// Whether its engine lives.
    fn ask(&self, command: Command) -> bool {
        lock(&self.commands).as_ref().is_some_and(|commands| commands.send(command).is_ok())
    }
}

impl Shared {
    fn level(&self) -> Level {
        Level::ALL[self.level.load(Ordering::Relaxed) as usize % Level::ALL.len()]
    }

    fn members(&self) -> Vec<Arc<Member>> {
        let mut members = lock(&self.members);
        members.retain(|member| member.strong_count() > 0);
        members.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Governor {
    /// Takes a first sample and starts to watch.
    ///
    /// # Errors
    /// [`GovernorError`]: nobody knows how much memory there is, or the system gives no thread.
    pub fn start(mut source: Box<dyn MemorySource>, config: GovernorConfig) -> Result<Self, GovernorError> {
        let sample = source.sample();
        let unlimited =
            lichen_memory::Limit { bytes: u64::MAX, margin: 0, source: lichen_memory::Source::Host };
        let ledger = Ledger::new(lichen_memory::Domain::Host, unlimited);
        let budget = Budget::measure(&sample, config.budget, 0, &ledger.snapshot())?;
        ledger.set_limit(budget.ledger_limit());
        let state = State {
            budget,
            sample,
            transitions: VecDeque::new(),
            changes: 0,
            residency: BTreeMap::new(),
            rungs: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            ledger,
            state: Mutex::new(state),
            level: AtomicU64::new(0),
            members: Mutex::default(),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
            start: Instant::now(),
        });
        let watched = shared.clone();
        let thread = std::thread::Builder::new().name("lichen-memory".to_owned()).spawn(move || {
            Watch::new(watched, config).run(&mut *source);
        })?;
        Ok(Self(Arc::new(Handle { shared, thread: Some(thread) })))
    }

    /// The account of all bytes.
    pub fn ledger(&self) -> &Ledger {
        &self.0.shared.ledger
    }

    /// How short memory is.
    pub fn level(&self) -> Level {
        self.0.shared.level()
    }

    /// All that is known now.
    pub fn report(&self) -> MemoryReport {
        let account = self.ledger().snapshot();
        let state = lock(&self.0.shared.state);
        MemoryReport {
            now: self.0.shared.start.elapsed(),
            level: self.level(),
            budget: state.budget.refresh(&account),
            account,
            sample: state.sample.clone(),
            transitions: state.transitions.iter().cloned().collect(),
            changes: state.changes,
            residency: state.residency.clone(),
            rungs: state.rungs.clone(),
        }
    }

    /// Bytes of keys and values of the largest context that a loaded model was admitted with.
    pub fn largest_context(&self) -> u64 {
        let members = self.0.shared.members();
        let models = members.iter().map(|member| member.model());
        models.map(|model| model.turn_bytes(model.context_cap, 0, 0)).max().unwrap_or(0)
    }

    /// Takes in an engine.
    pub(crate) fn join(&self, owner: Owner, model: ModelBytes, commands: Sender<Command>) -> Arc<Member> {
        self.admit(self.member(owner, model, commands))
    }

    /// Takes in somebody who is no engine, and who is asked for what it could free.
    pub(crate) fn join_outside(
        &self,
        owner: Owner,
        commands: Sender<Command>,
        offer: Box<dyn Fn() -> Yields + Send + Sync>,
    ) -> Arc<Member> {
        self.admit(Member { outside: Some(offer), ..self.member(owner, ModelBytes::default(), commands) })
    }

    fn member(&self, owner: Owner, model: ModelBytes, commands: Sender<Command>) -> Member {
        Member {
            owner,
            shared: self.0.shared.clone(),
            commands: Mutex::new(Some(commands)),
            model: Mutex::new(model),
            yields: Mutex::default(),
            oldest: AtomicU64::new(u64::MAX),
            outside: None,
            relieved: Mutex::default(),
            passes: AtomicU64::new(0),
            busy: AtomicBool::new(false),
        }
    }

    fn admit(&self, member: Member) -> Arc<Member> {
        let member = Arc::new(member);
        lock(&self.0.shared.members).push(Arc::downgrade(&member));
        member
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        *lock(&self.shared.stopped) = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Watch {
    shared: Arc<Shared>,
    config: GovernorConfig,
    observer: Observer,
    ladder: Ladder,
    escalation: Escalation,
    last: Duration,
}

impl Watch {
    fn new(shared: Arc<Shared>, config: GovernorConfig) -> Self {
        Self {
            shared,
            observer: Observer::default(),
            ladder: Ladder::new(config.thresholds.clone()),
            escalation: Escalation::default(),
            config,
            last: Duration::ZERO,
        }
    }

    fn run(mut self, source: &mut dyn MemorySource) {
        loop {
            let stopped = lock(&self.shared.stopped);
            let waited =
                self.shared.stop.wait_timeout_while(stopped, self.config.period, |stopped| !*stopped);
            if waited.is_ok_and(|(stopped, _)| *stopped) {
                return;
            }
            self.look(source.sample());
        }
    }

    /// One look at memory.
    fn look(&mut self, sample: Sample) {
        let now = self.shared.start.elapsed();
        let members = self.shared.members();
        let account = self.shared.ledger.snapshot();
        let hot = account.class(lichen_memory::Class::WeightsMapped).mapped;
        // Sensors that tell nothing leave the budget as it was.
        let Ok(budget) = Budget::measure(&sample, self.config.budget, hot, &account) else { return };
        self.shared.ledger.set_limit(budget.ledger_limit());
        let passes = |member: &Arc<Member>| member.passes.load(Ordering::Relaxed);
        let work = Work {
            passes: members.iter().map(passes).sum(),
            weight_bytes: members
                .iter()
                .map(|member| passes(member) * member.model().weights(Residency::Resident))
                .sum(),
            failed_allocations: 0,
        };
        let signals = self.observer.observe(now, &sample, &budget, work);
        let before = self.ladder.level();
        let transition = self.ladder.step(now, &signals);
        let level = self.ladder.level();
        self.note(now, before, transition, &budget, sample);
        self.shared.level.store(
            Level::ALL.iter().position(|other| *other == level).unwrap_or(0) as u64,
            Ordering::Relaxed,
        );
        if level != before {
            members.iter().for_each(|member| {
                member.ask(Command::Level);
            });
        }
        if level > Level::Normal {
            self.relieve(now, level, &budget, signals.exhaustion, &members);
        }
    }

    fn note(
        &mut self,
        now: Duration,
        before: Level,
        transition: Option<Transition>,
        budget: &Budget,
        sample: Sample,
    ) {
        let mut state = lock(&self.shared.state);
        *state.residency.entry(before).or_default() +=
            now.saturating_sub(std::mem::replace(&mut self.last, now));
        (state.budget, state.sample) = (budget.clone(), sample);
        if let Some(transition) = transition {
            state.changes += 1;
            state.transitions.push_back(transition);
            let surplus = state.transitions.len().saturating_sub(REMEMBERED);
            state.transitions.drain(..surplus);
        }
    }

    /// Takes note of what was freed, and asks for more.
    fn relieve(
        &mut self,
        now: Duration,
        level: Level,
        budget: &Budget,
        exhaustion: f64,
        members: &[Arc<Member>],
    ) {
        for member in members {
            for relief in std::mem::take(&mut *lock(&member.relieved)) {
                self.escalation.report(relief.request.rung, relief.request.bytes, relief.freed);
                let mut state = lock(&self.shared.state);
                state.rungs.entry(relief.request.rung).or_default().freed += relief.freed;
            }
        }
        // An engine that has not answered yet is in a long step; what it offered may be gone.
        let free = members.iter().filter(|member| !member.busy.load(Ordering::Relaxed));
        let mut offers: Vec<(&Arc<Member>, Yields)> = free.map(|member| (member, member.offered())).collect();
        // Whose sequences began last gives way first; who has the right of way, last.
        offers.sort_by_key(|(member, _)| std::cmp::Reverse(member.oldest.load(Ordering::Relaxed)));
        let mut yields = Yields::new();
        for (rung, bytes) in offers.iter().flat_map(|(_, offer)| offer) {
            *yields.entry(*rung).or_default() += bytes;
        }
        for Request { rung, mut bytes } in self.escalation.batch(now, level, budget, exhaustion, &yields) {
            lock(&self.shared.state).rungs.entry(rung).or_default().asked += 1;
            for (member, offer) in &offers {
                let part = offer.get(&rung).copied().unwrap_or(0).min(bytes);
                if part > 0 {
                    // Before it is asked, since it may answer at once.
                    member.busy.store(true, Ordering::Relaxed);
                    let asked = member.ask(Command::Relieve(Request { rung, bytes: part }));
                    bytes -= if asked { part } else { 0 };
                }
            }
        }
    }
}
