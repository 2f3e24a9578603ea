//! What the machine says about its memory at one moment.

use std::fmt;
use std::time::Duration;

/// One reading of the sensors. What couldn't be read is absent, never zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// Bytes of main memory.
    pub total: Option<u64>,
    /// Bytes that could be allocated without swapping, droppable caches included.
    pub available: Option<u64>,
    /// Bytes of anonymous memory of this process.
    pub anonymous: Option<u64>,
    /// Bytes of mapped files of this process that are in memory.
    pub file: Option<u64>,
    /// Our control group and its ancestors, as far as they have a limit; the innermost first.
    pub groups: Vec<Group>,
    /// Time that tasks have stood still for want of memory.
    pub stall: Option<Stall>,
    /// Bytes of files that were dropped from memory and read again.
    pub refaulted: Option<Refaults>,
    /// How often this process has waited for a page from disk since it started.
    pub major_faults: Option<u64>,
}

/// A control group with a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its path.
    pub name: String,
    /// Bytes that it may use.
    pub limit: u64,
    /// Bytes in use.
    pub usage: Option<u64>,
    /// Of these, bytes of files, which the kernel can drop.
    pub file: Option<u64>,
    /// How often the usage met the limit, since some start.
    pub limit_hits: Option<u64>,
    /// How often memory ran out, since some start.
    pub out_of_memory: Option<u64>,
}

/// What a counter is about. A counter of one origin says nothing about the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Our control group.
    Group,
    /// The whole machine.
    System,
}

/// Time that tasks have stood still for want of memory, since some start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Whose tasks.
    pub origin: Origin,
    /// Some task stood still.
    pub some: Duration,
    /// All tasks stood still.
    pub full: Duration,
}

/// Bytes of files that were dropped from memory and read again, since some start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refaults {
    /// Whose files.
    pub origin: Origin,
    /// How many.
    pub bytes: u64,
}

/// Where a limit comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The operator.
    Explicit,
    /// The control group with this path.
    Group(String),
    /// The size of main memory.
    Host,
    /// The size of a device's memory.
    Device(u32),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Explicit => f.write_str("memory budget"),
            Self::Group(name) => write!(f, "cgroup:{name}"),
            Self::Host => f.write_str("host"),
            Self::Device(number) => write!(f, "device{number}"),
        }
    }
}
