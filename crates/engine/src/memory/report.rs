//! What the governor knows, for people and metrics.

use lichen_memory::{Budget, Level, Rung, Sample, Snapshot, Transition};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a rung has been asked for and has given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RungReport {
    /// Times that engines were asked.
    pub asked: u64,
    /// Bytes that they freed.
    pub freed: u64,
}

/// The state of memory at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryReport {
    /// Time since the governor started.
    pub now: Duration,
    /// How short memory is.
    pub level: Level,
    /// The budget.
    pub budget: Budget,
    /// The account.
    pub account: Snapshot,
    /// What the sensors said last.
    pub sample: Sample,
    /// The last changes of level, the newest last.
    pub transitions: Vec<Transition>,
    /// How often the level has changed since the start.
    pub changes: u64,
    /// Time spent in each level.
    pub residency: BTreeMap<Level, Duration>,
    /// What was done about it.
    pub rungs: BTreeMap<Rung, RungReport>,
}
