//! What loads came to and why replicas left.

use crate::ReplicaId;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Departures remembered one by one.
const REMEMBERED: usize = 64;
/// Names whose load times are remembered.
const NAMES_MAX: usize = 1024;

/// Why a loaded replica leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Memory was short.
    Pressure,
    /// Another model needed its room.
    Room,
    /// Nobody asked for it for its time to live.
    TimeToLive,
    /// Somebody said so.
    Told,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 4] = [Self::Pressure, Self::Room, Self::TimeToLive, Self::Told];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pressure => "pressure",
            Self::Room => "room",
            Self::TimeToLive => "ttl",
            Self::Told => "admin",
        }
    }
}

/// How a load ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The replica takes requests.
    Loaded,
    /// The load failed.
    Failed,
    /// There was no room when it came to it.
    Crowded,
    /// It was stopped.
    Stopped,
}

impl Outcome {
    /// Every outcome.
    pub const ALL: [Self; 4] = [Self::Loaded, Self::Failed, Self::Crowded, Self::Stopped];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::Failed => "failed",
            Self::Crowded => "no_room",
            Self::Stopped => "stopped",
        }
    }
}

/// A loaded replica that was told to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// When.
    pub at: Duration,
    /// Which.
    pub id: ReplicaId,
    /// The model's name.
    pub name: String,
    /// Memory that it took.
    pub bytes: u64,
    /// Why.
    pub cause: Cause,
}

/// Counts since the start, and the last departures.
#[derive(Debug, Default)]
pub struct History {
    unloaded: [u64; Cause::ALL.len()],
    loads: [u64; Outcome::ALL.len()],
    departures: VecDeque<Departure>,
    load_times: BTreeMap<String, Duration>,
}

impl History {
    pub(crate) fn departed(&mut self, departure: Departure) {
        self.unloaded[departure.cause as usize] += 1;
        self.departures.push_back(departure);
        if self.departures.len() > REMEMBERED {
            self.departures.pop_front();
        }
    }

    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.loads[outcome as usize] += 1;
    }

    /// A load is done. Beyond the most names there may be, new ones aren't remembered.
    pub(crate) fn took(&mut self, name: &str, time: Duration) {
        if self.load_times.len() < NAMES_MAX || self.load_times.contains_key(name) {
            self.load_times.insert(name.to_owned(), time);
        }
    }

    /// How long the last load of a model took.
    pub fn load_time(&self, name: &str) -> Option<Duration> {
        self.load_times.get(name).copied()
    }

    /// Loaded replicas that had to go for this cause.
    pub fn unloaded(&self, cause: Cause) -> u64 {
        self.unloaded[cause as usize]
    }

    /// Loads that ended like this. One that found no room and was begun again counts once.
    pub fn loads(&self, outcome: Outcome) -> u64 {
        self.loads[outcome as usize]
    }

    /// The last departures, the newest last.
    pub fn departures(&self) -> impl DoubleEndedIterator<Item = &Departure> {
        self.departures.iter()
    }
}
