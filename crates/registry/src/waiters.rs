//! Requests that wait for a model, by name in order of arrival.

use std::collections::BTreeSet;

/// One request that waits for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaiterId(u64);

struct Line {
    name: String,
    /// Never empty.
    waiters: BTreeSet<WaiterId>,
}

#[derive(Default)]
pub(crate) struct Waiters {
    next: u64,
    lines: Vec<Line>,
}

impl Waiters {
    pub(crate) fn join(&mut self, name: &str) -> WaiterId {
        let id = WaiterId(self.next);
        self.next += 1;
        match self.lines.iter_mut().find(|line| line.name == name) {
            Some(line) => _ = line.waiters.insert(id),
            None => self.lines.push(Line { name: name.to_owned(), waiters: BTreeSet::from([id]) }),
        }
        id
    }

    /// Whether there was such a waiter.
    pub(crate) fn leave(&mut self, id: WaiterId) -> bool {
        let found = self.lines.iter_mut().any(|line| line.waiters.remove(&id));
        self.lines.retain(|line| !line.waiters.is_empty());
        found
    }

    pub(crate) fn dismiss(&mut self, name: &str) {
        self.lines.retain(|line| line.name != name);
    }

    pub(crate) fn dismiss_all(&mut self) {
        self.lines.clear();
    }

    /// What this waiter waits for.
    pub(crate) fn name(&self, id: WaiterId) -> Option<&str> {
        self.lines.iter().find(|line| line.waiters.contains(&id)).map(|line| line.name.as_str())
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.lines.iter().find(|line| line.name == name).map_or(0, |line| line.waiters.len())
    }

    pub(crate) fn any(&self, name: &str) -> bool {
        self.lines.iter().any(|line| line.name == name)
    }

    /// Names waited for, longest first.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.name.as_str())
    }
}
