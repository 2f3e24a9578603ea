//! What was seen lately, in bounded memory.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;

/// A map that forgets what was not touched for long. It holds two generations: once the young one is full, it becomes
/// the old one, and what was old is dropped. So the last `capacity` entries are always there, and at most twice as
/// many.
#[derive(Debug, Clone)]
pub(crate) struct Recent<K, V> {
    capacity: usize,
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    /// Holds at least so many entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, young: HashMap::default(), old: HashMap::default() }
    }

    /// An entry, without touching it.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Adds or touches an entry.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.young.insert(key, value);
        if self.young.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_entries_are_there_and_old_ones_go() {
        let mut recent = Recent::new(4);
        (0..100).for_each(|key| recent.insert(key, key * 2));
        assert!((96..100).all(|key| recent.get(&key) == Some(&(key * 2))));
        assert!((0..90).all(|key| recent.get(&key).is_none()));
    }

    #[test]
    fn what_is_touched_stays() {
        let mut recent = Recent::new(4);
        for key in 1..100 {
            recent.insert(0, 7);
            recent.insert(key, key);
            assert_eq!(recent.get(&0), Some(&7));
        }
    }
}
