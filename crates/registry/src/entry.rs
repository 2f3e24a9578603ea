//! What is asked for, what is to be done, and what can be seen.

use std::time::Duration;

/// One load of a model, from its request to its end. Never used again for another load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub(crate) u64);

impl std::fmt::Display for ReplicaId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A model that may be loaded, or that somebody asks to have loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name requests use. Several replicas may bear one name.
    pub name: String,
    /// Memory that one replica takes: an estimate before the load, the measured size after it.
    pub bytes: u64,
    /// How long a replica may stay without a request; `None` for as long as nothing else needs the room.
    pub ttl: Option<Duration>,
    /// Leaves only when told to: no time to live, no eviction.
    pub pinned: bool,
    /// Its class: it is evicted only for models of its own class or of a higher one.
    pub priority: i32,
}

/// Bounds of a [`crate::Registry`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Memory that all replicas together may take; `u64::MAX` for no limit.
    pub bytes: u64,
    /// How long a replica that nobody has used yet stays after its load before it may be evicted for another
    /// model. One that has served a request may go at once, so that each load serves at least one.
    pub min_residency: Duration,
    /// How long a replica must have been idle before short memory alone may end it.
    pub pressure_idle: Duration,
    /// How long after a first failure a request may start the next load. It doubles with each further
    /// failure.
    pub retry_first: Duration,
    /// The longest such pause.
    pub retry_max: Duration,
}

impl Default for Limits {
    /// No limit of memory, 30 s of residency and of idleness, and retries after 10 s up to 5 min.
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            min_residency: Duration::from_secs(30),
            pressure_idle: Duration::from_secs(30),
            retry_first: Duration::from_secs(10),
            retry_max: Duration::from_secs(300),
        }
    }
}

/// What the caller has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Load this replica, then report `loaded`, `failed` or `crowded`.
    Load(ReplicaId),
    /// Drop this replica, then report `unloaded`. No request uses it. If its load still runs, stop it.
    Unload(ReplicaId),
}

/// Where a replica is. A replica that is gone is not listed.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// Its room is reserved; it waits for its turn to load.
    Queued,
    /// Its load runs.
    Loading {
        /// When it began.
        since: Duration,
        /// The share done, 0 to 1.
        progress: f32,
    },
    /// It takes requests.
    Ready,
    /// It takes no new requests and goes when the last one ends.
    Draining,
    /// It is being dropped; its memory still counts.
    Unloading,
    /// It is not there: its load failed, or it broke later.
    Failed {
        /// What the caller reported.
        reason: String,
    },
}

/// One line of [`crate::Registry::list`].
#[derive(Debug, Clone, PartialEq)]
pub struct View<'a> {
    /// Which replica.
    pub id: ReplicaId,
    /// The model's name.
    pub name: &'a str,
    /// Where it is.
    pub state: State,
    /// Requests that use it.
    pub in_flight: usize,
    /// Memory it takes or will take; 0 once failed.
    pub bytes: u64,
    /// When the last request started or ended on it; `None` if there was none.
    pub last_used: Option<Duration>,
    /// When its time to live runs out, if nothing uses it till then.
    pub expires: Option<Duration>,
    /// Leaves only when told to.
    pub pinned: bool,
    /// Its class.
    pub priority: i32,
}
