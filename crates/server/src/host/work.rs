//! What the registry decides is done here: loads and drops.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lichen_registry::{Action, ReplicaId};

use super::{Host, Models};
use crate::Model;
use crate::order::{LoadError, LoadOrder, Loader, Progress};

/// Time between two looks at who else has a model that is to go.
const GLANCE: Duration = Duration::from_millis(1);

/// An action with what it needs.
pub(super) enum Work {
    Drop(ReplicaId, Option<Arc<Model>>),
    Load(ReplicaId, Option<LoadOrder>),
}

impl Host {
    /// Changes the registry and performs what that brings.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Models, Duration) -> (T, Vec<Action>)) -> T {
        let (result, work) = self.decide(change);
        work.into_iter().for_each(|work| self.perform(work));
        result
    }

    /// Changes the registry, and tells what that brings to do. Waiting requests are told only if it brings something:
    /// they come here too, and must not wake each other for nothing.
    pub(super) fn decide<T>(
        &self,
        change: impl FnOnce(&mut Models, Duration) -> (T, Vec<Action>),
    ) -> (T, Vec<Work>) {
        let mut models = self.lock();
        let (result, actions) = change(&mut models, self.now());
        if !actions.is_empty() {
            self.notify();
        }
        let work = actions.into_iter().filter_map(|action| models.work(action)).collect();
        drop(models);
        self.0.rescheduled.notify_one();
        (result, work)
    }

    /// Does it off the async threads: a drop waits for the engine's last step.
    pub(super) fn perform(&self, work: Work) {
        let host = self.clone();
        match work {
            Work::Drop(id, model) => spawn(move || host.drop_model(id, model)),
            Work::Load(id, order) => spawn(move || host.load_model(id, order)),
        }
    }

    /// Ends a model's engine.
    pub(super) fn drop_model(&self, id: ReplicaId, model: Option<Arc<Model>>) {
        // No request has it any more, but somebody may be about its sessions or counts just now.
        while model.as_ref().is_some_and(|model| Arc::strong_count(model) > 1) {
            std::thread::sleep(GLANCE);
        }
        drop(model);
        self.change(|models, now| ((), models.registry.unloaded(now, id)));
        self.notify();
    }

    fn load_model(&self, id: ReplicaId, order: Option<LoadOrder>) {
        let result = match (&self.0.loader, &order) {
            (Some(loader), Some(order)) => self.run_load(id, &**loader, order),
            _ => Err(LoadError::Failed("this server can't load models by itself".to_owned())),
        };
        let unwanted = self.change(|models, now| {
            if models.loading.get(&id).copied().unwrap_or(false) {
                return (Some(result), Vec::new());
            }
            models.loading.remove(&id);
            (None, models.load_ended(now, id, order, result))
        });
        if let Some(result) = unwanted {
            // Outside the lock: the engine ends its last step first.
            drop(result);
            self.change(|models, now| {
                models.loading.remove(&id);
                ((), models.registry.unloaded(now, id))
            });
        }
        self.notify();
    }

    fn run_load(&self, id: ReplicaId, loader: &dyn Loader, order: &LoadOrder) -> Result<Model, LoadError> {
        let host = Arc::downgrade(&self.0);
        let progress: Progress = Arc::new(move |share| {
            if let Some(inner) = Weak::upgrade(&host) {
                Host(inner).lock().registry.progress(id, share);
            }
        });
        let room = self.lock().registry.room(id);
        let load = std::panic::AssertUnwindSafe(|| loader.load(order, room, progress));
        let broken = |_| Err(LoadError::Failed("the load broke down".to_owned()));
        std::panic::catch_unwind(load).unwrap_or_else(broken)
    }
}

impl Models {
    /// Takes in what a load came to.
    fn load_ended(
        &mut self,
        now: Duration,
        id: ReplicaId,
        order: Option<LoadOrder>,
        result: Result<Model, LoadError>,
    ) -> Vec<Action> {
        match result {
            Ok(model) => {
                let bytes = model.bytes();
                self.loaded.insert(id, Arc::new(model));
                self.registry.loaded(now, id, bytes)
            }
            Err(LoadError::NoRoom { need, available }) => {
                let (again, actions) = self.registry.crowded(now, id, need, available);
                self.orders.extend(again.zip(order));
                actions
            }
            Err(LoadError::Failed(reason)) => self.registry.failed(now, id, reason),
        }
    }

    /// What is to be done outside the lock.
    fn work(&mut self, action: Action) -> Option<Work> {
        match action {
            Action::Load(id) => {
                self.loading.insert(id, false);
                // The registry starts loads of declared models by itself.
                let name = self.registry.replica(id).map(|view| view.name.to_owned());
                let declared = name.and_then(|name| self.declared.get(&name).cloned());
                Some(Work::Load(id, self.orders.remove(&id).or(declared)))
            }
            Action::Unload(id) => match self.loading.get_mut(&id) {
                // A load can't be stopped half-way; its end will see this.
                Some(unwanted) => {
                    *unwanted = true;
                    None
                }
                None => Some(Work::Drop(id, self.loaded.remove(&id))),
            },
        }
    }
}

/// Runs blocking work: on the runtime's threads for that where there is a runtime.
pub(super) fn spawn(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => drop(std::thread::spawn(work)),
    }
}
