//! What the engine's thread does about memory: how many pages may come to be, and what gives way for them.

use crate::memory::{Relief, Use, precision};
use crate::worker::Worker;
use lichen_backend::{KvPrecision, PageSet};
use lichen_memory::{Effects, Level, Request, Rung, Yields};
use lichen_sched::Work;

/// Pages of a running sequence that are never stored coarsely: the first, the newest full one and the open one.
pub const FINE_PAGES: usize = 3;

impl Worker<'_> {
    pub(crate) fn effects(&self) -> Effects {
        Effects::of(self.account.level())
    }

    /// The precision that pages can be brought to.
    fn floor(&self) -> KvPrecision {
        self.config.kv_floor()
    }

    /// This precision, or another as the configuration wants it.
    fn at_most(&self, precision: KvPrecision) -> KvPrecision {
        self.config.kv_at_most(precision)
    }

    /// The precision that pages are written in.
    fn open(&self) -> KvPrecision {
        KvPrecision::F16.max(self.config.kv_precision)
    }

    fn page_bytes(&self, precision: KvPrecision) -> u64 {
        self.executor.page_bytes(precision)
    }

    /// Puts the level in force: precision of new pages, how many run, how prompts are prefilled.
    pub(crate) fn apply_level(&mut self) {
        let level = self.account.level();
        if level == self.level {
            return;
        }
        self.level = level;
        let effects = self.effects();
        let sealed = self.at_most(precision(effects.new_pages));
        self.executor.set_kv_precision(sealed);
        self.scheduler.set_limits(self.limits());
        if effects.park {
            let running = effects.concurrency.of(self.config.max_running);
            let parked = self.scheduler.park(running);
            self.pause(&parked);
        }
    }

    /// Bytes that running sequences were promised, or have come to need.
    pub(crate) fn promised(&self) -> u64 {
        let Some(member) = self.account.member() else { return 0 };
        let model = member.model();
        let of = |id: u64| {
            let sequence = &self.sequences[&id];
            let tokens = sequence.promised.max(sequence.tokens().len() + 1);
            model.turn_bytes(tokens as u64, 0, 0)
        };
        self.scheduler.running().map(of).sum()
    }

    /// Parks even the last sequence that runs if it doesn't fit any more: [`Rung::ParkLast`]. It doesn't wait to be
    /// asked, since its next page would be one too many. [`Worker::begin`] lets it come back as soon as it fits.
    pub(crate) fn park_last(&mut self) {
        if !self.outgrown() {
            return;
        }
        let freed = self.park_one();
        self.settle(0);
        if let Some(member) = self.account.member() {
            member.report(Relief { request: Request { rung: Rung::ParkLast, bytes: freed }, freed });
        }
    }

    /// Only one sequence runs, and it doesn't fit any more even if all its pages that can be are at the smallest
    /// precision.
    fn outgrown(&self) -> bool {
        let (Some(member), mut running) = (self.account.member(), self.scheduler.running()) else {
            return false;
        };
        let (Some(id), None) = (running.next(), running.next()) else { return false };
        let tokens = self.sequences[&id].tokens().len() + 1;
        member.model().turn_bytes(tokens as u64, 0, 0) > self.account.most_active()
    }

    /// Pages that could be made if everything gave way that can.
    pub(crate) fn room(&self) -> usize {
        let pages = self.cache.room(&*self.executor, self.page_limit());
        // Whoever runs alone has the right of way.
        if self.account.member().is_none() || self.scheduler.running().count() <= 1 {
            return pages;
        }
        let (small, open) = (self.page_bytes(self.floor()), self.page_bytes(self.open()));
        let active = (self.executor.pages() - self.cache.pages(&*self.executor)) as u64;
        let chunk = self.limits().prefill_tokens.div_ceil(self.executor.page_tokens());
        let open_pages = self.scheduler.running().count() * FINE_PAGES + chunk;
        let floor = active * small + open_pages as u64 * open.saturating_sub(small);
        let room = self.account.ceiling().saturating_sub(floor) / small.max(1);
        pages.min(usize::try_from(room).unwrap_or(usize::MAX))
    }

    /// Makes room for so many open pages, and takes them into the account before they are touched.
    pub(crate) fn make_room(&mut self, pages: usize) {
        let limit = self.page_limit();
        self.cache.make_room(&mut *self.executor, limit, pages);
        if self.account.member().is_none() {
            return;
        }
        let more = pages as u64 * self.page_bytes(self.open());
        let short =
            |worker: &Self| (worker.executor.kv_bytes() + more).saturating_sub(worker.account.ceiling());
        if short(self) > 0 && self.account.level() > Level::Normal {
            let (to, bytes) = (self.floor(), short(self));
            self.cache.requantise(&mut *self.executor, to, bytes);
            self.settle(0);
        }
        if short(self) > 0 {
            let bytes = short(self);
            self.cache.evict(&mut *self.executor, bytes);
            self.settle(0);
        }
        if short(self) > 0 {
            let bytes = short(self);
            self.requantise_active(self.floor(), bytes);
        }
        self.settle(more);
    }

    /// Takes note of sequences whose pages are coarser than what was configured.
    pub(crate) fn note_reduced(&mut self, work: &[Work]) {
        if self.account.member().is_none() {
            return;
        }
        let usual = self.page_bytes(self.config.kv_precision);
        let whole = self.config.kv_precision == self.open();
        if whole && self.executor.kv_bytes() == self.executor.pages() as u64 * usual {
            return;
        }
        for work in work {
            let pages = self.executor.sequence_pages(work.id).iter();
            let sizes = pages.map(|&page| self.executor.page_size(page));
            let least = sizes.min().unwrap_or(usual);
            let of_size = |precision: &KvPrecision| self.page_bytes(*precision) == least;
            let reduced = KvPrecision::ALL.into_iter().find(of_size).filter(|_| least < usual);
            if let (Some(precision), Some(sequence)) = (reduced, self.sequences.get_mut(&work.id)) {
                sequence.note_reduced(precision.name());
            }
        }
    }

    /// Brings the account to the pages that there are, and `more` bytes that are about to be touched.
    pub(crate) fn settle(&mut self, more: u64) {
        if self.account.member().is_none() {
            return;
        }
        let cached = self.cache.bytes(&*self.executor);
        let active = self.executor.kv_bytes().saturating_sub(cached) + more;
        self.account.settle(Use { promised: self.promised(), active, cached });
    }

    /// Stores the full pages of running sequences more coarsely, the largest sequence first.
    fn requantise_active(&mut self, precision: KvPrecision, bytes: u64) -> u64 {
        let mut ids: Vec<u64> = self.scheduler.running().collect();
        ids.sort_by_key(|id| std::cmp::Reverse(self.sequences[id].past));
        let mut freed = 0;
        for id in ids {
            if freed >= bytes {
                break;
            }
            // If there is no memory for a page in between, the pages stay as they are.
            freed += self.executor.requantise(PageSet::Sequence(id), precision).unwrap_or(0);
        }
        freed
    }

    /// Frees what the governor asks for.
    pub(crate) fn relieve(&mut self, request: Request) {
        let effects = self.effects();
        let freed = match request.rung {
            Rung::RequantiseCached => effects.requantise_cached.map_or(0, |to| {
                let to = self.at_most(precision(to));
                self.cache.requantise(&mut *self.executor, to, request.bytes)
            }),
            Rung::RequantiseActive => effects
                .requantise_active
                .map_or(0, |to| self.requantise_active(self.at_most(precision(to)), request.bytes)),
            Rung::EvictCold if effects.evict_cold => self.cache.evict(&mut *self.executor, request.bytes),
            Rung::ParkNewest | Rung::OneSlot if effects.park && self.scheduler.running().count() > 1 => {
                self.park_one()
            }
            _ => 0,
        };
        self.settle(0);
        if let Some(member) = self.account.member() {
            member.report(Relief { request, freed });
        }
    }

    /// Pauses who began last, drops its pages and says how many bytes they had.
    fn park_one(&mut self) -> u64 {
        let before = self.executor.kv_bytes();
        let running = self.scheduler.running().count();
        let parked = self.scheduler.park(running.saturating_sub(1));
        for &id in &parked {
            self.executor.drop_sequence(id);
        }
        self.pause(&parked);
        before.saturating_sub(self.executor.kv_bytes())
    }

    /// Tells the governor what each rung could free.
    pub(crate) fn offer(&self) {
        let Some(member) = self.account.member() else { return };
        member.note_oldest(self.scheduler.running().filter_map(|id| self.sequences[&id].begun()).min());
        if self.account.level() == Level::Normal {
            return;
        }
        let effects = self.effects();
        let mut yields = Yields::new();
        if let Some(to) = effects.requantise_cached {
            yields.insert(
                Rung::RequantiseCached,
                self.cache.surplus(&*self.executor, self.at_most(precision(to))),
            );
        }
        if let Some(to) = effects.requantise_active {
            let small = self.page_bytes(self.at_most(precision(to)));
            let sealed = |id: u64| {
                let pages = self.executor.sequence_pages(id);
                let inner = pages.len().saturating_sub(FINE_PAGES);
                let surplus = |&page| self.executor.page_size(page).saturating_sub(small);
                pages.iter().skip(1).take(inner).map(surplus).sum::<u64>()
            };
            yields.insert(Rung::RequantiseActive, self.scheduler.running().map(sealed).sum());
        }
        yields.insert(Rung::EvictCold, self.cache.bytes(&*self.executor));
        let running = self.scheduler.running().count();
        if running > 1 {
            let active = self.executor.kv_bytes() - self.cache.bytes(&*self.executor);
            yields.insert(Rung::ParkNewest, active / running as u64);
        }
        member.offer(yields);
    }

    /// Pages that a step needs.
    pub(crate) fn needed(&self, work: &[Work]) -> usize {
        let page = self.executor.page_tokens();
        let pages = |work: &Work| {
            let end = work.past + work.tokens + work.drafts;
            end.div_ceil(page) - work.past.div_ceil(page) + usize::from(!work.past.is_multiple_of(page))
        };
        work.iter().map(pages).sum()
    }
}
