//! The last failure of each name, and when a request may try again.

use crate::{Limits, ReplicaId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Names remembered; beyond that the oldest failure is forgotten.
const FAILURES_MAX: usize = 256;
/// How long after a load found no room the next one may be tried, if nothing is known to have changed.
const SHORTAGE_RETRY: Duration = Duration::from_secs(1);

pub(crate) struct Failure {
    pub(crate) id: ReplicaId,
    pub(crate) reason: String,
    pub(crate) retry_at: Duration,
    /// What there was no room for, if it failed for that alone.
    pub(crate) shortage: Option<Shortage>,
    /// Failures in a row.
    count: u32,
}

/// Bytes that a load needed and those that it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) need: u64,
    pub(crate) available: u64,
}

#[derive(Default)]
pub(crate) struct Failures(BTreeMap<String, Failure>);

impl Failures {
    /// Notes a failure; each further one in a row doubles the pause.
    pub(crate) fn note(
        &mut self,
        now: Duration,
        name: String,
        id: ReplicaId,
        reason: String,
        limits: &Limits,
    ) {
        let before = self.0.get(&name).map_or(0, |failure| failure.count);
        let pause = limits.retry_first.saturating_mul(2u32.saturating_pow(before)).min(limits.retry_max);
        let retry_at = now.saturating_add(pause);
        let count = before.saturating_add(1);
        self.insert(name, Failure { id, reason, retry_at, shortage: None, count });
    }

    /// Notes that there was no room. The next try is soon, and sooner if something makes room.
    pub(crate) fn note_shortage(&mut self, now: Duration, name: String, id: ReplicaId, shortage: Shortage) {
        let retry_at = now.saturating_add(SHORTAGE_RETRY);
        let (shortage, reason) = (Some(shortage), String::new());
        self.insert(name, Failure { id, reason, retry_at, shortage, count: 0 });
    }

    /// Room has come free: what found none may try again at once.
    pub(crate) fn room_made(&mut self, now: Duration) {
        for failure in self.0.values_mut().filter(|failure| failure.shortage.is_some()) {
            failure.retry_at = failure.retry_at.min(now);
        }
    }

    fn insert(&mut self, name: String, failure: Failure) {
        self.0.insert(name, failure);
        if self.0.len() > FAILURES_MAX
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, failure)| failure.id).map(|(name, _)| name.clone())
        {
            self.0.remove(&oldest);
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Failure> {
        self.0.get(name)
    }

    /// Whether there was one.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Failure)> {
        self.0.iter().map(|(name, failure)| (name.as_str(), failure))
    }
}
