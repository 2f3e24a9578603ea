//! From samples to signals: what has changed over the last second.

use crate::limit::Budget;
use crate::sample::{Group, Refaults, Sample, Stall};
use std::collections::VecDeque;
use std::time::Duration;

/// Over how long stalls are counted. The kernel's own averages move seconds later.
const STALL_WINDOW: Duration = Duration::from_secs(1);
/// Over how long the slope of the ceiling is taken.
const SLOPE_WINDOW: Duration = Duration::from_millis(500);
/// After how long the thrash ratio is taken even without two passes.
const THRASH_WINDOW: Duration = Duration::from_secs(2);
/// The headroom is the least of so many samples.
const HEADROOM_SAMPLES: usize = 3;
/// Limit hits count where anonymous memory is more than this part of the limit: elsewhere the kernel only
/// drops files.
const ANONYMOUS_PART: f64 = 0.9;

/// What the ladder looks at. An absent signal is one that no sensor gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    /// Which part of the room for KV and caches is in use.
    pub utilization: f64,
    /// Which part of the room for KV and caches is promised.
    pub commitment: f64,
    /// How far promises reach into the margin, in margins.
    pub excess: f64,
    /// Free bytes, in margins.
    pub headroom: f64,
    /// Seconds until nothing is free if others go on taking memory like this; infinite if they don't. What we
    /// take ourselves is bounded by the ledger.
    pub exhaustion: f64,
    /// Part of the last second in which some task stood still for want of memory.
    pub stall_some: Option<f64>,
    /// Part of the last second in which all tasks stood still for want of memory.
    pub stall_full: Option<f64>,
    /// Bytes of files read again for each byte of weights that was used.
    pub thrash: Option<f64>,
    /// Anonymous memory met the limit since the last sample.
    pub limit_hit: bool,
    /// Memory ran out, or an allocation failed, since the last sample.
    pub out_of_memory: bool,
}

/// What the engine has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Forward passes.
    pub passes: u64,
    /// Bytes of weights that these passes used.
    pub weight_bytes: u64,
    /// Allocations that failed.
    pub failed_allocations: u64,
}

/// Keeps the last samples and derives the signals.
#[derive(Debug, Default)]
pub struct Observer {
    headroom: VecDeque<u64>,
    ceilings: VecDeque<(Duration, u64)>,
    stalls: VecDeque<(Duration, Stall)>,
    thrash: Thrash,
    last: Option<(Sample, Work)>,
}

impl Observer {
    /// Takes in one sample, with the budget measured from it and the work done until then. `now` is the time
    /// since some start.
    pub fn observe(&mut self, now: Duration, sample: &Sample, budget: &Budget, work: Work) -> Signals {
        let stalls = self.stalls(now, sample.stall);
        let signals = Signals {
            utilization: budget.utilization(),
            commitment: budget.commitment(),
            excess: budget.excess(),
            headroom: self.headroom(budget) as f64 / budget.margin.max(1) as f64,
            exhaustion: self.exhaustion(now, budget),
            stall_some: stalls.map(|(some, _)| some),
            stall_full: stalls.map(|(_, full)| full),
            thrash: self.thrash.ratio(now, sample, work),
            limit_hit: self.limit_hit(sample, budget),
            out_of_memory: self.out_of_memory(sample, work),
        };
        self.last = Some((sample.clone(), work));
        signals
    }

    /// The least headroom of the last samples.
    fn headroom(&mut self, budget: &Budget) -> u64 {
        self.headroom.push_back(budget.headroom());
        if self.headroom.len() > HEADROOM_SAMPLES {
            self.headroom.pop_front();
        }
        self.headroom.iter().copied().min().unwrap_or(0)
    }

    /// Seconds until nothing is free, from how the ceiling falls.
    fn exhaustion(&mut self, now: Duration, budget: &Budget) -> f64 {
        self.ceilings.push_back((now, budget.ceiling));
        while self.ceilings.len() > 2 && self.ceilings[1].0 + SLOPE_WINDOW <= now {
            self.ceilings.pop_front();
        }
        let (since, before) = self.ceilings[0];
        let seconds = now.saturating_sub(since).as_secs_f64();
        let lost = before.saturating_sub(budget.ceiling);
        if lost > 0 { budget.headroom() as f64 * seconds / lost as f64 } else { f64::INFINITY }
    }

    /// Parts of the last second, some and full.
    fn stalls(&mut self, now: Duration, stall: Option<Stall>) -> Option<(f64, f64)> {
        let Some(stall) = stall else {
            self.stalls.clear();
            return None;
        };
        let continues = |(_, last): &(Duration, Stall)| {
            last.origin == stall.origin && last.some <= stall.some && last.full <= stall.full
        };
        if !self.stalls.back().is_some_and(continues) {
            self.stalls.clear();
        }
        self.stalls.push_back((now, stall));
        while self.stalls.len() > 2 && self.stalls[1].0 + STALL_WINDOW <= now {
            self.stalls.pop_front();
        }
        let (since, first) = self.stalls[0];
        let window = now.saturating_sub(since).as_secs_f64();
        let part = |stood: Duration| if window > 0.0 { (stood.as_secs_f64() / window).min(1.0) } else { 0.0 };
        Some((part(stall.some - first.some), part(stall.full - first.full)))
    }

    fn limit_hit(&self, sample: &Sample, budget: &Budget) -> bool {
        let anonymous = sample.anonymous.unwrap_or(0) as f64;
        anonymous > ANONYMOUS_PART * budget.limit as f64
            && self.counted(sample, |group| group.limit_hits).is_some_and(|hits| hits > 0)
    }

    fn out_of_memory(&self, sample: &Sample, work: Work) -> bool {
        let failed = self.last.as_ref().map_or(0, |(_, last)| last.failed_allocations);
        work.failed_allocations > failed
            || self.counted(sample, |group| group.out_of_memory).is_some_and(|events| events > 0)
    }

    /// By how much a counter has grown over all groups that both samples have.
    fn counted(&self, sample: &Sample, counter: impl Fn(&Group) -> Option<u64>) -> Option<u64> {
        let (last, _) = self.last.as_ref()?;
        let grown = sample.groups.iter().filter_map(|group| {
            let before = last.groups.iter().find(|before| before.name == group.name)?;
            Some(counter(group)?.saturating_sub(counter(before)?))
        });
        Some(grown.fold(0, u64::saturating_add))
    }
}

/// The thrash ratio: bytes of files read again for each byte of weights used.
#[derive(Debug, Default)]
struct Thrash {
    since: Option<(Duration, Refaults, Option<u64>, Work)>,
    ratio: Option<f64>,
}

impl Thrash {
    fn ratio(&mut self, now: Duration, sample: &Sample, work: Work) -> Option<f64> {
        let (refaults, faults) = (sample.refaulted?, sample.major_faults);
        let continues = |(_, before, _, done): &(Duration, Refaults, Option<u64>, Work)| {
            let counted = before.origin == refaults.origin && before.bytes <= refaults.bytes;
            counted && done.passes <= work.passes && done.weight_bytes <= work.weight_bytes
        };
        let Some((since, before, faults_before, done)) = self.since.filter(continues) else {
            *self = Self { since: Some((now, refaults, faults, work)), ratio: None };
            return None;
        };
        if work.passes - done.passes >= 2 || now.saturating_sub(since) >= THRASH_WINDOW {
            let used = work.weight_bytes - done.weight_bytes;
            // Others may read files again too; if we never waited for the disk it was not us.
            let waited = faults.zip(faults_before).is_none_or(|(now, before)| now > before);
            let read = if waited { refaults.bytes - before.bytes } else { 0 };
            self.ratio = (used > 0).then(|| read as f64 / used as f64);
            self.since = Some((now, refaults, faults, work));
        }
        self.ratio
    }
}
