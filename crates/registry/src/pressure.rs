//! Short memory: which idle replicas give way to it, and loads that find less room than was thought.

use crate::eviction::choose;
use crate::failures::Shortage;
use crate::replica::{Phase, Replica};
use crate::{Action, Cause, Outcome, Registry, RegistryError, ReplicaId};
use std::time::Duration;

impl Registry {
    /// Bytes that [`Registry::relieve`] could free now.
    pub fn idle_bytes(&self, now: Duration) -> u64 {
        self.giving_way(now).into_iter().fold(0, |sum, id| sum.saturating_add(self.replicas[&id].entry.bytes))
    }

    /// Unloads idle replicas until `bytes` are freed, or all of them: first those of models that keep another
    /// replica, then the least recently used. None goes that is pinned, in use, waited for or has been idle for
    /// less than [`crate::Limits::pressure_idle`], and no last one of a name that isn't declared, since no
    /// request would bring it back. Returns how many bytes will be free.
    pub fn relieve(&mut self, now: Duration, bytes: u64) -> (u64, Vec<Action>) {
        let mut freed = 0u64;
        for id in self.giving_way(now) {
            if freed >= bytes {
                break;
            }
            freed = freed.saturating_add(self.replicas[&id].entry.bytes);
            self.drop_replica(now, id, Cause::Pressure);
        }
        (freed, self.settle(now))
    }

    /// Most bytes that a load may come to: its own, and those that nobody has.
    pub fn room(&self, id: ReplicaId) -> u64 {
        let own = self.replicas.get(&id).map_or(0, |replica| replica.entry.bytes);
        own.saturating_add(self.limits.bytes.saturating_sub(self.promised()))
    }

    /// Reports that a load found `available` bytes instead of the `need` that it has, because memory is used
    /// otherwise. Idle models are evicted for the rest, and another load is asked for once they are gone, under
    /// the returned name. If they aren't enough, the load has failed, and is tried again for whoever waits as
    /// soon as something changes.
    pub fn crowded(
        &mut self,
        now: Duration,
        id: ReplicaId,
        need: u64,
        available: u64,
    ) -> (Option<ReplicaId>, Vec<Action>) {
        let loads = |replica: &&Replica| matches!(replica.phase, Phase::Loading { .. });
        let Some(replica) = self.replicas.get(&id).filter(loads) else {
            return (None, self.failed(now, id, ""));
        };
        let (entry, evict) = (replica.entry.clone(), replica.evict.clone());
        if need > self.limits.bytes {
            let limit = self.limits.bytes;
            let reason = RegistryError::NeverFits { name: entry.name, need, limit }.to_string();
            return (None, self.failed(now, id, reason));
        }
        self.loading = self.loading.filter(|&loading| loading != id);
        self.replicas.remove(&id);
        // Where memory is so short that nothing is loaded, one model less may be what helps.
        let short = need.saturating_sub(available).max(1);
        let Some(victims) = choose(&self.candidates(now, &entry, &evict), short, &evict) else {
            self.history.ended(Outcome::Crowded);
            if self.catalogue.contains_key(&entry.name) {
                self.failures.note_shortage(now, entry.name, id, Shortage { need, available });
            }
            return (None, self.settle(now));
        };
        for victim in victims {
            self.drop_replica(now, victim, Cause::Room);
        }
        let again = self.next_id();
        self.replicas.insert(again, Replica { after_drops: true, ..Replica::queued(entry, evict) });
        self.queue.push_front(again);
        (Some(again), self.settle(now))
    }

    /// Replicas that short memory may end, in the order in which they go.
    fn giving_way(&self, now: Duration) -> Vec<ReplicaId> {
        let idle = |replica: &Replica| {
            let until = replica.idle_since().and_then(|since| since.checked_add(self.limits.pressure_idle));
            until.is_some_and(|at| at <= now)
                && !replica.entry.pinned
                && !self.waiters.any(&replica.entry.name)
        };
        let mut idle: Vec<(bool, Option<Duration>, ReplicaId)> = self
            .replicas
            .iter()
            .filter(|(_, replica)| idle(replica))
            .map(|(&id, replica)| (!self.would_be_missed_less(now, id, replica), replica.idle_since(), id))
            .filter(|(last, _, id)| !last || self.catalogue.contains_key(&self.replicas[id].entry.name))
            .collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, _, id)| id).collect()
    }
}
