//! The state machine: what callers ask and report.

use crate::failures::{Failures, Shortage};
use crate::replica::{Phase, Replica};
use crate::waiters::{WaiterId, Waiters};
use crate::{
    Action, Cause, Entry, History, Limits, Outcome, RegistryError, ReplicaId, State, Unavailable, View,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Which models are loaded, which are to be, and who uses them.
///
/// `now` is the time since some fixed start and doesn't run backwards. The returned actions are to be
/// performed in any order; reports about replicas that are gone are ignored.
pub struct Registry {
    pub(crate) limits: Limits,
    /// Models that requests may have loaded, by name.
    pub(crate) catalogue: BTreeMap<String, Entry>,
    pub(crate) replicas: BTreeMap<ReplicaId, Replica>,
    /// Loads that have room promised and wait for their turn.
    pub(crate) queue: VecDeque<ReplicaId>,
    /// The load that runs, until it is reported loaded, failed or unloaded.
    pub(crate) loading: Option<ReplicaId>,
    pub(crate) failures: Failures,
    pub(crate) waiters: Waiters,
    pub(crate) history: History,
    /// Asked for since the last call returned.
    pub(crate) actions: Vec<Action>,
    pub(crate) next: u64,
    pub(crate) closing: bool,
}

impl Registry {
    /// A registry with nothing in it.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            catalogue: BTreeMap::new(),
            replicas: BTreeMap::new(),
            queue: VecDeque::new(),
            loading: None,
            failures: Failures::default(),
            waiters: Waiters::default(),
            history: History::default(),
            actions: Vec::new(),
            next: 0,
            closing: false,
        }
    }

    /// Declares a model that requests may have loaded, without loading it. Returns the entry it replaces.
    pub fn declare(&mut self, entry: Entry) -> Option<Entry> {
        self.catalogue.insert(entry.name.clone(), entry)
    }

    /// Takes a declaration back. What is loaded stays until it is unloaded or evicted.
    pub fn undeclare(&mut self, name: &str) -> Option<Entry> {
        if self.failures.get(name).is_some_and(|failure| failure.shortage.is_some()) {
            self.failures.forget(name);
        }
        self.catalogue.remove(name)
    }

    /// The declared models, by name.
    pub fn declared(&self) -> impl Iterator<Item = &Entry> {
        self.catalogue.values()
    }

    /// Starts the load of one more replica, beside those the name may have, and evicts idle models if it
    /// needs their room. One load runs at a time; others wait in order with their room reserved. The load
    /// goes on whatever becomes of the caller.
    ///
    /// # Errors
    /// [`RegistryError::NeverFits`], [`RegistryError::Crowded`] and [`RegistryError::NoRoomNow`] if there is
    /// no room; then nothing is evicted. [`RegistryError::ShuttingDown`] after [`Registry::shutdown`].
    pub fn load(&mut self, now: Duration, entry: Entry) -> Result<(ReplicaId, Vec<Action>), RegistryError> {
        let id = self.admit(now, entry, Vec::new())?;
        Ok((id, self.settle(now)))
    }

    /// Reports how much of a running load is done, 0 to 1. It never goes back.
    pub fn progress(&mut self, id: ReplicaId, share: f32) {
        if let Some(Replica { phase: Phase::Loading { progress, .. }, .. }) = self.replicas.get_mut(&id) {
            *progress = progress.max(share.clamp(0.0, 1.0));
        }
    }

    /// Reports that a load is done and the replica takes `bytes` of memory; a declaration with the same
    /// estimate takes that over. If it is more than was announced and more than there is room for, the
    /// replica is dropped again and counts as failed.
    pub fn loaded(&mut self, now: Duration, id: ReplicaId, bytes: u64) -> Vec<Action> {
        self.loading = self.loading.filter(|&loading| loading != id);
        if let Some(replica) = self.replicas.get_mut(&id)
            && let Phase::Loading { since, .. } = replica.phase
        {
            let estimate = std::mem::replace(&mut replica.entry.bytes, bytes);
            let name = replica.entry.name.clone();
            if let Some(entry) = self.catalogue.get_mut(&name).filter(|entry| entry.bytes == estimate) {
                entry.bytes = bytes;
            }
            let fits = self.promised() <= self.limits.bytes;
            self.history.ended(if fits { Outcome::Loaded } else { Outcome::Failed });
            let Some(replica) = self.replicas.get_mut(&id) else { return self.settle(now) };
            if fits {
                self.failures.forget(&name);
                let load_time = now.saturating_sub(since);
                replica.phase = Phase::Ready { since: now, load_time };
                self.history.took(&name, load_time);
            } else {
                let reason =
                    format!("it takes {bytes} bytes instead of {estimate}, and there is no room for more");
                self.failures.note(now, name, id, reason, &self.limits);
                replica.phase = Phase::Unloading;
                self.actions.push(Action::Unload(id));
            }
        }
        self.settle(now)
    }

    /// Reports that a load failed, or that a loaded replica broke. Its memory is free and its requests have
    /// ended.
    pub fn failed(&mut self, now: Duration, id: ReplicaId, reason: impl Into<String>) -> Vec<Action> {
        if self.replicas.get(&id).is_none_or(|replica| replica.phase == Phase::Queued) {
            return Vec::new();
        }
        self.loading = self.loading.filter(|&loading| loading != id);
        if let Some(replica) = self.replicas.remove(&id)
            && !replica.is_leaving()
        {
            if !replica.is_ready() {
                self.history.ended(Outcome::Failed);
            }
            self.failures.note(now, replica.entry.name, id, reason.into(), &self.limits);
        }
        self.failures.room_made(now);
        self.settle(now)
    }

    /// Reports that a replica has been dropped, as [`Action::Unload`] asked. Its memory is free.
    pub fn unloaded(&mut self, now: Duration, id: ReplicaId) -> Vec<Action> {
        if self.replicas.get(&id).is_some_and(|replica| replica.phase == Phase::Unloading) {
            self.loading = self.loading.filter(|&loading| loading != id);
            self.replicas.remove(&id);
            self.failures.room_made(now);
        }
        self.settle(now)
    }

    /// Takes a reference for a request, on the least busy ready replica of that name. Loads nothing.
    ///
    /// # Errors
    /// Why there is none.
    pub fn acquire(&mut self, now: Duration, name: &str) -> Result<ReplicaId, Unavailable> {
        let ready = self.replicas.iter_mut().filter(|(_, one)| one.is_ready() && one.entry.name == name);
        match ready.min_by_key(|(id, replica)| (replica.in_flight, **id)) {
            Some((&id, replica)) => {
                replica.in_flight += 1;
                replica.last_used = Some(now);
                Ok(id)
            }
            None => Err(self.why_unavailable(now, name)),
        }
    }

    /// [`Registry::acquire`], or else starts the load of a declared model. However many requests ask, one
    /// load starts. A model that failed is tried again only after a pause.
    pub fn ensure(&mut self, now: Duration, name: &str) -> (Result<ReplicaId, Unavailable>, Vec<Action>) {
        if let Ok(id) = self.acquire(now, name) {
            return (Ok(id), Vec::new());
        }
        match self.load_on_demand(now, name) {
            Ok(()) => {
                let actions = self.settle(now);
                (Err(self.why_unavailable(now, name)), actions)
            }
            Err(why) => (Err(why), Vec::new()),
        }
    }

    /// Gives a reference back.
    pub fn release(&mut self, now: Duration, id: ReplicaId) -> Vec<Action> {
        if let Some(replica) = self.replicas.get_mut(&id).filter(|replica| replica.in_flight > 0) {
            replica.in_flight -= 1;
            replica.last_used = Some(now);
            if replica.in_flight == 0 {
                if replica.phase == Phase::Draining {
                    self.drop_replica(now, id, Cause::Told);
                }
                self.failures.room_made(now);
            }
        }
        self.settle(now)
    }

    /// Registers a request that waits for a model. Until it takes a replica or gives up, the model is neither
    /// evicted nor ended by its time to live; if there is no room for it yet, it is loaded as soon as there
    /// is. Models are served in the order of their first waiter, but one that doesn't fit holds up none that
    /// does.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] for an unknown name, [`RegistryError::ShuttingDown`] after
    /// [`Registry::shutdown`].
    pub fn wait(&mut self, name: &str) -> Result<WaiterId, RegistryError> {
        if self.closing {
            return Err(RegistryError::ShuttingDown);
        }
        let known = self.catalogue.contains_key(name) || self.replicas_of(name).next().is_some();
        if known { Ok(self.waiters.join(name)) } else { Err(self.not_found(name)) }
    }

    /// [`Registry::ensure`] for a waiter; a success ends the wait. After an error the waiter waits on, and
    /// gives up unless [`Unavailable::worth_waiting`] holds.
    pub fn take(&mut self, now: Duration, waiter: WaiterId) -> (Result<ReplicaId, Unavailable>, Vec<Action>) {
        let Some(name) = self.waiters.name(waiter).map(str::to_owned) else {
            let why = if self.closing { RegistryError::ShuttingDown.into() } else { Unavailable::Cancelled };
            return (Err(why), Vec::new());
        };
        let (taken, actions) = self.ensure(now, &name);
        if taken.is_ok() {
            self.waiters.leave(waiter);
        }
        (taken, actions)
    }

    /// Ends a wait without a replica. A load that is in line goes on.
    pub fn give_up(&mut self, now: Duration, waiter: WaiterId) -> Vec<Action> {
        if self.waiters.leave(waiter) { self.settle(now) } else { Vec::new() }
    }

    /// Unloads all replicas of a name: no new references, and each is dropped when its last reference is
    /// given back. Loads that wait are cancelled, a running one is stopped, its waiters get
    /// [`Unavailable::Cancelled`], and a failure is forgotten. A declared model is loaded again when a
    /// request asks for it afterwards.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] for an unknown name.
    pub fn unload(&mut self, now: Duration, name: &str) -> Result<Vec<Action>, RegistryError> {
        let ids: Vec<ReplicaId> = self.replicas_of(name).map(|(id, _)| id).collect();
        let failed = self.failures.forget(name);
        if ids.is_empty() && !failed && !self.catalogue.contains_key(name) {
            return Err(self.not_found(name));
        }
        self.waiters.dismiss(name);
        for id in ids {
            self.drop_replica(now, id, Cause::Told);
        }
        Ok(self.settle(now))
    }

    /// Unloads one replica, as [`Registry::unload`] does with all of a name. The model stays known: if this was
    /// the last replica of a declared one, the next request loads it again.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] if there is no such replica any more.
    pub fn unload_replica(&mut self, now: Duration, id: ReplicaId) -> Result<Vec<Action>, RegistryError> {
        if !self.replicas.contains_key(&id) {
            return Err(self.not_found(&id.to_string()));
        }
        self.drop_replica(now, id, Cause::Told);
        Ok(self.settle(now))
    }

    /// Forgets the failure of a name, so that the next request may load it at once. Returns whether there was
    /// one.
    pub fn forget(&mut self, name: &str) -> bool {
        self.failures.forget(name)
    }

    /// Notes that a model can't be loaded, for a cause from before its load. It counts as a failed load.
    pub fn note_failure(&mut self, now: Duration, name: &str, reason: impl Into<String>) {
        let id = self.next_id();
        self.history.ended(Outcome::Failed);
        self.failures.note(now, name.to_owned(), id, reason.into(), &self.limits);
    }

    /// Bytes that all replicas together may take.
    pub fn limit(&self) -> u64 {
        self.limits.bytes
    }

    /// Bytes of the limit that no model has or is promised.
    pub fn free_bytes(&self) -> u64 {
        self.limits.bytes.saturating_sub(self.promised())
    }

    /// Requests that wait for a model.
    pub fn waiting(&self, name: &str) -> usize {
        self.waiters.count(name)
    }

    /// Does what has become due: times to live, minimum residencies and retries that somebody waits for.
    /// Every report does this too.
    pub fn tick(&mut self, now: Duration) -> Vec<Action> {
        self.settle(now)
    }

    /// When [`Registry::tick`] should be called next, if nothing else happens till then.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let unwaited = |replica: &&Replica| !self.waiters.any(&replica.entry.name);
        let expiries =
            self.replicas.values().filter(unwaited).filter_map(|replica| replica.expires(&self.limits));
        let retries =
            self.wanted().filter_map(|name| self.failures.get(name)).map(|failure| failure.retry_at);
        let anybody = self.wanted().next().is_some();
        let evictable = self.replicas.values().filter(|one| anybody && !one.entry.pinned);
        let settled = evictable.filter_map(|replica| replica.settled_at(&self.limits));
        let later = retries.chain(settled).filter(|&at| at > now);
        expiries.chain(later).filter(|&at| at < Duration::MAX).min()
    }

    /// Unloads everything for good. It is over when [`Registry::list`] is empty.
    pub fn shutdown(&mut self, now: Duration) -> Vec<Action> {
        self.closing = true;
        self.waiters.dismiss_all();
        self.failures.forget_all();
        let ids: Vec<ReplicaId> = self.replicas.keys().copied().collect();
        for id in ids {
            self.drop_replica(now, id, Cause::Told);
        }
        self.settle(now)
    }

    /// What loads came to and why replicas left.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// One replica that isn't gone or failed.
    pub fn replica(&self, id: ReplicaId) -> Option<View<'_>> {
        self.replicas.get(&id).map(|replica| replica.view(id, &self.limits))
    }

    /// All replicas by id, then the names whose last load failed and that nothing loads again yet.
    pub fn list(&self) -> impl Iterator<Item = View<'_>> {
        let replicas = self.replicas.iter().map(|(&id, replica)| replica.view(id, &self.limits));
        let failures = self
            .failures
            .iter()
            // What merely found no room isn't broken.
            .filter(|(_, failure)| failure.shortage.is_none())
            .filter(|(name, failure)| !self.is_coming(name) && !self.replicas.contains_key(&failure.id));
        replicas.chain(failures.map(|(name, failure)| View {
            id: failure.id,
            name,
            state: State::Failed { reason: failure.reason.clone() },
            in_flight: 0,
            bytes: 0,
            last_used: None,
            expires: None,
            pinned: false,
            priority: 0,
        }))
    }

    pub(crate) fn replicas_of(&self, name: &str) -> impl Iterator<Item = (ReplicaId, &Replica)> {
        self.replicas.iter().filter(move |(_, one)| one.entry.name == name).map(|(&id, one)| (id, one))
    }

    pub(crate) fn is_coming(&self, name: &str) -> bool {
        self.replicas_of(name).any(|(_, replica)| replica.is_coming())
    }

    /// Names that requests wait for and that no replica bears or will bear, longest wait first.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &str> {
        let served = |name: &str| self.replicas_of(name).any(|(_, one)| one.is_ready() || one.is_coming());
        self.waiters.names().filter(move |name| !served(name))
    }

    /// Why no replica of this name takes a request now. A declared model whose pause after a failure is over
    /// has a retry in zero seconds.
    pub(crate) fn why_unavailable(&self, now: Duration, name: &str) -> Unavailable {
        let owned = name.to_owned();
        let coming = self.replicas_of(name).filter_map(|(_, replica)| match replica.phase {
            Phase::Queued => Some(0.0),
            Phase::Loading { progress, .. } => Some(progress),
            _ => None,
        });
        if self.closing {
            RegistryError::ShuttingDown.into()
        } else if let Some(progress) = coming.reduce(f32::max) {
            Unavailable::Loading { name: owned, progress }
        } else if self.replicas_of(name).any(|(_, replica)| replica.phase == Phase::Draining) {
            Unavailable::Draining { name: owned }
        } else if let Some((shortage, entry)) = self.shortage_of(name) {
            self.no_room_now(now, entry, shortage.need, shortage.available).into()
        } else if let Some(failure) = self.failures.get(name) {
            let retry_in = self.catalogue.get(name).map(|_| failure.retry_at.saturating_sub(now));
            Unavailable::Failed { name: owned, reason: failure.reason.clone(), retry_in }
        } else if self.catalogue.contains_key(name) {
            // One that is merely being dropped needs no wait: a new load comes after it.
            Unavailable::NotLoaded { name: owned }
        } else if self.replicas_of(name).next().is_some() {
            Unavailable::Draining { name: owned }
        } else {
            self.not_found(name).into()
        }
    }

    /// A declared model for which the last load found no room.
    pub(crate) fn shortage_of(&self, name: &str) -> Option<(Shortage, &Entry)> {
        self.failures.get(name)?.shortage.zip(self.catalogue.get(name))
    }

    fn not_found(&self, name: &str) -> RegistryError {
        let mut known: Vec<String> = self.catalogue.keys().cloned().collect();
        known.extend(self.replicas.values().map(|replica| replica.entry.name.clone()));
        known.sort_unstable();
        known.dedup();
        RegistryError::NotFound { name: name.to_owned(), known }
    }
}
