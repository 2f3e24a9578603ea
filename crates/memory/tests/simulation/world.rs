//! A scheduler with ledger, ladder and admission in a control group that another process fills too.

use crate::random::{Pressure, Random};
use crate::sequence::{MIB, Pages, Sequence, State, model, page, scratch};
use lichen_memory::probe::{MemorySource, Scripted};
use lichen_memory::{
    Budget, Class, Domain, Effects, Escalation, Group, KvPrecision, Ladder, Ledger, Level, Limit, ModelBytes,
    Observer, Owner, Reach, Reservation, Rung, Sample, Slots, Source, Standing, Thresholds, Transition, Turn,
    TurnVerdict, Work, Yields, admit_turn,
};
use std::time::Duration;

const SLOTS: usize = 4;
/// Pages that can be requantised in a tenth of a second.
const CONVERSIONS: u64 = 114;
/// Tokens of prompt that can be computed in a tenth of a second.
const PREFILL: u64 = 100;

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) pressure: Pressure,
    pub(crate) tenth: u64,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) transitions: Vec<Transition>,
    pub(crate) refused: usize,
    pub(crate) parks: usize,
    /// Requests still to come.
    pub(crate) coming: usize,
    next_arrival: u64,
    next_place: u64,
    model: ModelBytes,
    owner: Owner,
    ledger: Ledger,
    fixed: Vec<Reservation>,
    scratch: Reservation,
    cache: Reservation,
    cached: Pages,
    observer: Observer,
    ladder: Ladder,
    escalation: Escalation,
    effects: Effects,
    budget: Budget,
    conversions: u64,
}

impl World {
    pub(crate) fn new(mut random: Random, pressure: Pressure, requests: usize) -> Self {
        let limit = Limit {
            bytes: pressure.limit,
            margin: lichen_memory::margin(pressure.limit),
            source: Source::Group("/box".into()),
        };
        let (ledger, model, owner) = (Ledger::new(Domain::Host, limit), model(), Owner::new("chat", 0));
        let reserve = |class, bytes| ledger.reserve(&owner, class, bytes).unwrap();
        let fixed = vec![
            reserve(Class::Fixed, 40 * MIB),
            reserve(Class::WeightsMapped, model.weights_mapped),
            reserve(Class::Emergency, 3 * MIB),
        ];
        let scratch = reserve(Class::Scratch, model.scratch);
        let cache = reserve(Class::PrefixCache, 0);
        let empty = Sample { total: Some(pressure.limit), ..Sample::default() };
        Self {
            next_arrival: random.between(0, 50),
            budget: Budget::measure(&empty, None, 0, &ledger.snapshot()).unwrap(),
            random,
            pressure,
            tenth: 0,
            sequences: Vec::new(),
            transitions: Vec::new(),
            refused: 0,
            parks: 0,
            coming: requests,
            next_place: 0,
            model,
            owner,
            ledger,
            fixed,
            scratch,
            cache,
            cached: Pages::default(),
            observer: Observer::default(),
            ladder: Ladder::new(Thresholds::default()),
            escalation: Escalation::default(),
            effects: Effects::of(Level::Normal),
            conversions: 0,
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(100 * self.tenth)
    }

    pub(crate) fn level(&self) -> Level {
        self.ladder.level()
    }

    /// A tenth of a second.
    pub(crate) fn tick(&mut self) {
        self.tenth += 1;
        self.conversions = CONVERSIONS;
        self.sense();
        self.relieve();
        self.arrive();
        self.resume_and_admit();
        self.check_slots();
        self.compute();
        self.settle_scratch();
        self.check_account();
    }

    fn sense(&mut self) {
        let others = self.pressure.bytes(self.tenth, &mut self.random);
        let account = self.ledger.snapshot();
        let (mapped, weights) = (account.mapped(), self.model.weights_mapped);
        let limit = self.pressure.limit;
        assert!(mapped + others <= limit, "killed at {:?} with {mapped} and {others} of {limit}", self.now());
        let sample = Sample {
            anonymous: Some(mapped - weights),
            file: Some(weights),
            groups: vec![Group {
                name: "/box".into(),
                limit,
                usage: Some(mapped + others),
                file: Some(weights),
                limit_hits: Some(0),
                out_of_memory: Some(0),
            }],
            ..Sample::default()
        };
        let sample = Scripted::new(vec![sample]).sample();
        self.budget = Budget::measure(&sample, None, weights, &account).unwrap();
        self.ledger.set_limit(self.budget.ledger_limit());
        let signals = self.observer.observe(self.now(), &sample, &self.budget, Work::default());
        self.transitions.extend(self.ladder.step(self.now(), &signals));
        self.effects = Effects::of(self.level());
        let yields = self.yields();
        let batch =
            self.escalation.batch(self.now(), self.level(), &self.budget, signals.exhaustion, &yields);
        for request in batch {
            let before = self.held();
            self.perform(request.rung, request.bytes);
            self.escalation.report(request.rung, yields[&request.rung], before - self.held());
        }
    }

    fn held(&self) -> u64 {
        let account = self.ledger.snapshot();
        account.mapped() + account.promised()
    }

    /// Running sequences, the oldest first.
    pub(crate) fn running(&self) -> Vec<usize> {
        let mut running: Vec<usize> =
            (0..self.sequences.len()).filter(|at| self.sequences[*at].state == State::Running).collect();
        running.sort_by_key(|at| self.sequences[*at].place);
        running
    }

    fn slots(&self) -> usize {
        self.effects.concurrency.of(SLOTS)
    }

    fn yields(&self) -> Yields {
        let running = self.running();
        let saving = |to: Option<KvPrecision>, pages: &Pages| to.map_or(0, |to| pages.saving(to));
        let active =
            running.iter().map(|at| saving(self.effects.requantise_active, &self.sequences[*at].sealed));
        let floor = |at: &usize| self.sequences[*at].floor.as_ref().map_or(0, Reservation::bytes);
        let parks = running.iter().skip(self.slots()).map(floor).sum();
        Yields::from([
            (Rung::RequantiseCached, saving(self.effects.requantise_cached, &self.cached)),
            (Rung::RequantiseActive, active.sum()),
            (Rung::NarrowPrefill, self.shrinkable(128)),
            (Rung::EvictCold, self.cached.bytes()),
            (Rung::ParkNewest, parks),
            (Rung::OneSlot, parks),
            (Rung::SmallestScratch, self.shrinkable(32)),
            (Rung::ParkLast, running.first().map_or(0, floor)),
        ])
    }

    /// Bytes of scratch that smaller batches don't need.
    fn shrinkable(&self, batch: u64) -> u64 {
        self.scratch.bytes().saturating_sub(scratch(batch))
    }

    fn perform(&mut self, rung: Rung, bytes: u64) {
        match rung {
            Rung::RequantiseCached => {
                let to = self.effects.requantise_cached.unwrap();
                let freed = self.cached.requantise(to, bytes, &mut self.conversions);
                self.cache.shrink(freed);
            }
            Rung::RequantiseActive => {
                let to = self.effects.requantise_active.unwrap();
                let mut order = self.running();
                order.sort_by_key(|at| std::cmp::Reverse(self.sequences[*at].sealed.saving(to)));
                let mut left = bytes;
                for at in order {
                    left -= self.sequences[at].requantise(to, left, &mut self.conversions).min(left);
                }
            }
            Rung::NarrowPrefill => drop(self.scratch.shrink(bytes.min(self.shrinkable(128)))),
            Rung::SmallestScratch => drop(self.scratch.shrink(bytes.min(self.shrinkable(32)))),
            Rung::EvictCold => self.evict(bytes),
            Rung::ParkNewest | Rung::OneSlot => {
                let mut left = bytes;
                for at in self.running().into_iter().skip(self.slots()).rev() {
                    if left > 0 {
                        left -= self.sequences[at].floor.as_ref().map_or(0, Reservation::bytes).min(left);
                        self.park(at);
                    }
                }
            }
            Rung::ParkLast => self.running().into_iter().for_each(|at| self.park(at)),
            other => panic!("{other} has nothing to free"),
        }
    }

    fn evict(&mut self, bytes: u64) {
        let mut freed = 0;
        for precision in KvPrecision::ALL {
            while freed < bytes && self.cached.0[precision as usize] > 0 {
                self.cached.0[precision as usize] -= 1;
                freed += page(precision);
            }
        }
        self.cache.shrink(freed);
    }

    fn park(&mut self, at: usize) {
        self.sequences[at].park();
        self.parks += 1;
    }

    /// At the last level only the oldest runs.
    fn relieve(&mut self) {
        if self.level() == Level::Critical {
            self.running().into_iter().skip(1).for_each(|at| self.park(at));
        }
    }

    fn arrive(&mut self) {
        if self.coming == 0 || self.tenth < self.next_arrival {
            return;
        }
        self.coming -= 1;
        self.next_arrival = self.tenth + self.random.between(2, 200);
        let long = self.random.between(0, 9) == 0;
        let prompt = if long { self.random.between(7_000, 40_000) } else { self.random.between(1, 7_000) };
        let answer = self.random.between(1, 200);
        self.sequences.push(Sequence::waiting(prompt, answer));
    }

    fn standing(&self) -> Standing {
        let totals = self.ledger.totals();
        Standing {
            limit: self.budget.limit,
            ceiling: self.budget.ceiling,
            margin: self.budget.margin,
            committed: totals.promised,
            // What runs alone gets the room of larger batches too.
            permanent: totals.stationary - self.shrinkable(32),
            level: self.level(),
        }
    }

    fn verdict(&self, prompt_tokens: u64, answer: u64) -> TurnVerdict {
        let turn = Turn { prompt_tokens, shared_tokens: 0, max_tokens: Some(answer), default_tokens: 0 };
        let slots = Slots { running: self.running().len(), target: self.slots() };
        admit_turn(&self.model, turn, slots, &self.standing())
    }

    /// Parked ones first, by age; then those that wait, in order.
    fn resume_and_admit(&mut self) {
        loop {
            let running = self.running().len();
            let next = (0..self.sequences.len())
                .filter(|at| matches!(self.sequences[*at].state, State::Waiting | State::Parked))
                .min_by_key(|at| (self.sequences[*at].place, *at));
            let Some(at) = next.filter(|_| running < self.slots()) else { return };
            let begun = match self.sequences[at].state {
                State::Parked => self.resume(at, running == 0),
                _ => self.admit(at),
            };
            if !begun {
                return;
            }
        }
    }

    fn resume(&mut self, at: usize, alone: bool) -> bool {
        let Sequence { prompt, answer, .. } = self.sequences[at];
        let need = self.model.turn_bytes(prompt, 0, answer);
        let reach = if alone { Reach::Margin } else { Reach::Budget };
        if alone {
            self.evict(u64::MAX);
            self.scratch.shrink(self.shrinkable(32));
        }
        match self.ledger.reserve_within(&self.owner, Class::KvFloor, need, reach) {
            Ok(floor) => self.begin(at, floor),
            Err(_) => return false,
        }
        true
    }

    fn admit(&mut self, at: usize) -> bool {
        let Sequence { prompt, answer, .. } = self.sequences[at];
        match self.verdict(prompt, answer) {
            // What fits only alone gets the room of larger batches too.
            TurnVerdict::Queue { .. } if self.running().is_empty() => {
                self.scratch.shrink(self.shrinkable(32)) > 0
            }
            TurnVerdict::Queue { .. } => false,
            TurnVerdict::Admit { reserve, max_tokens } => {
                assert_eq!(max_tokens, answer, "what was asked for is not changed");
                let floor = self.ledger.reserve(&self.owner, Class::KvFloor, reserve);
                self.sequences[at].place = self.next_place;
                self.next_place += 1;
                self.begin(at, floor.expect("an admitted turn has room"));
                true
            }
            TurnVerdict::Refuse(refusal) => {
                let now = refusal.max_prompt_tokens_now;
                assert!(
                    now == 0 || matches!(self.verdict(now, answer), TurnVerdict::Admit { .. }),
                    "{refusal}"
                );
                let alone = refusal.max_prompt_tokens_alone;
                assert!(alone < prompt);
                assert!(
                    alone == 0 || !matches!(self.verdict(alone, answer), TurnVerdict::Refuse(_)),
                    "{refusal}"
                );
                self.sequences.remove(at);
                self.refused += 1;
                true
            }
        }
    }

    fn begin(&mut self, at: usize, floor: Reservation) {
        let surplus = self.ledger.reserve(&self.owner, Class::KvSurplus, 0).unwrap();
        let sequence = &mut self.sequences[at];
        (sequence.state, sequence.floor, sequence.surplus) = (State::Running, Some(floor), Some(surplus));
    }

    fn compute(&mut self) {
        let mut prefill = PREFILL;
        let running = self.running();
        let reach = if running.len() == 1 { Reach::Margin } else { Reach::Budget };
        for at in running {
            let sequence = &mut self.sequences[at];
            let left = sequence.prompt.saturating_sub(sequence.position);
            let tokens = if left > 0 { left.min(prefill) } else { 1 };
            if tokens == 0 || !self.make_room(at, reach) {
                continue;
            }
            prefill -= tokens.min(if left > 0 { prefill } else { 0 });
            let sequence = &mut self.sequences[at];
            let before = sequence.position;
            sequence.position += tokens;
            if self.extend(at, reach) {
                let sequence = &mut self.sequences[at];
                sequence.answered = sequence.position.saturating_sub(sequence.prompt);
                if sequence.answered == sequence.answer {
                    self.end(at);
                }
            } else {
                self.sequences[at].position = before;
            }
        }
    }

    /// Has the pages that the sequence has computed already, after it was parked.
    fn make_room(&mut self, at: usize, reach: Reach) -> bool {
        self.with_revocation(at, |sequence| sequence.map(reach))
    }

    fn extend(&mut self, at: usize, reach: Reach) -> bool {
        let precision = self.effects.new_pages;
        self.with_revocation(at, |sequence| sequence.extend(precision, reach))
    }

    /// Tries, and revokes what is missing: cached pages, then the surplus of running sequences.
    fn with_revocation(
        &mut self,
        at: usize,
        mut attempt: impl FnMut(&mut Sequence) -> Result<(), lichen_memory::OverBudget>,
    ) -> bool {
        loop {
            let Err(refusal) = attempt(&mut self.sequences[at]) else { return true };
            let (missing, before) = (refusal.need - refusal.available, self.held());
            self.evict(missing);
            for other in self.running() {
                let freed = before - self.held();
                let left = missing.saturating_sub(freed);
                self.sequences[other].requantise(KvPrecision::Q4, left, &mut self.conversions);
            }
            if self.held() == before {
                return false;
            }
        }
    }

    /// Its pages go to the cache as far as that may grow.
    fn end(&mut self, at: usize) {
        let mut sealed = self.sequences[at].sealed;
        self.sequences[at].park();
        self.sequences[at].state = State::Done;
        if !self.effects.caches_grow || self.cache.bytes() > self.pressure.limit / 4 {
            sealed = Pages::default();
        }
        if self.cache.grow(sealed.bytes()).is_ok() {
            (0..4).for_each(|precision| self.cached.0[precision] += sealed.0[precision]);
        }
    }

    /// Scratch grows back when it may.
    fn settle_scratch(&mut self) {
        let wanted = scratch(self.effects.prefill_window.tokens(512) as u64);
        let missing = wanted.saturating_sub(self.scratch.bytes());
        // Refused growth is tried again at the next tick.
        let _ = self.scratch.grow(missing);
    }

    /// At the last level one runs if any can, and whatever the level, something that could run does.
    fn check_slots(&self) {
        let running = self.running();
        assert!(self.level() < Level::Critical || running.len() <= 1);
        if let Some(parked) =
            self.sequences.iter().find(|one| running.is_empty() && one.state == State::Parked)
        {
            let need = self.model.turn_bytes(parked.prompt, 0, parked.answer);
            let account = self.ledger.snapshot();
            assert!(
                account.promised() + need > account.limit.within(Reach::Margin),
                "it fits, and nothing runs"
            );
        }
    }

    /// The ledger knows of every page.
    fn check_account(&self) {
        let running = self.running();
        let account = self.ledger.snapshot();
        let pages: u64 = running.iter().map(|at| self.sequences[*at].bytes()).sum();
        let fixed: u64 = self.fixed.iter().map(Reservation::bytes).sum();
        assert_eq!(account.mapped(), fixed + self.scratch.bytes() + self.cached.bytes() + pages);
    }
}
