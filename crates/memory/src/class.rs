//! What memory is reserved for, and by whom.

use std::fmt;
use std::sync::Arc;

/// What a reservation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// The process itself: tokenizers, connections, buffers for input and output.
    Fixed,
    /// Weights in memory of our own: packed copies, weights that were converted.
    WeightsAnonymous,
    /// Weights in clean pages of a mapped file.
    WeightsMapped,
    /// Activations and logits.
    Scratch,
    /// The most that admitted sequences can need at the smallest KV precision, recurrent state included. A
    /// promise: memory stands behind it only as far as [`Reservation::map`](crate::Reservation::map) says.
    KvFloor,
    /// What KV in use takes beyond the smallest precision.
    KvSurplus,
    /// KV kept for prompts to come.
    PrefixCache,
    /// Recurrent states kept for prompts to come.
    Checkpoint,
    /// Room that requantising and spilling need when there is no other.
    Emergency,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 9] = [
        Self::Fixed,
        Self::WeightsAnonymous,
        Self::WeightsMapped,
        Self::Scratch,
        Self::KvFloor,
        Self::KvSurplus,
        Self::PrefixCache,
        Self::Checkpoint,
        Self::Emergency,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::WeightsAnonymous => "weights_anonymous",
            Self::WeightsMapped => "weights_mapped",
            Self::Scratch => "scratch",
            Self::KvFloor => "kv_floor",
            Self::KvSurplus => "kv_surplus",
            Self::PrefixCache => "prefix_cache",
            Self::Checkpoint => "checkpoint",
            Self::Emergency => "emergency",
        }
    }

    /// Whether it can be taken back within milliseconds and without loss of a request. The others are
    /// committed.
    pub fn is_revocable(self) -> bool {
        matches!(self, Self::KvSurplus | Self::PrefixCache | Self::Checkpoint)
    }

    /// Whether it grows and shrinks with the requests.
    pub fn is_dynamic(self) -> bool {
        self == Self::KvFloor || self.is_revocable()
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who reserves: a replica of a model, or a part of the server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The model's or part's name.
    pub name: Arc<str>,
    /// Which replica of it, from 0.
    pub replica: u32,
}

impl Owner {
    /// A replica of a model.
    pub fn new(name: &str, replica: u32) -> Self {
        Self { name: name.into(), replica }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replica {
            0 => f.write_str(&self.name),
            replica => write!(f, "{} (replica {replica})", self.name),
        }
    }
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Domain {
    /// Main memory.
    Host,
    /// The memory of the device with this number.
    Device(u32),
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Device(number) => write!(f, "device{number}"),
        }
    }
}
