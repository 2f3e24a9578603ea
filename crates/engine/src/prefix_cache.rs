//! The prefix tree and the backend's pages, kept in step.

use lichen_backend::{Executor, KvPrecision, PageId, PageSet};
use lichen_sched::PrefixTree;
use std::collections::BTreeSet;

/// State of texts that are not being worked on, for those that begin like them.
pub(crate) struct PrefixCache {
    tree: PrefixTree<PageId>,
}

impl PrefixCache {
    pub(crate) fn new(page_tokens: usize, max_sessions: usize) -> Self {
        Self { tree: PrefixTree::new(page_tokens, max_sessions) }
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

    /// Gives up what belongs to a session alone. Returns how many bytes are free.
    pub(crate) fn forget(&mut self, executor: &mut dyn Executor, session: u64) -> u64 {
        let pages = self.tree.forget(session, |page| executor.users(page) == 0);
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
            let evicted = self.tree.evict(short, |page| executor.users(page) == 0);
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
        let mut freed = 0;
        while freed < bytes {
            let want = usize::try_from((bytes - freed).div_ceil(largest)).unwrap_or(usize::MAX);
            let evicted = self.tree.evict(want, |page| executor.users(page) == 0);
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
