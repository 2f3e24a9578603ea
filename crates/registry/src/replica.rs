//! One replica and the phase it is in.

use crate::{Entry, Limits, ReplicaId, State, View};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Phase {
    Queued,
    Loading { since: Duration, progress: f32 },
    Ready { since: Duration, load_time: Duration },
    Draining,
    Unloading,
}

pub(crate) struct Replica {
    pub(crate) entry: Entry,
    pub(crate) phase: Phase,
    pub(crate) in_flight: usize,
    pub(crate) last_used: Option<Duration>,
    /// It found no room and loads again once what had to go for it is gone.
    pub(crate) after_drops: bool,
    /// The only models that may be evicted for it, the first ones first; empty for all.
    pub(crate) evict: Vec<String>,
}

impl Replica {
    pub(crate) fn queued(entry: Entry, evict: Vec<String>) -> Self {
        Self { entry, phase: Phase::Queued, in_flight: 0, last_used: None, after_drops: false, evict }
    }

    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready { .. })
    }

    /// Queued or loading: it will take requests.
    pub(crate) fn is_coming(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Loading { .. })
    }

    /// On its way out, by drain or by drop.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Draining | Phase::Unloading)
    }

    /// Since when no request has used it; `None` if one does, or if it is not ready.
    pub(crate) fn idle_since(&self) -> Option<Duration> {
        match self.phase {
            Phase::Ready { since, .. } if self.in_flight == 0 => Some(self.last_used.unwrap_or(since)),
            _ => None,
        }
    }

    /// When the minimum residency of a ready replica is over.
    pub(crate) fn settled_at(&self, limits: &Limits) -> Option<Duration> {
        match self.phase {
            Phase::Ready { since, .. } => Some(since.saturating_add(limits.min_residency)),
            _ => None,
        }
    }

    /// When its time to live runs out. A replica that nobody has used yet stays at least the minimum
    /// residency, so that a short time to live does not end it before its first request.
    pub(crate) fn expires(&self, limits: &Limits) -> Option<Duration> {
        let end = self.idle_since()?.checked_add(self.entry.ttl.filter(|_| !self.entry.pinned)?)?;
        match self.last_used {
            Some(_) => Some(end),
            None => self.settled_at(limits).map(|settled| end.max(settled)),
        }
    }

    pub(crate) fn view(&self, id: ReplicaId, limits: &Limits) -> View<'_> {
        let state = match self.phase {
            Phase::Queued => State::Queued,
            Phase::Loading { since, progress } => State::Loading { since, progress },
            Phase::Ready { .. } => State::Ready,
            Phase::Draining => State::Draining,
            Phase::Unloading => State::Unloading,
        };
        View {
            id,
            name: &self.entry.name,
            state,
            in_flight: self.in_flight,
            bytes: self.entry.bytes,
            last_used: self.last_used,
            expires: self.expires(limits),
            pinned: self.entry.pinned,
            priority: self.entry.priority,
        }
    }
}
