//! Scheduler and prefix tree under seeded random load, against a backend that is nothing but counted pages of tokens.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_sched::{Arrival, Limits, PrefixTree, Progress, Scheduler, State, Step};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

const PAGE: usize = 8;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the model says after these tokens: their hash.
fn model(tokens: &[u32]) -> u32 {
    tokens.iter().fold(7u32, |hash, &token| (hash ^ token).wrapping_mul(0x0100_0193)) % 50
}

/// A page holds the tokens whose state it is; its name is its address.
type Page = Rc<Vec<u32>>;

struct Run {
    tokens: Vec<u32>,
    prompt: usize,
    most: usize,
    pages: Vec<Page>,
    past: usize,
    waited_since: Duration,
}

struct World {
    random: Random,
    now: Duration,
    scheduler: Scheduler,
    limits: Limits,
    pool: usize,
    tree: PrefixTree<u64>,
    /// The tree's references.
    held: BTreeMap<u64, Page>,
    runs: BTreeMap<u64, Run>,
    finished: Vec<Vec<u32>>,
    next: u64,
    ended: u64,
    pauses: usize,
    reused: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let limits = Limits {
            max_running: 1 + random.below(8) as usize,
            page_tokens: PAGE,
            prefill_tokens: 1 + random.below(64) as usize,
            latency_goal: Duration::from_millis(random.below(50)),
            latency_factor: 2.3,
        };
        let pool = 18 + random.below(60) as usize;
        Self {
            random,
            now: Duration::ZERO,
            scheduler: Scheduler::new(limits.clone()),
            limits,
            pool,
            tree: PrefixTree::new(PAGE, 4),
            held: BTreeMap::new(),
            runs: BTreeMap::new(),
            finished: Vec::new(),
            next: 0,
            ended: 0,
            pauses: 0,
            reused: 0,
        }
    }

    /// Distinct pages alive.
    fn used(&self) -> usize {
        let mut pages: HashSet<*const Vec<u32>> = self.held.values().map(Rc::as_ptr).collect();
        pages.extend(self.runs.values().flat_map(|run| run.pages.iter().map(Rc::as_ptr)));
        pages.len()
    }

    fn is_free(held: &BTreeMap<u64, Page>, page: u64) -> bool {
        Rc::strong_count(&held[&page]) == 1
    }

    fn room(&self) -> usize {
        self.pool - self.used() + self.tree.evictable(|page| Self::is_free(&self.held, page))
    }

    fn arrive(&mut self) {
        let mut tokens: Vec<u32> = if !self.finished.is_empty() && self.random.chance(50) {
            let at = self.random.below(self.finished.len() as u64) as usize;
            let earlier = &self.finished[at];
            earlier[..1 + self.random.below(earlier.len() as u64) as usize].to_vec()
        } else {
            vec![self.random.below(3) as u32]
        };
        let more = self.random.below(40);
        tokens.extend((0..more).map(|_| self.random.below(50) as u32));
        tokens.truncate(90);
        let most = tokens.len() + 1 + self.random.below(30) as usize;
        let deadline = self.random.chance(5).then(|| Duration::from_millis(self.random.below(3000)));
        let arrival = Arrival {
            id: self.next,
            key: self.random.below(3),
            priority: self.random.below(3) as i8,
            deadline,
            prompt_tokens: tokens.len(),
        };
        self.scheduler.submit(self.now, arrival);
        let prompt = tokens.len();
        self.runs.insert(
            self.next,
            Run { tokens, prompt, most, pages: Vec::new(), past: 0, waited_since: self.now },
        );
        self.next += 1;
    }

    fn keep(&mut self, id: u64) {
        let run = self.runs.get_mut(&id).unwrap();
        let pages = std::mem::take(&mut run.pages);
        let names: Vec<u64> = pages.iter().map(|page| Rc::as_ptr(page) as u64).collect();
        let fresh: Vec<u64> = names.iter().copied().filter(|name| !self.held.contains_key(name)).collect();
        let session = (id.is_multiple_of(3)).then_some(id % 7);
        let returned = self.tree.insert(&run.tokens[..run.past], &names, session);
        for (name, page) in names.iter().zip(&pages) {
            self.held.insert(*name, page.clone());
        }
        for name in returned {
            // A page that the tree had before stays its own; the second reference goes back.
            if fresh.contains(&name) || !names.contains(&name) {
                self.held.remove(&name);
            }
        }
        run.past = 0;
    }

    fn end(&mut self, id: u64) {
        self.scheduler.remove(self.now, id);
        self.runs.remove(&id).unwrap();
        self.ended += 1;
    }

    fn step(&mut self) {
        for id in self.scheduler.expire(self.now) {
            self.runs.remove(&id).unwrap();
            self.ended += 1;
        }
        while let Some(id) = self.scheduler.candidate(self.now, self.room()) {
            let run = self.runs.get_mut(&id).unwrap();
            let found = self.tree.lookup(&run.tokens[..run.tokens.len() - 1]);
            run.pages = found.pages.iter().map(|page| self.held[page].clone()).collect();
            run.past = found.tokens;
            let stored: Vec<u32> = run.pages.iter().flat_map(|page| page.iter().copied()).collect();
            assert_eq!(stored[..run.past], run.tokens[..run.past], "a reused page holds this very prefix");
            self.reused += found.tokens;
            self.scheduler.begin(id, found.tokens);
        }
        for id in self.scheduler.running().collect::<Vec<_>>() {
            let drafts = if self.random.chance(50) { self.random.below(5) as usize } else { 0 };
            let run = &self.runs[&id];
            self.scheduler.offer_drafts(id, drafts.min(run.most - run.tokens.len() - 1));
        }
        let decoders = self.scheduler.count(State::Decoding);
        let mut step = Step::default();
        self.scheduler.plan(self.room(), &mut step);
        for &id in &step.pause {
            self.pauses += 1;
            self.keep(id);
        }
        assert!(
            !step.work.is_empty() || !step.pause.is_empty() || self.scheduler.is_empty(),
            "nobody is stuck"
        );
        assert!(self.scheduler.running().count() <= self.limits.max_running);
        let prefill: usize = step.work.iter().filter(|w| w.tokens > 1).map(|work| work.tokens).sum();
        assert!(prefill <= self.limits.prefill_tokens);
        let failed = self.random.chance(1);
        let took = 5.0 + 0.7 * prefill as f64 + 0.3 * decoders as f64;
        let took = if self.random.chance(2) { took * 10.0 } else { took };
        let took = Duration::from_secs_f64(took / 1000.0);
        self.now += took;
        let mut progress = Vec::new();
        let mut over = Vec::new();
        for work in &step.work {
            let run = &self.runs[&work.id];
            assert_eq!(work.past, run.past);
            let end = work.past + work.tokens + work.drafts;
            self.write(work.id, end);
            assert!(self.used() <= self.pool, "{} pages of {}", self.used(), self.pool);
            let accepted =
                if work.drafts > 0 { self.random.below(1 + work.drafts as u64) as usize } else { 0 };
            let run = self.runs.get_mut(&work.id).unwrap();
            run.waited_since = self.now;
            run.past = work.past + work.tokens;
            if run.past == run.tokens.len() {
                for _ in 0..=accepted {
                    run.tokens.push(model(&run.tokens));
                }
                run.past += accepted;
                if run.tokens.len() >= run.most {
                    over.push(work.id);
                }
            }
            // A guess that was wrong leaves no state behind.
            let pages = run.past.div_ceil(PAGE);
            run.pages.truncate(pages);
            progress.push(Progress { id: work.id, past: run.past, length: run.tokens.len() });
        }
        if failed {
            step.work.iter().for_each(|work| self.end(work.id));
            return;
        }
        self.scheduler.report(took, &progress);
        for id in over {
            let run = &self.runs[&id];
            for at in run.prompt..run.tokens.len() {
                assert_eq!(run.tokens[at], model(&run.tokens[..at]), "tokens come in order, none twice");
            }
            let tokens = run.tokens.clone();
            self.keep(id);
            self.finished.push(tokens);
            self.end(id);
        }
    }

    /// Computes the state of a sequence up to `end`, in its own pages.
    fn write(&mut self, id: u64, end: usize) {
        let run = &self.runs[&id];
        let missing = end.div_ceil(PAGE) - run.pages.len();
        let copies = usize::from(
            run.pages.last().is_some_and(|page| Rc::strong_count(page) > 1 && !run.past.is_multiple_of(PAGE)),
        );
        let short = (self.used() + missing + copies).saturating_sub(self.pool);
        let held = &self.held;
        for page in self.tree.evict(short, |page| Self::is_free(held, page), |_, _| ()) {
            self.held.remove(&page);
        }
        let run = self.runs.get_mut(&id).unwrap();
        let mut tokens = run.tokens.clone();
        // Guesses are right here; which of them count is drawn later.
        while tokens.len() < end {
            tokens.push(model(&tokens));
        }
        for at in run.past..end {
            if at / PAGE == run.pages.len() {
                run.pages.push(Rc::new(Vec::new()));
            }
            let page = Rc::make_mut(&mut run.pages[at / PAGE]);
            page.truncate(at % PAGE);
            page.push(tokens[at]);
        }
    }
}

fn simulate(seed: u64) -> World {
    let mut world = World::new(seed);
    let arrivals = 120;
    while world.next < arrivals || !world.scheduler.is_empty() {
        if world.next < arrivals && world.random.chance(30) {
            (0..=world.random.below(4)).for_each(|_| world.arrive());
        }
        if world.random.chance(3) && !world.runs.is_empty() {
            let at = world.random.below(world.runs.len() as u64) as usize;
            let id = *world.runs.keys().nth(at).unwrap();
            world.end(id);
        }
        if world.scheduler.is_empty() {
            world.now += Duration::from_millis(10);
        } else {
            world.step();
        }
        let starved = world.runs.values().map(|run| world.now - run.waited_since).max();
        assert!(starved.unwrap_or_default() < Duration::from_secs(120), "seed {seed}: somebody starves");
    }
    assert_eq!(world.ended, world.next, "each ends exactly once");
    for page in world.tree.clear() {
        assert!(world.held.remove(&page).is_some());
    }
    assert_eq!(world.used(), 0, "no page is left");
    world
}

#[test]
fn random_load_keeps_every_promise() {
    let seeds = std::env::var("LICHEN_SIMULATION_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let (mut pauses, mut reused) = (0, 0);
    for seed in 0..seeds.unwrap_or(300) {
        let world = simulate(seed);
        pauses += world.pauses;
        reused += world.reused;
    }
    assert!(
        pauses > 100 && reused > 1000,
        "the load is hard enough: {pauses} pauses, {reused} tokens reused"
    );
}

fn limits(max_running: usize) -> Limits {
    Limits {
        max_running,
        page_tokens: 64,
        prefill_tokens: 512,
        latency_goal: Duration::from_millis(20),
        latency_factor: 2.3,
    }
}

fn arrival(id: u64, key: u64, prompt_tokens: usize) -> Arrival {
    Arrival { id, key, priority: 0, deadline: None, prompt_tokens }
}

#[test]
fn running_answers_keep_their_pace_while_a_long_prompt_comes_in() {
    let mut scheduler = Scheduler::new(limits(8));
    let mut lengths: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    let mut now = Duration::ZERO;
    let mut times = Vec::new();
    for step in 0..2000 {
        match step {
            0 => (0..3).for_each(|id| {
                scheduler.submit(now, arrival(id, id, 30));
                lengths.insert(id, (0, 30));
            }),
            100 => {
                scheduler.submit(now, arrival(3, 3, 8192));
                lengths.insert(3, (0, 8192));
            }
            _ => {}
        }
        while let Some(id) = scheduler.candidate(now, 1000) {
            scheduler.begin(id, 0);
        }
        let mut plan = Step::default();
        scheduler.plan(1000, &mut plan);
        let prompt: usize = plan.work.iter().map(|work| work.tokens - 1).sum();
        let long = plan.work.iter().find(|work| work.id == 3).map_or(0, |work| work.past);
        // Attention makes later tokens of a prompt dearer.
        let took = 30.0 + prompt as f64 * (1.0 + long as f64 / 4096.0);
        let took = Duration::from_secs_f64(took / 1000.0);
        now += took;
        let mut progress = Vec::new();
        for work in &plan.work {
            let (past, length) = lengths.get_mut(&work.id).unwrap();
            *past += work.tokens;
            if *past == *length {
                *length += 1;
            }
            progress.push(Progress { id: work.id, past: *past, length: *length });
        }
        if scheduler.state(3) == Some(State::Prefilling) {
            times.push(took.as_secs_f64());
        }
        scheduler.report(took, &progress);
        if scheduler.state(3) == Some(State::Decoding) {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    assert!(scheduler.state(3) == Some(State::Decoding), "the long prompt gets done");
    let p95 = times[times.len() * 95 / 100];
    assert!(p95 < 3.0 * 0.030, "{p95}");
}

#[test]
fn a_key_with_many_requests_does_not_delay_another() {
    let mut scheduler = Scheduler::new(limits(1));
    (0..100).for_each(|id| scheduler.submit(Duration::ZERO, arrival(id, 1, 50)));
    scheduler.submit(Duration::ZERO, arrival(100, 2, 50));
    let mut order = Vec::new();
    while let Some(id) = scheduler.candidate(Duration::ZERO, 100) {
        scheduler.begin(id, 0);
        scheduler.plan(100, &mut Step::default());
        scheduler.report(Duration::from_millis(9), &[Progress { id, past: 50, length: 51 }]);
        scheduler.remove(Duration::ZERO, id);
        order.push(id);
    }
    assert_eq!(order.len(), 101);
    assert!(order.iter().position(|&id| id == 100).unwrap() <= 1, "{order:?}");
}

#[test]
fn priority_goes_first_and_waiting_makes_up_for_it() {
    let mut scheduler = Scheduler::new(limits(1));
    scheduler.submit(Duration::ZERO, arrival(0, 0, 50));
    scheduler.submit(Duration::ZERO, Arrival { priority: 2, ..arrival(1, 0, 50) });
    assert_eq!(scheduler.candidate(Duration::ZERO, 100), Some(1));
    let later = Duration::from_secs(60);
    scheduler.submit(later, Arrival { priority: 2, ..arrival(2, 0, 50) });
    scheduler.remove(later, 1);
    assert_eq!(scheduler.candidate(later, 100), Some(0));
}

#[test]
fn who_is_late_is_named_and_gone() {
    let mut scheduler = Scheduler::new(limits(1));
    let deadline = Some(Duration::from_secs(1));
    scheduler.submit(Duration::ZERO, Arrival { deadline, ..arrival(0, 0, 50) });
    assert_eq!(scheduler.expire(Duration::from_millis(999)), []);
    assert_eq!(scheduler.expire(Duration::from_secs(1)), [0]);
    assert!(scheduler.is_empty());
}
