//! Changes of models' states, for whoever reports them from a thread of their own.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Counts changes of models' states. Clones share the count.
#[derive(Clone, Default)]
pub struct Changes(Arc<(Mutex<u64>, Condvar)>);

impl Changes {
    /// Counts one more change and wakes whoever waits for it.
    pub fn note(&self) {
        let (count, noted) = &*self.0;
        // A number is changed as a whole.
        *count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        noted.notify_all();
    }

    /// Waits until the count is another one than `seen`, but no longer than `most`. Returns the count. Blocks.
    pub fn wait(&self, seen: u64, most: Duration) -> u64 {
        let (count, noted) = &*self.0;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = noted.wait_timeout_while(count, most, |count| *count == seen);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_came_before_the_wait_is_not_missed() {
        let changes = Changes::default();
        changes.note();
        assert_eq!(changes.wait(0, Duration::MAX), 1);
        assert_eq!(changes.wait(1, Duration::ZERO), 1);
    }

    #[test]
    fn a_change_ends_the_wait_of_everybody() {
        let changes = Changes::default();
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3).map(|_| scope.spawn(|| changes.wait(0, Duration::MAX))).collect();
            changes.note();
            waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1));
        });
    }
}
