//! The registry under seeded random use, by a caller that loads and drops in its own time. Three to five
//! models, room for about two.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_registry::{Action, Entry, Limits, Registry, ReplicaId, State, Unavailable, WaiterId};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

const SEEDS: u64 = 300;
const STEPS: usize = 500;
const LIMIT: u64 = 20;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize].clone())
    }
}

/// What happened; the tests see to it that everything did.
#[derive(Default, Debug, PartialEq)]
struct Tally {
    acquired: usize,
    served_waiters: usize,
    evicted: usize,
    expired: usize,
    outgrown: usize,
    refused: usize,
    cancelled: usize,
    broken: usize,
    relieved: usize,
    crowded: usize,
    brought: usize,
}

/// A replica whose load was asked for and whose end isn't reported.
struct Resident {
    model: Entry,
    bytes: u64,
    ready_at: Option<Duration>,
    last_used: Option<Duration>,
}

struct World {
    random: Random,
    now: Duration,
    registry: Registry,
    min_residency: Duration,
    pressure_idle: Duration,
    /// Whether memory is short just now.
    pressing: bool,
    /// Whether loads may take more than announced.
    outgrows: bool,
    models: Vec<Entry>,
    residents: BTreeMap<ReplicaId, Resident>,
    /// The load that runs.
    job: Option<ReplicaId>,
    /// Drops asked for and not done.
    drops: BTreeSet<ReplicaId>,
    /// Replicas that may go whatever the rules of eviction say.
    told_to_go: BTreeSet<ReplicaId>,
    references: Vec<ReplicaId>,
    waiters: Vec<(WaiterId, String)>,
    asked: HashSet<Action>,
    log: Vec<Action>,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let min_residency = Duration::from_secs(random.below(40));
        let pressure_idle = Duration::from_secs(random.below(20));
        let mut registry =
            Registry::new(Limits { bytes: LIMIT, min_residency, pressure_idle, ..Limits::default() });
        let models: Vec<Entry> = (0..3 + random.below(3))
            .map(|number| Entry {
                name: format!("m{number}"),
                bytes: 6 + random.below(6),
                ttl: random.chance(40).then(|| Duration::from_secs(random.below(60))),
                pinned: random.chance(5),
                priority: i32::from(random.chance(20)),
            })
            .collect();
        for model in &models {
            registry.declare(model.clone());
        }
        Self {
            random,
            now: Duration::ZERO,
            registry,
            min_residency,
            pressure_idle,
            pressing: false,
            outgrows: seed % 2 == 1,
            models,
            residents: BTreeMap::new(),
            job: None,
            drops: BTreeSet::new(),
            told_to_go: BTreeSet::new(),
            references: Vec::new(),
            waiters: Vec::new(),
            asked: HashSet::new(),
            log: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn model(&mut self) -> Entry {
        self.random.pick(&self.models).unwrap()
    }

    fn accept(&mut self, actions: Vec<Action>) {
        for action in actions {
            assert!(self.asked.insert(action), "{action:?} is asked for twice");
            self.log.push(action);
            match action {
                Action::Load(id) => self.begin_load(id),
                Action::Unload(id) => self.begin_drop(id),
            }
        }
    }

    fn begin_load(&mut self, id: ReplicaId) {
        assert_eq!(self.job, None, "two loads at a time");
        self.job = Some(id);
        let view = self.registry.replica(id).unwrap();
        let model = self.models.iter().find(|model| model.name == view.name).unwrap().clone();
        self.residents.insert(id, Resident { model, bytes: view.bytes, ready_at: None, last_used: None });
        assert!(self.memory() <= LIMIT, "{} bytes at the start of a load", self.memory());
    }

    fn begin_drop(&mut self, id: ReplicaId) {
        assert!(!self.references.contains(&id), "{id} is in use");
        assert!(self.drops.insert(id));
        if self.told_to_go.contains(&id) {
            return;
        }
        let Resident { model, ready_at, last_used, .. } = &self.residents[&id];
        assert!(!model.pinned, "{id} is pinned");
        assert!(self.waiters.iter().all(|(_, name)| *name != model.name), "{id} is waited for");
        let ready_at = ready_at.expect("a running load is stopped only when told");
        if model.ttl.zip(*last_used).is_some_and(|(ttl, last)| last + ttl <= self.now) {
            self.tally.expired += 1;
        } else if self.pressing && last_used.unwrap_or(ready_at) + self.pressure_idle <= self.now {
            self.tally.relieved += 1;
        } else {
            let settled = ready_at + self.min_residency <= self.now;
            assert!(settled || last_used.is_some(), "{id} is evicted before it served anybody");
            self.tally.evicted += 1;
        }
    }

    fn memory(&self) -> u64 {
        self.residents.values().map(|resident| resident.bytes).sum()
    }

    /// Memory is short for reasons of its own.
    fn press(&mut self) {
        // What is due has happened, so that the rest is done for want of memory.
        self.tick();
        let bytes = self.random.below(LIMIT);
        let offered = self.registry.idle_bytes(self.now);
        let kept: BTreeSet<String> = self.names();
        self.pressing = true;
        let (freed, actions) = self.registry.relieve(self.now, bytes);
        assert!(freed >= bytes.min(offered) && freed <= offered, "{freed} of {offered} for {bytes}");
        self.accept(actions);
        assert_eq!(self.names(), kept, "what gives way to short memory is not forgotten");
        self.pressing = false;
    }

    /// Models that requests can have, sooner or later.
    fn names(&self) -> BTreeSet<String> {
        let staying =
            |state: &State| !matches!(state, State::Draining | State::Unloading | State::Failed { .. });
        let listed =
            self.registry.list().filter(|view| staying(&view.state)).map(|view| view.name.to_owned());
        listed.chain(self.registry.declared().map(|entry| entry.name.clone())).collect()
    }

    /// The load that runs finds less room than it needs.
    fn crowd(&mut self) {
        let Some(id) = self.job.take() else { return };
        let need = self.residents[&id].bytes;
        self.gone(id);
        let available = self.random.below(need.max(1));
        let unwanted = self.told_to_go.contains(&id);
        let (again, actions) = self.registry.crowded(self.now, id, need, available);
        assert!(!(unwanted && again.is_some()), "{id} was told to go and is loaded again");
        self.tally.crowded += usize::from(again.is_some());
        self.accept(actions);
    }

    /// One replica is told to go.
    fn unload_one(&mut self) {
        let listed: Vec<ReplicaId> = self.registry.list().map(|view| view.id).collect();
        let Some(id) = self.random.pick(&listed) else { return };
        self.told_to_go.insert(id);
        if let Ok(actions) = self.registry.unload_replica(self.now, id) {
            self.accept(actions);
        }
    }

    /// Ends the load that runs, also one that is to be dropped already.
    fn end_load(&mut self, fails: bool) {
        let Some(id) = self.job.take() else { return };
        if fails {
            self.gone(id);
            let actions = self.registry.failed(self.now, id, "broken file");
            return self.accept(actions);
        }
        let resident = self.residents.get_mut(&id).unwrap();
        let estimate = resident.bytes;
        let stopped = self.drops.contains(&id);
        if !stopped {
            let growth = if self.outgrows { self.random.below(3) } else { 0 };
            resident.bytes = estimate + growth - self.random.below(2);
            resident.ready_at = Some(self.now);
        }
        let bytes = resident.bytes;
        let told = bytes > estimate && self.told_to_go.insert(id);
        let actions = self.registry.loaded(self.now, id, bytes);
        self.tally.outgrown += usize::from(told && actions.contains(&Action::Unload(id)));
        self.accept(actions);
        if told {
            self.told_to_go.remove(&id);
        }
    }

    fn gone(&mut self, id: ReplicaId) {
        self.residents.remove(&id).unwrap();
        self.drops.remove(&id);
    }

    fn drop_one(&mut self) {
        let drops: Vec<ReplicaId> = self.drops.iter().copied().collect();
        let Some(id) = self.random.pick(&drops) else { return };
        self.gone(id);
        self.job = self.job.filter(|&job| job != id);
        let actions = self.registry.unloaded(self.now, id);
        self.accept(actions);
    }

    fn acquired(&mut self, id: ReplicaId) {
        assert!(!self.drops.contains(&id), "a reference to {id}, which is being dropped");
        let resident = self.residents.get_mut(&id).expect("a reference to a replica that is there");
        assert!(resident.ready_at.is_some());
        resident.last_used = Some(self.now);
        self.references.push(id);
        self.tally.acquired += 1;
    }

    fn request(&mut self) {
        let name = self.model().name;
        let (answer, actions) = self.registry.ensure(self.now, &name);
        match answer {
            Ok(id) => self.acquired(id),
            Err(why) if why.worth_waiting() && self.random.chance(70) => {
                self.waiters.push((self.registry.wait(&name).unwrap(), name));
            }
            Err(_) => self.tally.refused += 1,
        }
        self.accept(actions);
    }

    fn poll(&mut self, at: usize) {
        let (waiter, name) = self.waiters.remove(at);
        let (answer, actions) = self.registry.take(self.now, waiter);
        match answer {
            Ok(id) => {
                self.acquired(id);
                self.tally.served_waiters += 1;
                self.accept(actions);
            }
            Err(why) if why.worth_waiting() => {
                self.waiters.insert(at, (waiter, name));
                self.accept(actions);
            }
            Err(_) => {
                self.accept(actions);
                let actions = self.registry.give_up(self.now, waiter);
                self.accept(actions);
                self.tally.refused += 1;
            }
        }
    }

    fn poll_all(&mut self) {
        for at in (0..self.waiters.len()).rev() {
            self.poll(at);
        }
    }

    fn lose_patience(&mut self) {
        if !self.waiters.is_empty() {
            let at = self.random.below(self.waiters.len() as u64) as usize;
            let (waiter, _) = self.waiters.remove(at);
            let actions = self.registry.give_up(self.now, waiter);
            self.accept(actions);
        }
    }

    fn release(&mut self) {
        if !self.references.is_empty() {
            let at = self.random.below(self.references.len() as u64) as usize;
            let id = self.references.remove(at);
            self.residents.get_mut(&id).unwrap().last_used = Some(self.now);
            let actions = self.registry.release(self.now, id);
            self.accept(actions);
        }
    }

    fn load(&mut self) {
        let model = self.model();
        match self.registry.load(self.now, model) {
            Ok((_, actions)) => self.accept(actions),
            Err(_) => self.tally.refused += 1,
        }
    }

    /// Somebody asks to have a model, perhaps in the place of certain others.
    fn bring(&mut self) {
        let model = self.model();
        let evict: Vec<String> = (0..self.random.below(3)).map(|_| self.model().name).collect();
        let standing = |world: &Self| {
            let ours: Vec<State> =
                world.registry.list().filter(|view| view.name == model.name).map(|view| view.state).collect();
            let coming = |state: &&State| matches!(state, State::Queued | State::Loading { .. });
            (ours.contains(&State::Ready), ours.iter().filter(coming).count())
        };
        let (ready, coming) = standing(self);
        let (answer, actions) = self.registry.bring(self.now, model.clone(), evict);
        assert_eq!(answer.is_ok(), ready);
        match answer {
            Err(Unavailable::Loading { .. }) => {
                assert_eq!(standing(self), (false, coming.max(1)));
                self.tally.brought += usize::from(coming == 0);
            }
            _ => assert_eq!(standing(self), (ready, coming)),
        }
        self.accept(actions);
    }

    fn unload(&mut self) {
        let name = self.model().name;
        let of_name = self.residents.iter().filter(|(_, resident)| resident.model.name == name);
        self.told_to_go.extend(of_name.map(|(&id, _)| id));
        let Ok(actions) = self.registry.unload(self.now, &name) else { return };
        self.accept(actions);
        let cancelled: Vec<_> = self.waiters.extract_if(.., |(_, waits_for)| *waits_for == name).collect();
        for (waiter, _) in cancelled {
            assert_eq!(self.registry.take(self.now, waiter), (Err(Unavailable::Cancelled), vec![]));
            self.tally.cancelled += 1;
        }
    }

    /// A loaded replica breaks, under its requests.
    fn break_one(&mut self) {
        let ready =
            self.residents.iter().filter(|(id, one)| one.ready_at.is_some() && !self.drops.contains(id));
        let ready: Vec<ReplicaId> = ready.map(|(&id, _)| id).collect();
        let Some(id) = self.random.pick(&ready) else { return };
        self.gone(id);
        self.references.retain(|&reference| reference != id);
        let actions = self.registry.failed(self.now, id, "device lost");
        self.accept(actions);
        self.tally.broken += 1;
    }

    fn redeclare(&mut self) {
        let model = self.model();
        if self.registry.undeclare(&model.name).is_none() {
            self.registry.declare(model);
        }
    }

    fn tick(&mut self) {
        let actions = self.registry.tick(self.now);
        self.accept(actions);
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(3000));
        match self.random.below(100) {
            0..28 => self.request(),
            28..30 => self.press(),
            30..50 => self.release(),
            50..62 => {
                let fails = self.random.chance(15);
                self.end_load(fails);
            }
            62..74 => self.drop_one(),
            74..84 => self.poll_all(),
            84..86 => self.load(),
            86..88 => self.bring(),
            88..89 => self.unload(),
            89..90 => self.unload_one(),
            90..92 => self.lose_patience(),
            92..93 => self.break_one(),
            93..94 => self.redeclare(),
            94..95 => {
                let share = self.random.below(100) as f32 / 100.0;
                if let Some(id) = self.job {
                    self.registry.progress(id, share);
                }
            }
            95..99 => self.crowd(),
            _ => self.tick(),
        }
        self.check();
    }

    fn check(&self) {
        let held: u64 =
            self.registry.list().filter(|one| one.state != State::Unloading).map(|one| one.bytes).sum();
        assert!(held <= LIMIT, "{held} bytes held or promised");
        assert!(self.outgrows || self.memory() <= LIMIT, "{} bytes in memory", self.memory());
        let mut references: BTreeMap<ReplicaId, usize> = BTreeMap::new();
        for &id in &self.references {
            *references.entry(id).or_default() += 1;
        }
        let mut listed = BTreeSet::new();
        for view in self.registry.list() {
            assert!(listed.insert(view.id), "{} is listed twice", view.id);
            assert_eq!(view.in_flight, references.remove(&view.id).unwrap_or(0), "requests on {}", view.id);
            let asked = self.residents.contains_key(&view.id);
            let not_asked = matches!(view.state, State::Queued | State::Failed { .. });
            assert_ne!(asked, not_asked, "{view:?}");
            assert_eq!(self.drops.contains(&view.id), view.state == State::Unloading, "{view:?}");
        }
        assert!(references.is_empty(), "references to replicas that are gone: {references:?}");
    }

    /// No new requests come, loads succeed, drops get done, requests end: every waiter has to be served, or
    /// told why not.
    fn serve_all_waiters(&mut self) {
        for _ in 0..1000 {
            while !self.references.is_empty() {
                self.release();
            }
            self.end_load(false);
            while !self.drops.is_empty() {
                self.drop_one();
            }
            self.poll_all();
            self.check();
            if self.waiters.is_empty() {
                return;
            }
            if self.references.is_empty() && self.job.is_none() && self.drops.is_empty() {
                self.now = self.registry.next_tick(self.now).expect("a time when waiting has a chance");
                self.tick();
            }
        }
        panic!("{} waiters starve", self.waiters.len());
    }

    fn shut_down(&mut self) {
        self.told_to_go.extend(self.residents.keys());
        let actions = self.registry.shutdown(self.now);
        self.accept(actions);
        while !self.references.is_empty() {
            self.release();
        }
        while !self.drops.is_empty() {
            self.drop_one();
        }
        assert!(self.residents.is_empty() && self.registry.list().next().is_none());
    }
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.serve_all_waiters();
    world.shut_down();
    world
}

#[test]
fn the_rules_hold_under_random_use() {
    let mut total = Tally::default();
    for seed in 0..SEEDS {
        let tally = std::panic::catch_unwind(|| run(seed).tally)
            .unwrap_or_else(|_| panic!("seed {seed} breaks a rule"));
        total.acquired += tally.acquired;
        total.served_waiters += tally.served_waiters;
        total.evicted += tally.evicted;
        total.expired += tally.expired;
        total.outgrown += tally.outgrown;
        total.refused += tally.refused;
        total.cancelled += tally.cancelled;
        total.broken += tally.broken;
        total.relieved += tally.relieved;
        total.crowded += tally.crowded;
        total.brought += tally.brought;
    }
    let Tally { acquired, served_waiters, evicted, expired, outgrown, refused, .. } = total;
    let Tally { cancelled, broken, relieved, crowded, brought, .. } = total;
    let least = [acquired, served_waiters, evicted, expired, outgrown, refused];
    let least = [&least[..], &[cancelled, broken, relieved, crowded, brought]].concat();
    assert!(least.iter().all(|&count| count >= 100), "something hardly happens: {total:?}");
}

#[test]
fn the_same_calls_give_the_same_actions() {
    for seed in 0..10 {
        assert_eq!(run(seed).log, run(seed).log);
    }
}
