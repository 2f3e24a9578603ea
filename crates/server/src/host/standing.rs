//! How each model stands, as gateways are told.

use std::sync::Arc;
use std::time::Duration;

use lichen_contract::{Memory, ModelState, ModelStatus};
use lichen_generate::Stats;
use lichen_registry::{State, View};

use super::{Host, Models};
use crate::Model;

/// Before this share of a job is done, its pace says little.
const TELLING_SHARE: f32 = 0.02;

impl Host {
    /// Every model: loaded, on its way, failed, or merely known.
    pub(crate) fn statuses(&self) -> Vec<ModelStatus> {
        let now = self.now();
        let (mut statuses, loaded) = {
            let models = self.lock();
            (models.statuses(now), models.loaded.values().cloned().collect::<Vec<_>>())
        };
        // Outside the lock, which requests need.
        for status in &mut statuses {
            let id = status.id.clone();
            loaded.iter().filter(|model| model.id() == id).for_each(|model| look_into(status, model));
        }
        statuses
    }

    /// Whether a model takes requests, and how it stands if it doesn't.
    pub(crate) fn status(&self, name: &str) -> Option<ModelStatus> {
        let now = self.now();
        self.lock().statuses(now).into_iter().find(|status| status.id == name)
    }

    /// Memory for models.
    pub(crate) fn memory(&self) -> Memory {
        let models = self.lock();
        Memory { budget_bytes: models.registry.limit(), free_bytes: models.registry.free_bytes() }
    }
}

impl Models {
    fn statuses(&self, now: Duration) -> Vec<ModelStatus> {
        let mut statuses: Vec<ModelStatus> = Vec::new();
        for view in self.registry.list() {
            let status = self.of_replica(now, &view);
            match statuses.iter_mut().find(|known| known.id == status.id) {
                Some(known) => join(known, status),
                None => statuses.push(status),
            }
        }
        for (name, staging) in &self.staging {
            let eta_s = eta(now.saturating_sub(staging.since), staging.progress, None);
            let state = ModelState::Staging { progress: staging.progress, eta_s };
            let status = ModelStatus { id: name.clone(), state, ..ModelStatus::default() };
            match statuses.iter_mut().find(|known| known.id == *name) {
                Some(known) => join(known, status),
                None => statuses.push(status),
            }
        }
        for entry in self.registry.declared() {
            match statuses.iter_mut().find(|known| known.id == entry.name) {
                Some(known) if known.bytes == 0 => known.bytes = entry.bytes,
                Some(_) => {}
                None => statuses.push(ModelStatus {
                    id: entry.name.clone(),
                    bytes: entry.bytes,
                    pinned: entry.pinned,
                    priority: entry.priority,
                    ..ModelStatus::default()
                }),
            }
        }
        for status in &mut statuses {
            status.queued = count(self.registry.waiting(&status.id));
            status.load_s = self.registry.history().load_time(&status.id).map(seconds);
        }
        statuses
    }

    fn of_replica(&self, now: Duration, view: &View<'_>) -> ModelStatus {
        let state = match &view.state {
            State::Queued => ModelState::Loading { progress: 0.0, eta_s: None },
            State::Loading { since, progress } => {
                let usual = self.registry.history().load_time(view.name);
                let eta_s = eta(now.saturating_sub(*since), *progress, usual);
                ModelState::Loading { progress: *progress, eta_s }
            }
            State::Ready => ModelState::Ready,
            State::Draining | State::Unloading => ModelState::Draining,
            State::Failed { reason } => ModelState::Failed { cause: reason.clone() },
        };
        let idle =
            view.last_used.map(|at| if view.in_flight > 0 { 0 } else { seconds(now.saturating_sub(at)) });
        ModelStatus {
            id: view.name.to_owned(),
            state,
            in_flight: count(view.in_flight),
            bytes: view.bytes,
            pinned: view.pinned,
            priority: view.priority,
            idle_s: idle,
            ..ModelStatus::default()
        }
    }
}

/// Adds another replica of the same name: the better state counts.
fn join(known: &mut ModelStatus, other: ModelStatus) {
    if rank(&other.state) < rank(&known.state) {
        known.state = other.state;
    }
    known.in_flight += other.in_flight;
    known.bytes = known.bytes.saturating_add(other.bytes);
    known.pinned |= other.pinned;
    known.priority = known.priority.max(other.priority);
    known.idle_s = [known.idle_s, other.idle_s].into_iter().flatten().min();
}

fn rank(state: &ModelState) -> u8 {
    match state {
        ModelState::Ready => 0,
        ModelState::Loading { .. } => 1,
        ModelState::Staging { .. } => 2,
        ModelState::Draining => 3,
        ModelState::Failed { .. } => 4,
        ModelState::Absent | ModelState::Unknown => 5,
    }
}

/// Adds what only the engine of a replica knows. Its counts are of another moment than the registry's.
fn look_into(status: &mut ModelStatus, model: &Arc<Model>) {
    let stats = model.generate().stats();
    let waiting = count(stats.waiting + stats.paused).min(status.in_flight);
    status.in_flight -= waiting;
    status.queued += waiting;
    status.kv_use = status.kv_use.max(kv_use(&stats));
    let cap = u32::try_from(model.generate().context_cap()).unwrap_or(u32::MAX);
    status.context_cap = Some(status.context_cap.map_or(cap, |known| known.min(cap)));
}

/// The share of KV pages that requests hold.
fn kv_use(stats: &Stats) -> f32 {
    let held = stats.pages.saturating_sub(stats.cached_pages);
    if stats.page_limit == 0 { 0.0 } else { (held as f32 / stats.page_limit as f32).min(1.0) }
}

/// Seconds that a job will still take: by its pace, or else by how long it took the last time.
fn eta(spent: Duration, progress: f32, usual: Option<Duration>) -> Option<u32> {
    if progress >= TELLING_SHARE {
        let left = spent.as_secs_f32() * (1.0 - progress.min(1.0)) / progress;
        return Some(left.ceil() as u32);
    }
    usual.map(|usual| seconds(usual.saturating_sub(spent)))
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_by_pace_or_by_the_last_time_or_not_at_all() {
        let spent = Duration::from_secs(30);
        assert_eq!(eta(spent, 0.75, None), Some(10));
        assert_eq!(eta(spent, 1.0, None), Some(0));
        assert_eq!(eta(spent, 0.0, Some(Duration::from_secs(40))), Some(10));
        assert_eq!(eta(spent, 0.0, Some(Duration::from_secs(10))), Some(0));
        assert_eq!(eta(spent, 0.0, None), None);
    }

    #[test]
    fn the_readiest_replica_speaks_for_a_name_and_the_rest_adds_up() {
        let status = |state, in_flight, idle_s| ModelStatus {
            id: "m".into(),
            state,
            in_flight,
            bytes: 5,
            idle_s,
            ..ModelStatus::default()
        };
        let mut known = status(ModelState::Draining, 1, Some(7));
        join(&mut known, status(ModelState::Ready, 2, None));
        assert_eq!(known, ModelStatus { bytes: 10, ..status(ModelState::Ready, 3, Some(7)) });
    }
}
