//! What is done at each level, in ranked order, and undone in reverse.

use crate::Level;
use std::fmt;

/// How KV is stored. Smaller is later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvPrecision {
    /// 16-bit floating point.
    #[default]
    F16,
    /// 8-bit keys with a scale for each channel, 8-bit values.
    Q8,
    /// 5-bit keys with a scale for each channel, 4-bit values.
    Q5,
    /// 4-bit keys with a scale for each channel, 4-bit values.
    Q4,
}

impl KvPrecision {
    /// Every precision, from large to small.
    pub const ALL: [Self; 4] = [Self::F16, Self::Q8, Self::Q5, Self::Q4];
}

/// One thing that is done about short memory. The order is that of harm: a later one is done only when the
/// earlier ones have nothing left to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rung {
    /// Caches don't grow, nothing is loaded ahead, free slabs go back to the system.
    FreezeCaches,
    /// New full pages are stored at 5 bits.
    SealSmall,
    /// Cached pages that no sequence uses are requantised to 4 bits.
    RequantiseCached,
    /// Full pages of running sequences are requantised, the largest surplus first: to 5 bits, and to 4 when
    /// memory is tight.
    RequantiseActive,
    /// Half as many sequences run.
    HalveConcurrency,
    /// One sequence prefills at a time, in small batches.
    NarrowPrefill,
    /// Cached pages that no sequence uses are dropped or spilled, the coldest first.
    EvictCold,
    /// Of recurrent states only the newest are kept, and the first page of a sequence is requantised too.
    DropCheckpoints,
    /// Idle replicas and then idle models are unloaded.
    UnloadIdle,
    /// Sequences beyond the concurrency are parked at a step boundary, the newest first.
    ParkNewest,
    /// One sequence runs, the oldest; the others are parked.
    OneSlot,
    /// The smallest batches, one row of logits, no packed copies of weights.
    SmallestScratch,
    /// Nothing is loaded, and nothing is admitted until the one that runs has ended.
    StopAdmission,
    /// Even the one that runs is parked, because its KV doesn't fit any more; it comes back as soon as it
    /// does.
    ParkLast,
}

impl Rung {
    /// Every rung, the least harmful first.
    pub const ALL: [Self; 14] = [
        Self::FreezeCaches,
        Self::SealSmall,
        Self::RequantiseCached,
        Self::RequantiseActive,
        Self::HalveConcurrency,
        Self::NarrowPrefill,
        Self::EvictCold,
        Self::DropCheckpoints,
        Self::UnloadIdle,
        Self::ParkNewest,
        Self::OneSlot,
        Self::SmallestScratch,
        Self::StopAdmission,
        Self::ParkLast,
    ];

    /// From which level on it is in force.
    pub fn level(self) -> Level {
        if self <= Self::RequantiseActive {
            Level::Watch
        } else if self <= Self::ParkNewest {
            Level::Tight
        } else {
            Level::Critical
        }
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::FreezeCaches => "freeze_caches",
            Self::SealSmall => "seal_small",
            Self::RequantiseCached => "requantise_cached",
            Self::RequantiseActive => "requantise_active",
            Self::HalveConcurrency => "halve_concurrency",
            Self::NarrowPrefill => "narrow_prefill",
            Self::EvictCold => "evict_cold",
            Self::DropCheckpoints => "drop_checkpoints",
            Self::UnloadIdle => "unload_idle",
            Self::ParkNewest => "park_newest",
            Self::OneSlot => "one_slot",
            Self::SmallestScratch => "smallest_scratch",
            Self::StopAdmission => "stop_admission",
            Self::ParkLast => "park_last",
        }
    }

    /// Whether it stops running sequences for a while, and so takes promises back.
    pub(crate) fn parks(self) -> bool {
        matches!(self, Self::ParkNewest | Self::OneSlot | Self::ParkLast)
    }

    /// Whether it gives up bytes that don't depend on the requests, and so widens the room for promises.
    pub(crate) fn widens(self) -> bool {
        matches!(self, Self::NarrowPrefill | Self::UnloadIdle | Self::SmallestScratch)
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many sequences may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Concurrency {
    /// As many as there are slots.
    Full,
    /// Half as many, at least one.
    Halved,
    /// One.
    One,
}

impl Concurrency {
    /// Of so many slots, how many may be in use.
    pub fn of(self, slots: usize) -> usize {
        match self {
            Self::Full => slots,
            Self::Halved => slots.div_ceil(2).max(1),
            Self::One => 1,
        }
    }
}

/// How prompts are prefilled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrefillWindow {
    /// As configured.
    Full,
    /// One sequence at a time, in batches of at most 128 tokens.
    Narrow,
    /// One sequence at a time, in batches of at most 32 tokens.
    Smallest,
}

impl PrefillWindow {
    /// The batch, of one that was configured.
    pub fn tokens(self, configured: usize) -> usize {
        match self {
            Self::Full => configured,
            Self::Narrow => configured.min(128),
            Self::Smallest => configured.min(32),
        }
    }
}

/// What holds while a level lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Effects {
    /// Whether caches may grow and things may be loaded ahead.
    pub caches_grow: bool,
    /// How new full pages are stored. The model may ask for less than [`KvPrecision::F16`].
    pub new_pages: KvPrecision,
    /// To what cached pages that no sequence uses may be requantised.
    pub requantise_cached: Option<KvPrecision>,
    /// To what full pages of running sequences may be requantised.
    pub requantise_active: Option<KvPrecision>,
    /// Whether the first page of a sequence may be requantised too.
    pub requantise_first_page: bool,
    /// How many sequences may run.
    pub concurrency: Concurrency,
    /// How prompts are prefilled.
    pub prefill_window: PrefillWindow,
    /// Whether cached pages that no sequence uses may be dropped or spilled.
    pub evict_cold: bool,
    /// Whether recurrent states but the newest may be dropped.
    pub newest_checkpoint_only: bool,
    /// Whether idle models may be unloaded.
    pub unload_idle: bool,
    /// Whether running sequences beyond the concurrency may be parked.
    pub park: bool,
    /// Whether even the last running sequence may be parked.
    pub park_last: bool,
    /// Whether packed copies of weights are kept.
    pub packed_weights: bool,
    /// Whether models are loaded, and sequences admitted beside one that runs.
    pub admission: bool,
}

impl Effects {
    /// What holds at a level: its rungs and those of every level below.
    pub fn of(level: Level) -> Self {
        let mut effects = Self::none();
        in_force(level).for_each(|rung| effects.apply(rung));
        // When memory is tight, the same rungs go further.
        if level >= Level::Tight {
            effects.new_pages = KvPrecision::Q4;
            effects.requantise_active = Some(KvPrecision::Q4);
        }
        effects
    }

    fn none() -> Self {
        Self {
            caches_grow: true,
            new_pages: KvPrecision::F16,
            requantise_cached: None,
            requantise_active: None,
            requantise_first_page: false,
            concurrency: Concurrency::Full,
            prefill_window: PrefillWindow::Full,
            evict_cold: false,
            newest_checkpoint_only: false,
            unload_idle: false,
            park: false,
            park_last: false,
            packed_weights: true,
            admission: true,
        }
    }

    fn apply(&mut self, rung: Rung) {
        match rung {
            Rung::FreezeCaches => self.caches_grow = false,
            Rung::SealSmall => self.new_pages = KvPrecision::Q5,
            Rung::RequantiseCached => self.requantise_cached = Some(KvPrecision::Q4),
            Rung::RequantiseActive => self.requantise_active = Some(KvPrecision::Q5),
            Rung::HalveConcurrency => self.concurrency = Concurrency::Halved,
            Rung::NarrowPrefill => self.prefill_window = PrefillWindow::Narrow,
            Rung::EvictCold => self.evict_cold = true,
            Rung::DropCheckpoints => {
                self.newest_checkpoint_only = true;
                self.requantise_first_page = true;
            }
            Rung::UnloadIdle => self.unload_idle = true,
            Rung::ParkNewest => self.park = true,
            Rung::OneSlot => self.concurrency = Concurrency::One,
            Rung::SmallestScratch => {
                self.prefill_window = PrefillWindow::Smallest;
                self.packed_weights = false;
            }
            Rung::StopAdmission => self.admission = false,
            Rung::ParkLast => self.park_last = true,
        }
    }
}

/// The rungs in force at a level, the least harmful first.
pub fn in_force(level: Level) -> impl DoubleEndedIterator<Item = Rung> + Clone {
    Rung::ALL.into_iter().filter(move |rung| rung.level() <= level)
}

/// What to do on a change of level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Change {
    /// Put the rung in force.
    Begin(Rung),
    /// Take it back.
    End(Rung),
}

/// The rungs that a change of level puts in force, in order, or takes back, in reverse order.
pub fn changes(from: Level, to: Level) -> Vec<Change> {
    if from < to {
        in_force(to).filter(|rung| rung.level() > from).map(Change::Begin).collect()
    } else {
        in_force(from).rev().filter(|rung| rung.level() > to).map(Change::End).collect()
    }
}
