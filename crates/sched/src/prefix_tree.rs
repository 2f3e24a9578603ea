//! A radix tree over token ids whose nodes are KV pages.
//!
//! The tree has one reference to each page that it stores; the caller keeps the backend's counts in step with it. Only
//! full pages have children. Prefixes are found to the token: the last page of a match may be matched in part, and
//! whoever writes into it copies it first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A prefix whose state exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<P> {
    /// Its pages in order.
    pub pages: Vec<P>,
    /// Its tokens; they end within the last page.
    pub tokens: usize,
}

#[derive(Debug)]
struct Node<P> {
    tokens: Vec<u32>,
    page: P,
    parent: usize,
    children: Vec<usize>,
    used: u64,
    session: Option<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct PrefixTree<P> {
    page_tokens: usize,
    max_sessions: usize,
    /// Freed places are `None`.
    nodes: Vec<Option<Node<P>>>,
    free: Vec<usize>,
    top: Vec<usize>,
    /// When each kept session was last used.
    sessions: BTreeMap<u64, u64>,
    uses: u64,
}

/// The parent of nodes without one.
const NONE: usize = usize::MAX;

impl<P: Copy + Eq> PrefixTree<P> {
    /// An empty tree for pages of `page_tokens` tokens, which prefers to keep the pages of `max_sessions` sessions.
    pub fn new(page_tokens: usize, max_sessions: usize) -> Self {
        Self {
            page_tokens,
            max_sessions,
            nodes: Vec::new(),
            free: Vec::new(),
            top: Vec::new(),
            sessions: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Pages stored.
    pub fn pages(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Sessions that are kept in preference.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Changes how many sessions are kept in preference.
    pub fn set_max_sessions(&mut self, max_sessions: usize) {
        self.max_sessions = max_sessions;
        self.trim_sessions();
    }

    fn node(&self, id: usize) -> &Node<P> {
        self.nodes[id].as_ref().expect("ids in the tree are occupied")
    }

    fn node_mut(&mut self, id: usize) -> &mut Node<P> {
        self.nodes[id].as_mut().expect("ids in the tree are occupied")
    }

    fn children(&self, parent: usize) -> &[usize] {
        if parent == NONE { &self.top } else { &self.node(parent).children }
    }

    fn children_mut(&mut self, parent: usize) -> &mut Vec<usize> {
        if parent == NONE { &mut self.top } else { &mut self.node_mut(parent).children }
    }

    /// The longest prefix of `tokens` in the tree, which counts as used now. A model must compute at least one token
    /// to have logits, so callers leave the last one of a prompt out.
    pub fn lookup(&mut self, tokens: &[u32]) -> Found<P> {
        self.uses += 1;
        let mut found = Found { pages: Vec::new(), tokens: 0 };
        let mut parent = NONE;
        loop {
            let rest = &tokens[found.tokens..];
            let common = |&id: &usize| (common(&self.node(id).tokens, rest), Reverse(id));
            let Some((length, Reverse(id))) = self.children(parent).iter().map(common).max() else { break };
            if length == 0 {
                break;
            }
            found.tokens += length;
            found.pages.push(self.node(id).page);
            let uses = self.uses;
            self.node_mut(id).used = uses;
            if length < self.page_tokens {
                break;
            }
            parent = id;
        }
        found
    }

    /// Stores the pages of a sequence and returns those that it did not take or gave up, for the caller to release:
    /// prefixes that are here already stay with the pages that they have.
    pub fn insert(&mut self, tokens: &[u32], pages: &[P], session: Option<u64>) -> Vec<P> {
        self.uses += 1;
        if let Some(session) = session {
            self.sessions.insert(session, self.uses);
            self.trim_sessions();
        }
        let mut released = Vec::new();
        let mut parent = NONE;
        let mut chunks = tokens.chunks(self.page_tokens);
        for &page in pages {
            let Some(chunk) = chunks.next() else {
                released.push(page);
                continue;
            };
            let children = self.children(parent);
            let longer = children.iter().copied().find(|&id| self.node(id).tokens.starts_with(chunk));
            let shorter = children.iter().copied().find(|&id| chunk.starts_with(&self.node(id).tokens));
            let id = if let Some(id) = longer {
                released.push(page);
                id
            } else if let Some(id) = shorter {
                let node = self.node_mut(id);
                released.push(std::mem::replace(&mut node.page, page));
                node.tokens = chunk.to_vec();
                id
            } else {
                self.add(parent, chunk.to_vec(), page)
            };
            let uses = self.uses;
            let node = self.node_mut(id);
            node.used = uses;
            node.session = session.or(node.session);
            parent = id;
        }
        released
    }

    fn add(&mut self, parent: usize, tokens: Vec<u32>, page: P) -> usize {
        let node = Node { tokens, page, parent, children: Vec::new(), used: self.uses, session: None };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        self.children_mut(parent).push(id);
        id
    }

    /// Gives up at least `want` pages, if there are so many that `is_free` allows: leaves first, those of kept
    /// sessions last, the least recently used first. The caller releases them. `leaving` is shown the tokens and pages
    /// of each text before it loses its first page, and not again when it loses more.
    pub fn evict(
        &mut self,
        want: usize,
        is_free: impl Fn(P) -> bool,
        mut leaving: impl FnMut(&[u32], &[P]),
    ) -> Vec<P> {
        let mut evicted = Vec::new();
        if want == 0 {
            return evicted;
        }
        let leaves = (0..self.nodes.len()).filter(|&id| self.is_free_leaf(id, &is_free));
        let mut heap: BinaryHeap<Reverse<(bool, u64, usize)>> =
            leaves.map(|id| Reverse(self.value(id))).collect();
        let mut shown = BTreeSet::new();
        while evicted.len() < want
            && let Some(Reverse((_, _, id))) = heap.pop()
        {
            if !shown.remove(&id) {
                let (tokens, pages) = self.text(id);
                leaving(&tokens, &pages);
            }
            let node = self.take(id);
            evicted.push(node.page);
            if node.parent != NONE && self.is_free_leaf(node.parent, &is_free) {
                heap.push(Reverse(self.value(node.parent)));
                shown.insert(node.parent);
            }
        }
        evicted
    }

    fn is_free_leaf(&self, id: usize, is_free: &impl Fn(P) -> bool) -> bool {
        self.nodes[id].as_ref().is_some_and(|node| node.children.is_empty() && is_free(node.page))
    }

    /// Smaller goes first.
    fn value(&self, id: usize) -> (bool, u64, usize) {
        let node = self.node(id);
        let kept = node.session.is_some_and(|session| self.sessions.contains_key(&session));
        (kept, node.used, id)
    }

    /// The pages that could be given up now, in any order.
    pub fn idle(&self, is_free: impl Fn(P) -> bool) -> impl Iterator<Item = P> {
        self.nodes.iter().flatten().map(|node| node.page).filter(move |&page| is_free(page))
    }

    /// How many pages could be given up now. A page that is in use keeps those before it, which are in use with it.
    pub fn evictable(&self, is_free: impl Fn(P) -> bool) -> usize {
        self.idle(is_free).count()
    }

    /// A node and those before it, the last first.
    fn path(&self, id: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(id), |&id| Some(self.node(id).parent).filter(|&parent| parent != NONE))
    }

    fn of_session(&self, session: u64) -> impl Iterator<Item = usize> {
        let belongs = move |node: &Node<P>| node.session == Some(session);
        (0..self.nodes.len()).filter(move |&id| self.nodes[id].as_ref().is_some_and(belongs))
    }

    /// The conversation of a session that was used last: its tokens and pages.
    pub fn latest(&self, session: u64) -> Option<(Vec<u32>, Vec<P>)> {
        let rank = |&id: &usize| (self.node(id).used, self.path(id).count());
        Some(self.text(self.of_session(session).max_by_key(rank)?))
    }

    /// All texts with their pages, those that would be given up last first.
    pub fn texts(&self) -> impl Iterator<Item = (Vec<u32>, Vec<P>)> {
        let mut leaves: Vec<usize> =
            (0..self.nodes.len()).filter(|&id| self.is_free_leaf(id, &|_| true)).collect();
        leaves.sort_by_key(|&id| Reverse(self.value(id)));
        leaves.into_iter().map(|id| self.text(id))
    }

    /// Tokens and pages up to a node.
    fn text(&self, id: usize) -> (Vec<u32>, Vec<P>) {
        let mut path: Vec<usize> = self.path(id).collect();
        path.reverse();
        let tokens = path.iter().flat_map(|&id| self.node(id).tokens.iter().copied()).collect();
        (tokens, path.iter().map(|&id| self.node(id).page).collect())
    }

    /// The sessions that have pages.
    pub fn all_sessions(&self) -> BTreeSet<u64> {
        self.nodes.iter().flatten().filter_map(|node| node.session).collect()
    }

    /// Forgets a session, and returns the pages that nobody else continues and `is_free` allows, for the caller to
    /// release. The others belong to no session then. `shown` is given the tokens of each text of the session.
    pub fn forget(
        &mut self,
        session: u64,
        is_free: impl Fn(P) -> bool,
        mut shown: impl FnMut(&[u32]),
    ) -> Vec<P> {
        self.sessions.remove(&session);
        let mut nodes: Vec<usize> = self.of_session(session).collect();
        nodes.sort_by_cached_key(|&id| Reverse(self.path(id).count()));
        let mut released = Vec::new();
        let mut covered = BTreeSet::new();
        for id in nodes {
            if !covered.contains(&id) {
                covered.extend(self.path(id));
                shown(&self.text(id).0);
            }
            if self.is_free_leaf(id, &is_free) {
                released.push(self.take(id).page);
            } else {
                self.node_mut(id).session = None;
            }
        }
        released
    }

    /// Takes a leaf out.
    fn take(&mut self, id: usize) -> Node<P> {
        let node = self.nodes[id].take().expect("leaves are occupied");
        self.free.push(id);
        self.children_mut(node.parent).retain(|&child| child != id);
        node
    }

    /// The pages that could be given up now, the least recently used first.
    pub fn cold(&self, is_free: impl Fn(P) -> bool) -> Vec<P> {
        let free = self.nodes.iter().enumerate().filter_map(|(id, node)| Some((id, node.as_ref()?)));
        let mut cold: Vec<(usize, P)> =
            free.filter(|(_, node)| is_free(node.page)).map(|(id, node)| (id, node.page)).collect();
        cold.sort_by_key(|&(id, _)| self.value(id));
        cold.into_iter().map(|(_, page)| page).collect()
    }

    /// Gives up everything.
    pub fn clear(&mut self) -> Vec<P> {
        let pages = self.nodes.drain(..).flatten().map(|node| node.page).collect();
        self.free.clear();
        self.top.clear();
        self.sessions.clear();
        pages
    }

    fn trim_sessions(&mut self) {
        while self.sessions.len() > self.max_sessions {
            let oldest = self.sessions.iter().min_by_key(|(_, used)| **used).map(|(&session, _)| session);
            self.sessions.remove(&oldest.expect("there is one"));
        }
    }
}

/// Tokens that both begin with.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree() -> PrefixTree<u32> {
        PrefixTree::new(4, 1)
    }

    #[test]
    fn the_longest_prefix_is_found_to_the_token() {
        let mut tree = tree();
        assert_eq!(tree.insert(&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[10, 11, 12], None), []);
        assert_eq!(tree.insert(&[1, 2, 3, 4, 5, 6, 0, 0], &[20, 21], None), [20]);
        assert_eq!(tree.lookup(&[1, 2, 3, 4, 5, 6, 7, 0]), Found { pages: vec![10, 11], tokens: 7 });
        assert_eq!(tree.lookup(&[1, 2, 3, 4, 5, 6, 0, 9]), Found { pages: vec![10, 21], tokens: 7 });
        assert_eq!(
            tree.lookup(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9]),
            Found { pages: vec![10, 11, 12], tokens: 9 }
        );
        assert_eq!(tree.lookup(&[2]), Found { pages: vec![], tokens: 0 });
    }

    #[test]
    fn a_page_that_was_begun_gives_way_to_the_fuller_one() {
        let mut tree = tree();
        tree.insert(&[1, 2], &[1], None);
        assert_eq!(tree.insert(&[1, 2, 3, 4, 5], &[2, 3], None), [1]);
        assert_eq!(tree.insert(&[1, 2], &[4], None), [4]);
        assert_eq!(tree.pages(), 2);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first_and_sessions_last() {
        let mut tree = tree();
        tree.insert(&[1, 1, 1, 1], &[1], Some(7));
        tree.insert(&[2, 2, 2, 2, 3], &[2, 3], None);
        tree.insert(&[4], &[4], None);
        tree.lookup(&[2, 2, 2, 2, 3]);
        assert_eq!(tree.evictable(|page| page != 2), 3);
        assert_eq!(tree.evict(1, |_| true, |_, _| ()), [4]);
        assert_eq!(tree.evict(9, |page| page != 2, |_, _| ()), [3, 1]);
        tree.insert(&[5], &[5], Some(7));
        tree.insert(&[6], &[6], Some(8));
        assert_eq!(
            tree.evict(2, |page| page != 2, |_, _| ()),
            [5, 6],
            "only the newest session is kept in preference"
        );
        assert_eq!(tree.clear(), [2]);
        assert_eq!(tree.pages(), 0);
    }

    #[test]
    fn a_session_that_is_forgotten_leaves_what_others_continue() {
        let (mut tree, mut texts) = (tree(), Vec::new());
        tree.insert(&[1, 1, 1, 1, 2, 2, 2, 2], &[1, 2], Some(7));
        tree.insert(&[1, 1, 1, 1, 3, 3, 3, 3, 4], &[1, 3, 4], Some(8));
        assert_eq!(tree.all_sessions(), BTreeSet::from([7, 8]));
        assert_eq!(
            tree.forget(8, |page| page != 3, |text| texts.push(text.to_vec())),
            [4],
            "3 is in use and 1 is where 7 begins"
        );
        assert_eq!((tree.latest(8), tree.all_sessions()), (None, BTreeSet::from([7])));
        assert_eq!(tree.forget(7, |_| true, |text| texts.push(text.to_vec())), [2]);
        assert_eq!(tree.forget(9, |_| true, |_| panic!("it has no text")), []);
        assert_eq!(texts, [vec![1, 1, 1, 1, 3, 3, 3, 3, 4], vec![1, 1, 1, 1, 2, 2, 2, 2]]);
        assert_eq!((tree.pages(), tree.lookup(&[1, 1, 1, 1, 3]).tokens), (2, 5));
    }

    #[test]
    fn a_text_is_shown_whole_and_once_before_it_is_given_up() {
        let mut tree = tree();
        tree.insert(&[1, 1, 1, 1, 2, 2, 2, 2, 3], &[1, 2, 3], None);
        tree.insert(&[1, 1, 1, 1, 5], &[9, 5], None);
        let texts = [(vec![1, 1, 1, 1, 5], vec![1, 5]), (vec![1, 1, 1, 1, 2, 2, 2, 2, 3], vec![1, 2, 3])];
        assert_eq!(tree.texts().collect::<Vec<_>>(), texts, "the newest first");
        let mut shown = Vec::new();
        let evicted = tree.evict(9, |_| true, |tokens, pages| shown.push((tokens.to_vec(), pages.to_vec())));
        assert_eq!(evicted, [3, 2, 5, 1]);
        shown.reverse();
        assert_eq!(shown, texts);
    }

    proptest! {
        /// Every page is in the tree or was given back, never both; what is found is really a prefix.
        #[test]
        fn no_page_is_lost(
            texts in proptest::collection::vec(proptest::collection::vec(0u32..3, 1..20), 1..40), want in 0usize..10,
        ) {
            let mut tree = tree();
            let mut held = BTreeMap::new();
            let mut next = 0;
            for text in &texts {
                let pages: Vec<u32> = text.chunks(4).map(|_| { next += 1; next }).collect();
                for (chunk, &page) in text.chunks(4).zip(&pages) {
                    held.insert(page, chunk.to_vec());
                }
                for page in tree.insert(text, &pages, Some(text.len() as u64 % 4)) {
                    prop_assert!(held.remove(&page).is_some());
                }
                prop_assert_eq!(tree.pages(), held.len());
                let found = tree.lookup(text);
                prop_assert_eq!(found.tokens, text.len());
                let stored: Vec<u32> = found.pages.iter().flat_map(|page| held[page].clone()).collect();
                prop_assert_eq!(&stored[..found.tokens], &text[..]);
                for page in tree.evict(want / 5, |page| page % 3 != 0, |_, _| ()) {
                    prop_assert!(held.remove(&page).is_some());
                }
                for page in tree.forget(want as u64, |page| page % 3 != 1, |_| ()) {
                    prop_assert!(held.remove(&page).is_some());
                }
            }
            for page in tree.clear() {
                prop_assert!(held.remove(&page).is_some());
            }
            prop_assert!(held.is_empty());
        }
    }
}
