//! The last failure of each name, and when a request may try again.

use crate::{Limits, ReplicaId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Names remembered; beyond that the oldest failure is forgotten.
const FAILURES_MAX: usize = 256;

pub(crate) struct Failure {
    pub(crate) id: ReplicaId,
    pub(crate) reason: String,
    pub(crate) retry_at: Duration,
    /// Failures in a row.
    count: u32,
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
        self.0.insert(name, Failure { id, reason, retry_at, count: before.saturating_add(1) });
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
