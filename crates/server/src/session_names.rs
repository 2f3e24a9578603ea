//! What clients call the sessions that engines know by number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sessions::number;

/// Most sessions whose names are known; the least recently used go first.
const MOST: usize = 4096;
/// Longer names aren't remembered, in bytes.
const LONGEST: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SessionNames(Mutex<HashMap<u64, Named>>);

#[derive(Debug)]
struct Named {
    key: u64,
    name: String,
    used: Instant,
}

impl SessionNames {
    /// Takes note of a request for a session.
    pub(crate) fn note(&self, key: u64, name: &str) {
        if name.len() > LONGEST {
            return;
        }
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(number(key, name), Named { key, name: name.to_owned(), used: Instant::now() });
        if names.len() > MOST
            && let Some(oldest) = names.iter().min_by_key(|(_, named)| named.used).map(|(&number, _)| number)
        {
            names.remove(&oldest);
        }
    }

    pub(crate) fn forget(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// How long ago the last request for a session came, and its name if it is one of this asker.
    pub(crate) fn get(&self, key: u64, number: u64) -> Option<(Duration, Option<String>)> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let named = names.get(&number)?;
        Some((named.used.elapsed(), (named.key == key).then(|| named.name.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_for_those_who_gave_them_and_are_not_kept_without_bound() {
        let names = SessionNames::default();
        names.note(1, "first");
        names.note(1, &"x".repeat(LONGEST + 1));
        let known = names.get(1, number(1, "first")).unwrap();
        assert_eq!(known.1.as_deref(), Some("first"));
        assert_eq!(names.get(2, number(1, "first")).unwrap().1, None, "another asker");
        assert!(names.get(1, number(1, &"x".repeat(LONGEST + 1))).is_none());
        (0..MOST).for_each(|index| names.note(1, &format!("{index}")));
        assert!(names.get(1, number(1, "first")).is_none(), "the oldest goes");
        names.forget(number(1, "7"));
        assert!(names.get(1, number(1, "7")).is_none() && names.get(1, number(1, "8")).is_some());
    }
}
