//! How much memory is ours: limit, ceiling, margin and budget, from one sample and the ledger.

use crate::sample::{Sample, Source};
use crate::{Class, Snapshot};
use std::fmt;

const MIB: u64 = 1 << 20;

/// What a ledger holds its sums against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that may be used.
    pub bytes: u64,
    /// Of these, bytes kept for what is promised already and for what nobody foresaw.
    pub margin: u64,
    /// Where the limit comes from.
    pub source: Source,
}

/// How far a reservation may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the limit less the margin.
    Budget,
    /// Into the margin, to half of it: the other half is for what others take between two samples. For the
    /// sequence that has the right of way.
    Margin,
}

impl Limit {
    /// Bytes within reach.
    pub fn within(&self, reach: Reach) -> u64 {
        reach.of(self.bytes, self.margin)
    }
}

impl Reach {
    /// Of a limit and its margin, the bytes within reach.
    pub(crate) fn of(self, bytes: u64, margin: u64) -> u64 {
        match self {
            Self::Budget => bytes.saturating_sub(margin),
            Self::Margin => bytes.saturating_sub(margin / 2),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes ({}), {} of them margin", self.bytes, self.source, self.margin)
    }
}

/// The size of memory couldn't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the size of main memory can't be read here; give a memory budget")]
pub struct UnknownSize;

/// Bytes that are ours at best, and why not more: the least of the operator's budget, the limit of every
/// control group, and main memory less what the rest of the machine needs (5 %, at least 512 MiB, at most
/// half).
///
/// # Errors
/// If none of them is known.
pub fn static_limit(sample: &Sample, explicit: Option<u64>) -> Result<(u64, Source), UnknownSize> {
    let host = sample.total.map(|total| total - (total / 20).max(512 * MIB).min(total / 2));
    let explicit = explicit.map(|bytes| (bytes, Source::Explicit));
    let groups = sample.groups.iter().map(|group| (group.limit, Source::Group(group.name.clone())));
    let limits = explicit.into_iter().chain(groups).chain(host.map(|bytes| (bytes, Source::Host)));
    limits.min_by_key(|(bytes, _)| *bytes).ok_or(UnknownSize)
}

/// Bytes kept free of everything that can be refused: 6 % of the limit, at least 24 MiB.
pub fn margin(limit: u64) -> u64 {
    ((u128::from(limit) * 6 / 100) as u64).max(24 * MIB)
}

/// Bytes that the process could still take, were nothing refused: the least over every control group and the
/// machine. `None` if no sensor tells.
///
/// `hot` is how many bytes of mapped weights are in use. They are droppable for the kernel but not for us;
/// everything else that is droppable counts as free, a tenth of it aside. Where no control group sets the
/// limit, 2 % of main memory (at least 256 MiB) is left to the rest of the machine.
pub fn headroom(sample: &Sample, source: &Source, hot: u64) -> Option<u64> {
    let resident = sample.file.map_or(hot, |file| file.min(hot));
    let groups = sample.groups.iter().filter_map(|group| {
        let droppable = group.file.unwrap_or(0).saturating_sub(resident);
        Some(group.limit.saturating_sub(group.usage?).saturating_add(droppable - droppable.div_ceil(10)))
    });
    let reserve = match source {
        Source::Group(_) => 0,
        _ => sample.total.map_or(256 * MIB, |total| (total / 50).max(256 * MIB)),
    };
    let host = sample.available.map(|available| available.saturating_sub(resident).saturating_sub(reserve));
    groups.chain(host).min()
}

/// The budget at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Bytes that are ours at best.
    pub limit: u64,
    /// Where that comes from.
    pub source: Source,
    /// Bytes that are ours now: what we use and what is free, at most the limit.
    pub ceiling: u64,
    /// Bytes kept free of everything that can be refused.
    pub margin: u64,
    /// Bytes with memory behind them.
    pub mapped: u64,
    /// Bytes that don't depend on the requests.
    pub stationary: u64,
    /// Bytes of KV, caches and checkpoints with memory behind them.
    pub dynamic: u64,
    /// Bytes of KV that are promised.
    pub promised: u64,
}

impl Budget {
    /// The budget as a sample and the ledger have it. The ledger is to be read right after the sample.
    /// Without any sensor the ceiling is the limit.
    ///
    /// # Errors
    /// If the sample tells no limit and there is no explicit one.
    pub fn measure(
        sample: &Sample,
        explicit: Option<u64>,
        hot: u64,
        account: &Snapshot,
    ) -> Result<Self, UnknownSize> {
        let (limit, source) = static_limit(sample, explicit)?;
        // The smaller of what we know of and what we see: an account that is ahead of the memory doesn't make
        // the ceiling higher, and neither does memory that no account knows.
        let resident = sample.file.map_or(hot, |file| file.min(hot));
        let seen = sample.anonymous.map(|anonymous| anonymous.saturating_add(resident));
        let used = seen.map_or(account.mapped(), |seen| seen.min(account.mapped()));
        let ceiling =
            headroom(sample, &source, hot).map_or(limit, |free| free.saturating_add(used).min(limit));
        Ok(Self { limit, source, ceiling, margin: margin(limit), ..Self::of_account(account) })
    }

    /// The same limits over a ledger that has changed since.
    pub fn refresh(&self, account: &Snapshot) -> Self {
        let Self { limit, source, ceiling, margin, .. } = self.clone();
        Self { limit, source, ceiling, margin, ..Self::of_account(account) }
    }

    fn of_account(account: &Snapshot) -> Self {
        Self {
            limit: u64::MAX,
            source: Source::Explicit,
            ceiling: u64::MAX,
            margin: 0,
            mapped: account.mapped(),
            stationary: account.stationary(),
            dynamic: account.dynamic(),
            promised: account.class(Class::KvFloor).reserved,
        }
    }

    /// The limit for the ledger: the ceiling.
    pub fn ledger_limit(&self) -> Limit {
        Limit { bytes: self.ceiling, margin: self.margin, source: self.source.clone() }
    }

    /// Bytes for KV, caches and checkpoints.
    pub fn room(&self) -> u64 {
        self.ceiling.saturating_sub(self.stationary).saturating_sub(self.margin)
    }

    /// Bytes free below the ceiling.
    pub fn headroom(&self) -> u64 {
        self.ceiling.saturating_sub(self.mapped)
    }

    /// Which part of the room is in use. Infinite if there is none and something is in use.
    pub fn utilization(&self) -> f64 {
        ratio(self.dynamic, self.room())
    }

    /// Which part of the room is promised. Infinite if there is none and something is promised.
    pub fn commitment(&self) -> f64 {
        ratio(self.promised, self.room())
    }

    /// How far promises and stationary bytes reach into the margin, in margins: above 1 they exceed the
    /// ceiling, and below 0 the margin is free.
    pub fn excess(&self) -> f64 {
        let needed = self.stationary as f64 + self.promised as f64 + self.margin as f64;
        (needed - self.ceiling as f64) / self.margin.max(1) as f64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if part == 0 { 0.0 } else { part as f64 / whole as f64 }
}
