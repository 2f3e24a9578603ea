//! Equal shares per key: a counter of the service that each key has had (virtual token counter, Sheng et al. 2024).

use std::collections::BTreeMap;

/// A generated token costs about this many prompt tokens.
const GENERATED: u64 = 2;

#[derive(Debug, Default)]
pub(crate) struct Service {
    served: BTreeMap<u64, u64>,
}

impl Service {
    /// A key that had nothing to do comes in at the level of the least served of `active`: idling saves up nothing.
    pub(crate) fn arrive(&mut self, key: u64, active: impl Iterator<Item = u64>) {
        let least = active.filter_map(|other| self.served.get(&other)).min().copied();
        if let Some(least) = least {
            let served = self.served.entry(key).or_default();
            *served = (*served).max(least);
        }
    }

    pub(crate) fn serve(&mut self, key: u64, prompt: usize, generated: usize) {
        *self.served.entry(key).or_default() += prompt as u64 + GENERATED * generated as u64;
    }

    pub(crate) fn of(&self, key: u64) -> u64 {
        self.served.get(&key).copied().unwrap_or(0)
    }

    /// Forgets all keys but the active ones, once there are many.
    pub(crate) fn trim(&mut self, is_active: impl Fn(u64) -> bool) {
        if self.served.len() > 4096 {
            self.served.retain(|&key, _| is_active(key));
        }
    }
}
