//! Who gets room: admission of loads, the accounting behind it, and the order in which loads run.

use crate::eviction::{Candidate, choose};
use crate::replica::{Phase, Replica};
use crate::{Action, Cause, Departure, Entry, Outcome, Registry, RegistryError, ReplicaId, Unavailable};
use std::time::Duration;

impl Registry {
    /// Bytes that count against the limit once everything on its way out is gone.
    pub(crate) fn promised(&self) -> u64 {
        self.bytes_where(|replica| replica.phase != Phase::Unloading)
    }

    /// Bytes in memory: of everything whose load has begun and whose drop isn't reported.
    fn occupied(&self) -> u64 {
        self.bytes_where(|replica| replica.phase != Phase::Queued)
    }

    fn bytes_where(&self, counts: impl Fn(&Replica) -> bool) -> u64 {
        let counted = self.replicas.values().filter(|replica| counts(replica));
        counted.fold(0, |sum, replica| sum.saturating_add(replica.entry.bytes))
    }

    /// Promises room to one more replica, evicts for it what must go, and puts its load in line.
    pub(crate) fn admit(
        &mut self,
        now: Duration,
        entry: Entry,
        evict: Vec<String>,
    ) -> Result<ReplicaId, RegistryError> {
        if self.closing {
            return Err(RegistryError::ShuttingDown);
        }
        for victim in self.victims(now, &entry, &evict)? {
            self.drop_replica(now, victim, Cause::Room);
        }
        let id = self.next_id();
        self.queue.push_back(id);
        self.replicas.insert(id, Replica::queued(entry, evict));
        Ok(id)
    }

    pub(crate) fn next_id(&mut self) -> ReplicaId {
        self.next += 1;
        ReplicaId(self.next - 1)
    }

    /// Brings a model in that somebody asks to have, without a reference: it is left as it is if it is ready or on its
    /// way, and else its load starts, and it is declared. However often it is asked for, one load starts, also while
    /// an earlier replica is on its way out. Models named in `evict` go for it, the first ones first; without any, the
    /// cheapest. A model that failed is tried again only after a pause.
    ///
    /// # Errors
    /// Why it isn't ready, which is [`Unavailable::Loading`] once its load has started.
    pub fn bring(
        &mut self,
        now: Duration,
        entry: Entry,
        evict: Vec<String>,
    ) -> (Result<(), Unavailable>, Vec<Action>) {
        if let Some(standing) = self.standing(now, &entry.name) {
            return (standing, Vec::new());
        }
        if let Err(refused) = self.admit(now, entry.clone(), evict) {
            return (Err(refused.into()), Vec::new());
        }
        let name = entry.name.clone();
        self.catalogue.insert(name.clone(), entry);
        let actions = self.settle(now);
        (Err(self.why_unavailable(now, &name)), actions)
    }

    /// What [`Registry::bring`] says of a model for which it starts no load: ready, on its way, or failed too lately.
    pub fn standing(&self, now: Duration, name: &str) -> Option<Result<(), Unavailable>> {
        if self.replicas_of(name).any(|(_, replica)| replica.is_ready()) {
            return Some(Ok(()));
        }
        if self.closing || self.is_coming(name) {
            return Some(Err(self.why_unavailable(now, name)));
        }
        let failure = self.failures.get(name).filter(|failure| failure.retry_at > now)?;
        let why = match self.shortage_of(name) {
            Some((shortage, entry)) => self.no_room_now(now, entry, shortage.need, shortage.available).into(),
            None => Unavailable::Failed {
                name: name.to_owned(),
                reason: failure.reason.clone(),
                retry_in: Some(failure.retry_at - now),
            },
        };
        Some(Err(why))
    }

    /// Starts a load of a declared model that has no ready replica, because a request asks for it.
    pub(crate) fn load_on_demand(&mut self, now: Duration, name: &str) -> Result<(), Unavailable> {
        let why_not = self.why_unavailable(now, name);
        let due = match &why_not {
            Unavailable::NotLoaded { .. } => true,
            Unavailable::Failed { retry_in, .. } => *retry_in == Some(Duration::ZERO),
            Unavailable::Refused(RegistryError::NoRoomNow { .. }) => {
                self.failures.get(name).is_none_or(|failure| failure.retry_at <= now)
            }
            _ => false,
        };
        match self.catalogue.get(name).cloned().filter(|_| due) {
            Some(entry) => self.admit(now, entry, Vec::new()).map(|_| ()).map_err(Unavailable::from),
            None => Err(why_not),
        }
    }

    /// What must be evicted before this replica fits.
    fn victims(
        &self,
        now: Duration,
        entry: &Entry,
        evict: &[String],
    ) -> Result<Vec<ReplicaId>, RegistryError> {
        let (need, limit) = (entry.bytes, self.limits.bytes);
        if need > limit {
            return Err(RegistryError::NeverFits { name: entry.name.clone(), need, limit });
        }
        let room = limit.saturating_sub(self.promised());
        if need <= room {
            return Ok(Vec::new());
        }
        let candidates = self.candidates(now, entry, evict);
        choose(&candidates, need - room, evict).ok_or_else(|| {
            let evictable = candidates.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes));
            self.shortage(now, entry, room.saturating_add(evictable))
        })
    }

    /// Replicas that may be evicted for a model: of those named if any are, none of a higher class. Its own replicas
    /// are none of them: a further replica is asked for beside them.
    pub(crate) fn candidates(&self, now: Duration, newcomer: &Entry, named: &[String]) -> Vec<Candidate> {
        let may_go = |entry: &Entry| {
            let meant = named.is_empty() || named.contains(&entry.name);
            meant && entry.name != newcomer.name && entry.priority <= newcomer.priority
        };
        let mut candidates = Vec::new();
        for (&id, replica) in &self.replicas {
            let Phase::Ready { load_time, .. } = replica.phase else { continue };
            if may_go(&replica.entry) && self.evictable(now, replica) {
                let idle = now.saturating_sub(replica.idle_since().unwrap_or(now));
                let extra = self.would_be_missed_less(now, id, replica);
                let (name, bytes) = (replica.entry.name.clone(), replica.entry.bytes);
                candidates.push(Candidate { id, name, bytes, load_time, idle, extra });
            }
        }
        candidates
    }

    fn evictable(&self, now: Duration, replica: &Replica) -> bool {
        let settled = replica.settled_at(&self.limits).is_some_and(|at| at <= now);
        let served = replica.is_ready() && replica.last_used.is_some();
        (settled || served)
            && replica.in_flight == 0
            && !replica.entry.pinned
            && !self.waiters.any(&replica.entry.name)
    }

    /// Whether another ready replica of the same name is to be preferred: one that can't be evicted, or was
    /// used later.
    pub(crate) fn would_be_missed_less(&self, now: Duration, id: ReplicaId, replica: &Replica) -> bool {
        let rank = |id: ReplicaId, replica: &Replica| {
            let idle = now.saturating_sub(replica.idle_since().unwrap_or(now));
            (self.evictable(now, replica), idle, id)
        };
        self.replicas_of(&replica.entry.name)
            .filter(|(_, other)| other.is_ready())
            .any(|(other_id, other)| rank(other_id, other) < rank(id, replica))
    }

    /// Why there is no room, by model.
    fn shortage(&self, now: Duration, entry: &Entry, available: u64) -> RegistryError {
        let (name, need) = (entry.name.clone(), entry.bytes);
        let stays = |replica: &Replica| stays_for(replica, entry);
        let left = self.limits.bytes.saturating_sub(self.bytes_where(stays));
        if need > left {
            return RegistryError::Crowded { name, need, left, kept: self.names_where(stays) };
        }
        self.no_room_now(now, entry, need, available)
    }

    /// Too little room, and who might make some later.
    pub(crate) fn no_room_now(
        &self,
        now: Duration,
        entry: &Entry,
        need: u64,
        available: u64,
    ) -> RegistryError {
        let goes = |replica: &Replica| {
            let stays = replica.phase == Phase::Unloading || stays_for(replica, entry);
            !stays && !self.evictable(now, replica)
        };
        let idle =
            |replica: &Replica| replica.idle_since().is_some() && !self.waiters.any(&replica.entry.name);
        let busy = self.names_where(|replica| goes(replica) && !idle(replica));
        let recent = self.names_where(|replica| goes(replica) && idle(replica));
        RegistryError::NoRoomNow { name: entry.name.clone(), need, available, busy, recent }
    }

    fn names_where(&self, holds: impl Fn(&Replica) -> bool) -> Vec<String> {
        let mut names: Vec<String> =
            self.replicas.values().filter(|one| holds(one)).map(|one| one.entry.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Does whatever has become due or possible, and hands over the actions gathered so far.
    pub(crate) fn settle(&mut self, now: Duration) -> Vec<Action> {
        self.expire(now);
        let wanted: Vec<String> = self.wanted().map(str::to_owned).collect();
        for name in wanted {
            // A model that can't be loaded yet holds up no other; its waiters hear why when they ask.
            _ = self.load_on_demand(now, &name);
        }
        self.start_next_load(now);
        std::mem::take(&mut self.actions)
    }

    fn expire(&mut self, now: Duration) {
        let over = |replica: &Replica| {
            replica.expires(&self.limits).is_some_and(|end| end <= now)
                && !self.waiters.any(&replica.entry.name)
        };
        let expired: Vec<ReplicaId> =
            self.replicas.iter().filter(|(_, replica)| over(replica)).map(|(&id, _)| id).collect();
        for id in expired {
            self.drop_replica(now, id, Cause::TimeToLive);
        }
    }

    /// One load runs at a time, in the order they were asked for, each once its room is really free.
    fn start_next_load(&mut self, now: Duration) {
        if self.loading.is_some() {
            return;
        }
        let occupied = self.occupied();
        let dropping = self.replicas.values().any(|replica| replica.phase == Phase::Unloading);
        let Some(&id) = self.queue.front() else { return };
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        let waits = replica.after_drops && dropping;
        if !waits && occupied.saturating_add(replica.entry.bytes) <= self.limits.bytes {
            replica.after_drops = false;
            replica.phase = Phase::Loading { since: now, progress: 0.0 };
            self.queue.pop_front();
            self.loading = Some(id);
            self.actions.push(Action::Load(id));
        }
    }

    /// Takes a replica out: at once if its load hasn't begun, else by asking for its drop.
    pub(crate) fn drop_replica(&mut self, now: Duration, id: ReplicaId, cause: Cause) {
        let Some(replica) = self.replicas.get_mut(&id) else { return };
        if replica.is_ready() {
            let Entry { name, bytes, .. } = replica.entry.clone();
            self.history.departed(Departure { at: now, id, name, bytes, cause });
        } else if matches!(replica.phase, Phase::Loading { .. }) {
            self.history.ended(Outcome::Stopped);
        }
        match replica.phase {
            Phase::Unloading => {}
            Phase::Queued => {
                self.queue.retain(|&queued| queued != id);
                self.replicas.remove(&id);
            }
            _ if replica.in_flight > 0 => replica.phase = Phase::Draining,
            _ => {
                replica.phase = Phase::Unloading;
                self.actions.push(Action::Unload(id));
            }
        }
    }
}

/// Whether a replica doesn't give way to a model, whatever becomes of its requests.
fn stays_for(replica: &Replica, newcomer: &Entry) -> bool {
    let Entry { name, pinned, priority, .. } = &replica.entry;
    !replica.is_leaving() && (*pinned || *name == newcomer.name || *priority > newcomer.priority)
}
