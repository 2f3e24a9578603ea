//! The prefix tree and the backend's pages, kept in step.

use lichen_backend::{Executor, KvPrecision, PageId, PageSet};
use lichen_sched::PrefixTree;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::spill::Spill;

/// A step waits so long at most for pages to leave for the cold tier; what has not left then is lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// An engine that ends waits so long for the pages that it still has.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// State of texts that are not being worked on, for those that begin like them.
pub(crate) struct PrefixCache {
    tree: PrefixTree<PageId>,
    page_tokens: usize,
    spill: Option<Spill>,
}

impl PrefixCache {
    pub(crate) fn new(page_tokens: usize, max_sessions: usize, spill: Option<Spill>) -> Self {
        Self { tree: PrefixTree::new(page_tokens, max_sessions), page_tokens, spill }
    }

    pub(crate) fn set_max_sessions(&mut self, max_sessions: usize) {
        self.tree.set_max_sessions(max_sessions);
    }

    pub(crate) fn sessions(&self) -> usize {
        self.tree.sessions()
    }

    /// Gives a sequence that has no state the longest known beginning of `tokens`, and returns its length.
    pub(crate) fn adopt(&mut self, executor: &mut dyn Executor, sequence: u64, tokens: &[u32]) -> usize {
        let found = self.tree.lookup(tokens);
        if found.tokens > 0 {
            executor.adopt(sequence, &found.pages, found.tokens);
        }
        found.tokens
    }

    /// How many of the first of these tokens the cold tier has state for, if that is a page or more beyond what is here.
    pub(crate) fn colder(&mut self, tokens: &[u32]) -> Option<usize> {
        let found = self.spill.as_ref()?.find(tokens);
        let here = self.tree.lookup(tokens).tokens;
        (found >= here + self.page_tokens).then_some(found)
    }

    /// Takes the state of these tokens in from the cold tier, page by page, while pages stay within `ceiling` bytes.
    pub(crate) fn restore(
        &mut self,
        executor: &mut dyn Executor,
        tokens: &[u32],
        session: Option<u64>,
        ceiling: u64,
    ) {
        let Some(spill) = &self.spill else { return };
        let mut pages = Vec::new();
        let sound = spill.read(tokens, &mut |precision, bytes| {
            let fits = executor.kv_bytes().saturating_add(bytes.len() as u64) <= ceiling;
            if fits {
                pages.push(executor.import_page(precision, bytes)?);
            }
            Ok(fits)
        });
        if sound {
            let covered = tokens.len().min(pages.len() * self.page_tokens);
            self.insert(executor, &tokens[..covered], &pages, session);
        } else {
            pages.into_iter().for_each(|page| executor.release(page));
        }
    }

    /// Writes everything to the cold tier, what was used last first, and waits until it is there.
    pub(crate) fn spill_all(&mut self, executor: &dyn Executor) {
        let Some(spill) = self.spill.take() else { return };
        let deadline = Instant::now() + LAST_PATIENCE;
        self.tree.texts().for_each(|(tokens, pages)| spill.write(executor, &tokens, &pages, deadline));
    }

    /// Gives up at least `want` pages, if there are so many. What they hold goes to the cold tier.
    fn give_up(&mut self, executor: &dyn Executor, want: usize, deadline: Instant) -> Vec<PageId> {
        let spill = &self.spill;
        let leaving = |tokens: &[u32], pages: &[PageId]| {
            if let Some(spill) = spill {
                spill.write(executor, tokens, pages, deadline);
            }
        };
        self.tree.evict(want, |page| executor.users(page) == 0, leaving)
    }

    /// Keeps the state of a sequence, whose tokens these are.
    pub(crate) fn keep(
        &mut self,
        executor: &mut dyn Executor,
        sequence: u64,
        tokens: &[u32],
        session: Option<u64>,
    ) {
        let pages = executor.hold(sequence);
        if !pages.is_empty() {
            self.insert(executor, tokens, &pages, session);
        }
    }

    /// Keeps held pages, whose tokens these are, and releases those that are here already.
    pub(crate) fn insert(
        &mut self,
        executor: &mut dyn Executor,
        tokens: &[u32],
        pages: &[PageId],
        session: Option<u64>,
    ) {
        for page in self.tree.insert(tokens, pages, session) {
            executor.release(page);
        }
    }

    /// The conversation of a session that was used last.
    pub(crate) fn latest(&self, session: u64) -> Option<(Vec<u32>, Vec<PageId>)> {
        self.tree.latest(session)
    }

    /// Sessions that have pages.
    pub(crate) fn all_sessions(&self) -> BTreeSet<u64> {
        self.tree.all_sessions()
    }

    /// Gives up what belongs to a session alone, in the cold tier too. Returns how many bytes are free.
    pub(crate) fn forget(&mut self, executor: &mut dyn Executor, session: u64) -> u64 {
        let spill = &self.spill;
        let cold = |text: &[u32]| {
            if let Some(spill) = spill {
                spill.forget(text);
            }
        };
        let pages = self.tree.forget(session, |page| executor.users(page) == 0, cold);
        let freed = pages.iter().map(|page| executor.page_size(*page)).sum();
        pages.into_iter().for_each(|page| executor.release(page));
        freed
    }

    /// Pages that could be allocated under `limit`, counting what the cache could give up.
    pub(crate) fn room(&self, executor: &dyn Executor, limit: usize) -> usize {
        let evictable = self.tree.evictable(|page| executor.users(page) == 0);
        limit.saturating_sub(executor.pages().saturating_sub(evictable))
    }

    /// Pages that only the cache holds.
    pub(crate) fn pages(&self, executor: &dyn Executor) -> usize {
        self.tree.evictable(|page| executor.users(page) == 0)
    }

    /// Gives up pages until `more` can be allocated under `limit`.
    pub(crate) fn make_room(&mut self, executor: &mut dyn Executor, limit: usize, more: usize) {
        let short = (executor.pages() + more).saturating_sub(limit);
        if short > 0 {
            let evicted = self.give_up(executor, short, Instant::now() + PATIENCE);
            evicted.into_iter().for_each(|page| executor.release(page));
        }
    }

    /// Bytes of the pages that only the cache holds.
    pub(crate) fn bytes(&self, executor: &dyn Executor) -> u64 {
        let idle = self.tree.idle(|page| executor.users(page) == 0);
        idle.map(|page| executor.page_size(page)).sum()
    }

    /// Gives up the coldest pages until so many bytes are free. Returns how many are.
    pub(crate) fn evict(&mut self, executor: &mut dyn Executor, bytes: u64) -> u64 {
        // No page is larger, so no round gives up more than is wanted.
        let largest = executor.page_bytes(KvPrecision::F32).max(1);
        let (mut freed, deadline) = (0u64, Instant::now() + PATIENCE);
        while freed < bytes {
            let want = usize::try_from((bytes - freed).div_ceil(largest)).unwrap_or(usize::MAX);
            let evicted = self.give_up(executor, want, deadline);
            if evicted.is_empty() {
                break;
            }
            for page in evicted {
                freed += executor.page_size(page);
                executor.release(page);
            }
        }
        freed
    }

    /// Stores pages that only the cache holds more coarsely, the coldest first, until so many bytes are free. Returns
    /// how many are.
    pub(crate) fn requantise(&self, executor: &mut dyn Executor, precision: KvPrecision, bytes: u64) -> u64 {
        let mut freed = 0;
        for page in self.tree.cold(|page| executor.users(page) == 0) {
            if freed >= bytes {
                break;
            }
            // A page for which there is no memory in between stays as it is.
            freed += executor.requantise(PageSet::Page(page), precision).unwrap_or(0);
        }
        freed
    }

    /// Bytes that [`PrefixCache::requantise`] could free at most.
    pub(crate) fn surplus(&self, executor: &dyn Executor, precision: KvPrecision) -> u64 {
        let small = executor.page_bytes(precision);
        let idle = self.tree.idle(|page| executor.users(page) == 0);
        idle.map(|page| executor.page_size(page).saturating_sub(small)).sum()
    }
}
