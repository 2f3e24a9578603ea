//! The ladder: which level of care the signals ask for. Up at once, down one level at a time.

use crate::{Signals, Thresholds};
use std::fmt;
use std::time::Duration;

/// How short memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Level {
    /// There is enough.
    #[default]
    Normal,
    /// It fills up: nothing is lost yet, KV gets smaller.
    Watch,
    /// It is short: fewer requests at a time, caches go.
    Tight,
    /// It is nearly out: one request at a time.
    Critical,
}

impl Level {
    /// Every level, from calm to dire.
    pub const ALL: [Self; 4] = [Self::Normal, Self::Watch, Self::Tight, Self::Critical];

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Watch => "watch",
            Self::Tight => "tight",
            Self::Critical => "critical",
        }
    }

    fn below(self) -> Self {
        match self {
            Self::Normal | Self::Watch => Self::Normal,
            Self::Tight => Self::Watch,
            Self::Critical => Self::Tight,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the level changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// KV and caches fill their room.
    Utilization,
    /// Promises exceed the room.
    Commitment,
    /// Promises exceed the ceiling.
    Excess,
    /// Little is free.
    Headroom,
    /// Little will be free soon.
    Exhaustion,
    /// Some task stands still for want of memory.
    StallSome,
    /// All tasks stand still for want of memory.
    StallFull,
    /// Weights are dropped and read again.
    Thrash,
    /// Anonymous memory met the limit.
    LimitHit,
    /// Memory ran out or an allocation failed.
    OutOfMemory,
    /// Nothing of all that for long enough.
    Calm,
}

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// When, since some start.
    pub at: Duration,
    /// The level before.
    pub from: Level,
    /// The level now.
    pub to: Level,
    /// Why.
    pub cause: Cause,
}

/// The state of the ladder.
#[derive(Debug)]
pub struct Ladder {
    thresholds: Thresholds,
    level: Level,
    last_step: Duration,
    /// Since when every signal is below the level's edge.
    calm_since: Duration,
    last_rise: Option<Duration>,
    /// When each level was left downward.
    left: [Option<Duration>; 4],
    /// How many times the dwell is doubled.
    doublings: u32,
    /// The level that the slow signals asked for in the last step.
    slow: Level,
}

impl Ladder {
    /// A ladder at [`Level::Normal`].
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            level: Level::Normal,
            last_step: Duration::ZERO,
            calm_since: Duration::ZERO,
            last_rise: None,
            left: [None; 4],
            doublings: 0,
            slow: Level::Normal,
        }
    }

    /// The level now.
    pub fn level(&self) -> Level {
        self.level
    }

    /// How long the signals must be calm before the level falls by one.
    pub fn dwell(&self) -> Duration {
        self.thresholds.dwell(self.level) * 2u32.pow(self.doublings)
    }

    /// Takes in the signals of one sample. `now` is the time since some start; a clock that goes back stands
    /// still.
    pub fn step(&mut self, now: Duration, signals: &Signals) -> Option<Transition> {
        let now = now.max(self.last_step);
        let blind = now - self.last_step > self.thresholds.longest_gap;
        self.last_step = now;
        if self.last_rise.is_none_or(|rise| now - rise >= self.thresholds.calm) {
            self.doublings = 0;
        }
        let (target, cause) = self.target(signals);
        if target > self.level {
            return Some(self.rise(now, target, cause));
        }
        if blind || self.level == Level::Normal || !self.is_calm(signals) {
            self.calm_since = now;
        }
        let due = self.level > Level::Normal && now - self.calm_since >= self.dwell();
        due.then(|| self.fall(now))
    }

    /// The level whose edge a signal has crossed, and that signal. Stalls and thrash count at their second
    /// sample.
    fn target(&mut self, signals: &Signals) -> (Level, Cause) {
        let mut fast = (Level::Normal, Cause::Calm);
        let mut slow = (Level::Normal, Cause::Calm);
        for (cause, edges, value) in self.thresholds.rows(signals) {
            let level = edges.entered(value);
            let is_slow = matches!(cause, Cause::StallSome | Cause::StallFull | Cause::Thrash);
            let highest = if is_slow { &mut slow } else { &mut fast };
            if level > highest.0 {
                *highest = (level, cause);
            }
        }
        if signals.limit_hit && fast.0 < Level::Tight {
            fast = (Level::Tight, Cause::LimitHit);
        }
        if signals.out_of_memory && fast.0 < Level::Critical {
            fast = (Level::Critical, Cause::OutOfMemory);
        }
        let confirmed = slow.0.min(self.slow);
        self.slow = slow.0;
        if confirmed > fast.0 { (confirmed, slow.1) } else { fast }
    }

    /// Whether every signal is below the edge of the level.
    fn is_calm(&self, signals: &Signals) -> bool {
        let events = signals.limit_hit || signals.out_of_memory;
        !events && self.thresholds.rows(signals).all(|(_, edges, value)| edges.left(self.level, value))
    }

    fn rise(&mut self, now: Duration, to: Level, cause: Cause) -> Transition {
        let entered = Level::ALL.into_iter().filter(|level| *level > self.level && *level <= to);
        let relapse = |at: Duration| now - at < self.thresholds.relapse;
        if entered.clone().any(|level| self.left[level as usize].is_some_and(relapse)) {
            self.doublings = (self.doublings + 1).min(self.thresholds.most_doublings);
        }
        self.last_rise = Some(now);
        self.change(now, to, cause)
    }

    fn fall(&mut self, now: Duration) -> Transition {
        self.left[self.level as usize] = Some(now);
        self.change(now, self.level.below(), Cause::Calm)
    }

    fn change(&mut self, at: Duration, to: Level, cause: Cause) -> Transition {
        let from = std::mem::replace(&mut self.level, to);
        self.calm_since = at;
        Transition { at, from, to, cause }
    }
}
