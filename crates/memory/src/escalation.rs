//! Which rung is to free how many bytes now.

use crate::{Budget, Level, Rung, in_force};
use std::collections::BTreeMap;
use std::time::Duration;

/// Enough is freed when no more than this part of the room is in use.
const GOAL: f64 = 0.72;
/// How long what was asked for is given to show in the samples.
const SETTLE: Duration = Duration::from_millis(200);
/// Below so many seconds until nothing is free, nothing waits.
const URGENT: f64 = 1.0;
/// A rung that freed nothing so many times in a row is passed over.
const BARREN: u32 = 2;

/// Asks a rung for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which.
    pub rung: Rung,
    /// How many bytes it should free, or a little more.
    pub bytes: u64,
}

/// Bytes that each rung could free now. A rung that isn't named could free none.
pub type Yields = BTreeMap<Rung, u64>;

/// How often a rung freed nothing, and what it had said it could.
#[derive(Debug, Clone, Copy, Default)]
struct Failure {
    count: u32,
    offered: u64,
}

/// Bytes that are missing.
#[derive(Debug)]
struct Shortage {
    /// Until use is down to the goal and the margin is free.
    mapped: u64,
    /// Until the margin is free.
    margin: u64,
    /// Until half the margin is free. Less than that can go between two samples.
    half_margin: u64,
    /// Until the promises fit.
    promised: u64,
}

impl Shortage {
    fn of(budget: &Budget) -> Self {
        let goal = (budget.room() as f64 * GOAL) as u64;
        let margin = budget.margin.saturating_sub(budget.headroom());
        Self {
            mapped: budget.dynamic.saturating_sub(goal).max(margin),
            margin,
            half_margin: (budget.margin / 2).saturating_sub(budget.headroom()),
            promised: budget.promised.saturating_sub(budget.room()),
        }
    }

    fn wanted(&self, rung: Rung) -> u64 {
        if rung == Rung::ParkLast {
            self.half_margin
        } else if rung.parks() {
            self.margin.max(self.promised)
        } else if rung.widens() {
            self.mapped.max(self.promised)
        } else {
            self.mapped
        }
    }

    fn cover(&mut self, rung: Rung, bytes: u64) {
        self.mapped = self.mapped.saturating_sub(bytes);
        self.margin = self.margin.saturating_sub(bytes);
        self.half_margin = self.half_margin.saturating_sub(bytes);
        if rung.parks() || rung.widens() {
            self.promised = self.promised.saturating_sub(bytes);
        }
    }
}

/// Works up the rungs of a level.
#[derive(Debug, Default)]
pub struct Escalation {
    level: Level,
    last: Option<Duration>,
    failures: BTreeMap<Rung, Failure>,
}

impl Escalation {
    /// What to ask for now: rungs by rising harm, each for all it offers before the next is asked for
    /// anything, until at most 72 % of the room are in use, the margin is free and the promises fit. Nothing
    /// for 200 ms after the last batch, unless memory is out within a second or the level has risen since.
    ///
    /// `exhaustion` is in seconds. Running sequences are parked only for the margin and the promises: what is
    /// merely full may stay full.
    pub fn batch(
        &mut self,
        now: Duration,
        level: Level,
        budget: &Budget,
        exhaustion: f64,
        yields: &Yields,
    ) -> Vec<Request> {
        let risen = level > self.level;
        self.level = level;
        let settled = self.last.is_none_or(|last| now.saturating_sub(last) >= SETTLE);
        if !settled && !risen && exhaustion >= URGENT {
            return Vec::new();
        }
        let mut shortage = Shortage::of(budget);
        let mut batch = Vec::new();
        for rung in in_force(level) {
            let offered = yields.get(&rung).copied().unwrap_or(0);
            let bytes = shortage.wanted(rung).min(offered);
            if bytes > 0 && !self.is_barren(rung, offered) {
                batch.push(Request { rung, bytes });
                shortage.cover(rung, bytes);
            }
        }
        if !batch.is_empty() {
            self.last = Some(now);
        }
        batch
    }

    /// Takes note of what a rung freed, and of what it had offered.
    pub fn report(&mut self, rung: Rung, offered: u64, freed: u64) {
        if freed > 0 {
            self.failures.remove(&rung);
        } else {
            let failure = self.failures.entry(rung).or_default();
            *failure = Failure { count: failure.count.saturating_add(1), offered };
        }
    }

    /// A rung is passed over until it offers more than when it last freed nothing.
    fn is_barren(&self, rung: Rung, offered: u64) -> bool {
        self.failures.get(&rung).is_some_and(|failure| failure.count >= BARREN && offered <= failure.offered)
    }
}
