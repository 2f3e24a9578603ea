//! At which values the ladder rises and falls.

use crate::{Cause, Level, Signals};
use std::time::Duration;

/// Where a level is entered and left. If `enter` is the larger one, high values are bad: the level is entered
/// at or above `enter` and left below `leave`. Otherwise low values are bad: it is entered below `enter` and
/// left at or above `leave`. A value that is no number enters nothing and leaves nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// Crossing it enters the level.
    pub enter: f64,
    /// Crossing it back leaves the level.
    pub leave: f64,
}

/// The edges of one signal; `None` if it doesn't lead to that level.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Edges {
    /// Of [`Level::Watch`].
    pub watch: Option<Edge>,
    /// Of [`Level::Tight`].
    pub tight: Option<Edge>,
    /// Of [`Level::Critical`].
    pub critical: Option<Edge>,
}

/// Everything that can be set about the ladder.
#[derive(Debug, Clone, PartialEq)]
pub struct Thresholds {
    /// Of [`Signals::utilization`].
    pub utilization: Edges,
    /// Of [`Signals::commitment`].
    pub commitment: Edges,
    /// Of [`Signals::excess`].
    pub excess: Edges,
    /// Of [`Signals::headroom`], in margins.
    pub headroom: Edges,
    /// Of [`Signals::exhaustion`], in seconds.
    pub exhaustion: Edges,
    /// Of [`Signals::stall_some`].
    pub stall_some: Edges,
    /// Of [`Signals::stall_full`].
    pub stall_full: Edges,
    /// Of [`Signals::thrash`].
    pub thrash: Edges,
    /// How long the signals must be calm before [`Level::Watch`] ends.
    pub watch_dwell: Duration,
    /// How long the signals must be calm before [`Level::Tight`] ends.
    pub tight_dwell: Duration,
    /// How long the signals must be calm before [`Level::Critical`] ends.
    pub critical_dwell: Duration,
    /// A level entered again within this time after it was left doubles the dwell.
    pub relapse: Duration,
    /// How many times at most the dwell is doubled.
    pub most_doublings: u32,
    /// After so long without a rise the dwell is as at first.
    pub calm: Duration,
    /// Without a sample for so long, calm starts anew: nobody knows what was.
    pub longest_gap: Duration,
}

impl Edge {
    pub(crate) fn entered(self, value: f64) -> bool {
        if self.enter >= self.leave { value >= self.enter } else { value < self.enter }
    }

    pub(crate) fn left(self, value: f64) -> bool {
        if self.enter >= self.leave { value < self.leave } else { value >= self.leave }
    }
}

impl Edges {
    /// The highest level whose edge the value has crossed.
    pub(crate) fn entered(&self, value: f64) -> Level {
        let crossed = |level: &Level| self.of(*level).is_some_and(|edge| edge.entered(value));
        Level::ALL.into_iter().rev().find(crossed).unwrap_or(Level::Normal)
    }

    /// Whether the value lets go of a level.
    pub(crate) fn left(&self, level: Level, value: f64) -> bool {
        self.of(level).is_none_or(|edge| edge.left(value))
    }

    fn of(&self, level: Level) -> Option<Edge> {
        match level {
            Level::Normal => None,
            Level::Watch => self.watch,
            Level::Tight => self.tight,
            Level::Critical => self.critical,
        }
    }
}

impl Thresholds {
    pub(crate) fn dwell(&self, level: Level) -> Duration {
        match level {
            Level::Normal => Duration::ZERO,
            Level::Watch => self.watch_dwell,
            Level::Tight => self.tight_dwell,
            Level::Critical => self.critical_dwell,
        }
    }

    /// Every signal that is there, with its edges.
    pub(crate) fn rows<'a>(
        &'a self,
        signals: &Signals,
    ) -> impl Iterator<Item = (Cause, &'a Edges, f64)> + use<'a> {
        [
            (Cause::Utilization, &self.utilization, Some(signals.utilization)),
            (Cause::Commitment, &self.commitment, Some(signals.commitment)),
            (Cause::Excess, &self.excess, Some(signals.excess)),
            (Cause::Headroom, &self.headroom, Some(signals.headroom)),
            (Cause::Exhaustion, &self.exhaustion, Some(signals.exhaustion)),
            (Cause::StallSome, &self.stall_some, signals.stall_some),
            (Cause::StallFull, &self.stall_full, signals.stall_full),
            (Cause::Thrash, &self.thrash, signals.thrash),
        ]
        .into_iter()
        .filter_map(|(cause, edges, value)| Some((cause, edges, value?)))
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        let edge = |enter, leave| Some(Edge { enter, leave });
        let all = |watch, tight, critical| Edges { watch, tight, critical };
        Self {
            utilization: all(edge(0.80, 0.72), edge(0.90, 0.81), None),
            commitment: all(None, edge(1.0, 0.90), None),
            excess: all(None, None, edge(1.0, 0.0)),
            headroom: all(None, edge(1.0, 1.2), edge(0.5, 1.0)),
            exhaustion: all(edge(10.0, 20.0), edge(3.0, 6.0), edge(1.0, 2.0)),
            stall_some: all(edge(0.02, 0.005), edge(0.10, 0.04), edge(0.25, 0.10)),
            stall_full: all(None, edge(0.05, 0.02), edge(0.20, 0.08)),
            thrash: all(edge(0.02, 0.005), edge(0.10, 0.05), edge(0.30, 0.15)),
            watch_dwell: Duration::from_secs(10),
            tight_dwell: Duration::from_secs(15),
            critical_dwell: Duration::from_secs(20),
            relapse: Duration::from_secs(60),
            most_doublings: 3,
            calm: Duration::from_secs(300),
            longest_gap: Duration::from_secs(2),
        }
    }
}
