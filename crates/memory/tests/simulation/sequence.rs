//! Pages of KV, and the sequences that own them.

use lichen_memory::{KvPrecision, ModelBytes, OverBudget, Reach, Reservation};

pub(crate) const KIB: u64 = 1024;
pub(crate) const MIB: u64 = 1024 * KIB;
pub(crate) const PAGE_TOKENS: u64 = 64;

/// The bytes of Qwen2.5-0.5B, with fewer weights.
pub(crate) fn model() -> ModelBytes {
    ModelBytes {
        page: [768 * KIB, 408 * KIB, 240 * KIB, 216 * KIB],
        page_tokens: PAGE_TOKENS,
        fine_pages: 1,
        floor: KvPrecision::Q4,
        context_cap: 32_768,
        scratch: scratch(512),
        weights_mapped: 96 * MIB,
        weights_anonymous: 0,
        tokenizer: 0,
    }
}

/// Bytes of activations for a batch, with one row of logits.
pub(crate) fn scratch(batch: u64) -> u64 {
    batch * 54_528 + 607_744
}

/// Bytes of one page.
pub(crate) fn page(precision: KvPrecision) -> u64 {
    [768, 408, 240, 216][precision as usize] * KIB
}

/// Bytes of one page beyond the smallest precision.
pub(crate) fn surplus(precision: KvPrecision) -> u64 {
    page(precision) - page(KvPrecision::Q4)
}

/// Full pages, by precision.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pages(pub(crate) [u64; 4]);

impl Pages {
    pub(crate) fn bytes(&self) -> u64 {
        KvPrecision::ALL.into_iter().map(|precision| self.0[precision as usize] * page(precision)).sum()
    }

    /// What requantising all of them would free.
    pub(crate) fn saving(&self, to: KvPrecision) -> u64 {
        let larger = KvPrecision::ALL.into_iter().filter(|from| *from < to);
        larger.map(|from| self.0[from as usize] * (page(from) - page(to))).sum()
    }

    /// Requantises pages until so much is freed or no more may be converted. Returns what was freed.
    pub(crate) fn requantise(&mut self, to: KvPrecision, want: u64, conversions: &mut u64) -> u64 {
        let mut freed = 0;
        for from in KvPrecision::ALL.into_iter().filter(|from| *from < to) {
            while freed < want && self.0[from as usize] > 0 && *conversions > 0 {
                self.0[from as usize] -= 1;
                self.0[to as usize] += 1;
                *conversions -= 1;
                freed += page(from) - page(to);
            }
        }
        freed
    }
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    Running,
    Parked,
    Done,
}

/// A request and its KV.
pub(crate) struct Sequence {
    pub(crate) prompt: u64,
    pub(crate) answer: u64,
    pub(crate) position: u64,
    pub(crate) answered: u64,
    pub(crate) state: State,
    /// Who began earlier has the smaller one.
    pub(crate) place: u64,
    pub(crate) floor: Option<Reservation>,
    pub(crate) surplus: Option<Reservation>,
    /// Full pages. One more page, the newest, is at full precision while it runs.
    pub(crate) sealed: Pages,
    pub(crate) count: u64,
}

impl Sequence {
    pub(crate) fn waiting(prompt: u64, answer: u64) -> Self {
        Self {
            prompt,
            answer,
            position: 0,
            answered: 0,
            state: State::Waiting,
            place: u64::MAX,
            floor: None,
            surplus: None,
            sealed: Pages::default(),
            count: 0,
        }
    }

    /// Bytes of its pages.
    pub(crate) fn bytes(&self) -> u64 {
        self.sealed.bytes() + if self.count > 0 { page(KvPrecision::F16) } else { 0 }
    }

    /// Takes the pages of its position at the smallest precision. Those that can't be had are had later.
    pub(crate) fn map(&mut self, reach: Reach) -> Result<(), OverBudget> {
        let floor = self.floor.as_mut().expect("a running sequence is promised its floor");
        while self.count < self.position.div_ceil(PAGE_TOKENS).max(1) {
            let first = self.count == 0;
            floor.map(page(if first { KvPrecision::F16 } else { KvPrecision::Q4 }), reach)?;
            self.sealed.0[KvPrecision::Q4 as usize] += u64::from(!first);
            self.count += 1;
        }
        Ok(())
    }

    /// Takes the pages of its position; those that get full are sealed at this precision if there is room,
    /// otherwise at the smallest, which is promised.
    pub(crate) fn extend(&mut self, precision: KvPrecision, reach: Reach) -> Result<(), OverBudget> {
        let count = self.count;
        self.map(reach)?;
        let added = self.count - count;
        if self.surplus.as_mut().is_some_and(|one| one.grow(added * surplus(precision)).is_ok()) {
            self.sealed.0[KvPrecision::Q4 as usize] -= added;
            self.sealed.0[precision as usize] += added;
        }
        Ok(())
    }

    /// Requantises its pages; returns what was freed.
    pub(crate) fn requantise(&mut self, to: KvPrecision, want: u64, conversions: &mut u64) -> u64 {
        let freed = self.sealed.requantise(to, want, conversions);
        self.surplus.as_mut().map_or(0, |surplus| surplus.shrink(freed))
    }

    /// Gives all its memory and promises back; the pages are on disk then.
    pub(crate) fn park(&mut self) {
        (self.state, self.floor, self.surplus) = (State::Parked, None, None);
        (self.sealed, self.count) = (Pages::default(), 0);
    }
}
