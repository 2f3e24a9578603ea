//! Files that have to be fetched before their models can be loaded. Nothing is reserved meanwhile, and other loads go on.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lichen_api::Error;
use lichen_registry::{RegistryError, Unavailable};

use super::work::spawn;
use super::{Host, Models, entry};
use crate::order::{LoadOrder, Loader, Progress};

/// Seconds after which a client should ask again for a model whose file is being fetched.
const STAGING_RETRY_AFTER: u64 = 5;

/// A file that is being fetched.
pub(super) struct Staging {
    /// When that began.
    pub(super) since: Duration,
    /// The share done, 0 to 1.
    pub(super) progress: f32,
    /// Tells it from an earlier one of the same name.
    job: Arc<()>,
}

/// Why a model isn't ready that somebody asks to have.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Missing {
    /// Its file is being fetched.
    Staging,
    /// As the registry has it.
    Unavailable(Unavailable),
    /// It can't be found or read.
    Unreadable(String),
}

impl Host {
    /// Has a model brought in unless it is here or on its way, and returns at once; see
    /// [`lichen_registry::Registry::bring`]. The job goes on whatever becomes of the caller. Reads the file's head, so it
    /// blocks for a moment.
    ///
    /// # Errors
    /// Why it isn't ready.
    pub(crate) fn bring(
        &self,
        loader: &Arc<dyn Loader>,
        order: LoadOrder,
        evict: Vec<String>,
    ) -> Result<(), Missing> {
        if let Some(standing) = self.standing(&order.name) {
            return standing;
        }
        if loader.is_away(&order) {
            self.stage(loader.clone(), order, evict);
            return Err(Missing::Staging);
        }
        let bytes = loader.estimate(&order).map_err(Missing::Unreadable)?;
        let answer = self.change(|models, now| models.bring(now, order, bytes, evict));
        answer.map_err(Missing::Unavailable)
    }

    /// What asking for a model comes to without a new job.
    fn standing(&self, name: &str) -> Option<Result<(), Missing>> {
        let now = self.now();
        let models = self.lock();
        match models.registry.standing(now, name) {
            None if models.staging.contains_key(name) => Some(Err(Missing::Staging)),
            standing => standing.map(|standing| standing.map_err(Missing::Unavailable)),
        }
    }

    /// Starts to fetch a file, if nobody was quicker.
    fn stage(&self, loader: Arc<dyn Loader>, order: LoadOrder, evict: Vec<String>) {
        let (job, since) = (Arc::new(()), self.now());
        {
            let mut models = self.lock();
            if models.staging.contains_key(&order.name) {
                return;
            }
            let staging = Staging { since, progress: 0.0, job: job.clone() };
            models.staging.insert(order.name.clone(), staging);
        }
        self.notify();
        let host = self.clone();
        spawn(move || host.run_staging(&*loader, order, evict, &job));
    }

    fn run_staging(&self, loader: &dyn Loader, order: LoadOrder, evict: Vec<String>, job: &Arc<()>) {
        let name = order.name.clone();
        let (inner, named, ours) = (Arc::downgrade(&self.0), name.clone(), job.clone());
        let progress: Progress = Arc::new(move |share| {
            if let Some(host) = Weak::upgrade(&inner).map(Host)
                && let Some(staging) = host.lock().staging.get_mut(&named)
                && Arc::ptr_eq(&staging.job, &ours)
            {
                staging.progress = share.clamp(0.0, 1.0);
            }
        });
        let fetch =
            AssertUnwindSafe(|| loader.fetch(&order, progress).and_then(|()| loader.estimate(&order)));
        let broken = |_| Err("the transfer broke down".to_owned());
        let fetched = std::panic::catch_unwind(fetch).unwrap_or_else(broken);
        self.change(|models, now| {
            // Somebody may have had it unloaded meanwhile.
            if !models.staging.get(&name).is_some_and(|staging| Arc::ptr_eq(&staging.job, job)) {
                return ((), Vec::new());
            }
            models.staging.remove(&name);
            match fetched {
                Ok(bytes) => ((), models.staged(now, order, bytes, evict)),
                Err(reason) => {
                    models.registry.note_failure(now, &name, reason);
                    ((), Vec::new())
                }
            }
        });
        self.notify();
    }

    /// Waits within bounds while the file of a model is being fetched.
    ///
    /// # Errors
    /// [`Error::ModelNotReady`].
    pub(super) async fn staged(&self, name: &str) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + self.0.load_wait;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            let Some(progress) = self.lock().staging.get(name).map(|staging| staging.progress) else {
                return Ok(());
            };
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let (state, retry_after) = ("staging", STAGING_RETRY_AFTER);
                return Err(Error::ModelNotReady { state, progress, retry_after });
            }
        }
    }
}

impl Models {
    /// Brings a model in whose file is here.
    fn bring(
        &mut self,
        now: Duration,
        order: LoadOrder,
        bytes: u64,
        evict: Vec<String>,
    ) -> (Result<(), Unavailable>, Vec<lichen_registry::Action>) {
        let begins = self.registry.standing(now, &order.name).is_none();
        let (answer, actions) = self.registry.bring(now, entry(&order, bytes), evict);
        if begins && matches!(answer, Err(Unavailable::Loading { .. })) {
            self.declared.insert(order.name.clone(), order);
        }
        (answer, actions)
    }

    /// The same once the file has been fetched, when nobody waits for an answer. What there is no room for now stays
    /// known.
    fn staged(
        &mut self,
        now: Duration,
        order: LoadOrder,
        bytes: u64,
        evict: Vec<String>,
    ) -> Vec<lichen_registry::Action> {
        let name = order.name.clone();
        let (answer, actions) = self.bring(now, order.clone(), bytes, evict);
        match answer {
            Err(Unavailable::Refused(error @ RegistryError::NeverFits { .. })) => {
                self.registry.note_failure(now, &name, error.to_string());
            }
            Err(Unavailable::Refused(_)) => {
                self.registry.declare(entry(&order, bytes));
                self.declared.insert(name, order);
            }
            _ => {}
        }
        actions
    }
}
