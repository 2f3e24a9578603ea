//! The models of a node while it runs: performs what the registry decides, and lends models to requests.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lichen_api::{Error, ModelCard};
use lichen_registry::{Action, Entry, Registry, RegistryError, ReplicaId, State, Unavailable, WaiterId};
use tokio::sync::Notify;

use crate::order::{LoadOrder, Loader, Progress};
use crate::{Model, Settings};

/// Longest time between two looks at times to live.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// Seconds after which a client should ask again for a model that loads.
const LOADING_RETRY_AFTER: u64 = 2;

/// The models of a node. Clones share them.
#[derive(Clone)]
pub(crate) struct Host(Arc<Inner>);

struct Inner {
    state: Mutex<Models>,
    /// Something has changed that waiting requests may want to know.
    changed: Notify,
    /// There may be something to do at another time than was thought.
    rescheduled: Notify,
    loader: Option<Arc<dyn Loader>>,
    begun: Instant,
    load_wait: Duration,
}

struct Models {
    registry: Registry,
    loaded: HashMap<ReplicaId, Arc<Model>>,
    /// How loads were asked for that haven't started yet.
    orders: HashMap<ReplicaId, LoadOrder>,
    /// How declared models are loaded.
    declared: HashMap<String, LoadOrder>,
    /// Loads that run; true once the model isn't wanted any more, and is dropped when its load ends.
    loading: HashMap<ReplicaId, bool>,
}

impl Host {
    /// A host of models that are loaded already.
    ///
    /// # Errors
    /// [`Error::MemoryImpossible`] or [`Error::MemoryOverBudget`] if they take more than the limit.
    pub(crate) fn new(settings: &Settings, models: Vec<Model>) -> Result<Self, Error> {
        let mut registry = Registry::new(settings.limits.clone());
        let mut loaded = HashMap::new();
        for model in models {
            let (name, bytes) = (model.id().to_owned(), model.bytes());
            let entry = Entry { name, bytes, ttl: model.ttl(), pinned: false };
            let (id, _) = registry.load(Duration::ZERO, entry).map_err(refused)?;
            // There is nothing to perform: it is loaded, and nothing had to go for it.
            registry.loaded(Duration::ZERO, id, bytes);
            loaded.insert(id, Arc::new(model));
        }
        let state = Models {
            registry,
            loaded,
            orders: HashMap::new(),
            declared: HashMap::new(),
            loading: HashMap::new(),
        };
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(state),
            changed: Notify::new(),
            rescheduled: Notify::new(),
            loader: settings.loader.clone(),
            begun: Instant::now(),
            load_wait: settings.load_wait,
        })))
    }

    fn now(&self) -> Duration {
        self.0.begun.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Models> {
        // The state is changed by calls that don't panic half-way.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the registry and performs what that brings. Waiting requests are told only if it brings something: they
    /// come here too, and must not wake each other for nothing.
    fn change<T>(&self, change: impl FnOnce(&mut Models, Duration) -> (T, Vec<Action>)) -> T {
        let (result, work) = {
            let mut models = self.lock();
            let (result, actions) = change(&mut models, self.now());
            if !actions.is_empty() {
                self.0.changed.notify_waiters();
            }
            let work: Vec<Work> = actions.into_iter().filter_map(|action| models.work(action)).collect();
            (result, work)
        };
        for work in work {
            match work {
                Work::Drop(id, model) => self.drop_model(id, model),
                Work::Load(id, order) => self.start_load(id, order),
            }
        }
        self.0.rescheduled.notify_one();
        result
    }

    /// Ends a model's engine off the async threads, since that waits for its last step.
    fn drop_model(&self, id: ReplicaId, model: Option<Arc<Model>>) {
        let host = self.clone();
        let work = move || {
            drop(model);
            host.change(|models, now| ((), models.registry.unloaded(now, id)));
        };
        spawn(work);
    }

    fn start_load(&self, id: ReplicaId, order: Option<LoadOrder>) {
        let host = self.clone();
        spawn(move || {
            let result = match (&host.0.loader, order) {
                (Some(loader), Some(order)) => host.run_load(id, &**loader, &order),
                _ => Err("this server can't load models by itself".to_owned()),
            };
            host.change(|models, now| {
                let unwanted = models.loading.remove(&id).unwrap_or(false);
                let actions = match result {
                    result if unwanted => {
                        drop(result);
                        models.registry.unloaded(now, id)
                    }
                    Ok(model) => {
                        let bytes = model.bytes();
                        models.loaded.insert(id, Arc::new(model));
                        models.registry.loaded(now, id, bytes)
                    }
                    Err(reason) => models.registry.failed(now, id, reason),
                };
                ((), actions)
            });
            host.0.changed.notify_waiters();
        });
    }

    fn run_load(&self, id: ReplicaId, loader: &dyn Loader, order: &LoadOrder) -> Result<Model, String> {
        let host = Arc::downgrade(&self.0);
        let progress: Progress = Arc::new(move |share| {
            if let Some(inner) = Weak::upgrade(&host) {
                Host(inner).lock().registry.progress(id, share);
            }
        });
        let load = std::panic::AssertUnwindSafe(|| loader.load(order, progress));
        std::panic::catch_unwind(load).unwrap_or_else(|_| Err("the load broke down".to_owned()))
    }

    /// Unloads what has been idle for its time to live, for as long as the server runs.
    pub(crate) async fn keep_time(self) {
        loop {
            let next = {
                let now = self.now();
                self.lock().registry.next_tick(now).map(|at| at.saturating_sub(now))
            };
            let pause = next.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.rescheduled.notified() => continue,
            }
            self.change(|models, now| ((), models.registry.tick(now)));
        }
    }

    /// Lends the model of a request, loading it first if it is declared; waits for that within bounds.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`], [`Error::ModelNotReady`], or [`Error::InvalidRequest`] if there is a choice and no
    /// name.
    pub(crate) async fn lend(&self, name: Option<&str>) -> Result<Lease, Error> {
        let name = self.name(name)?;
        let first = self.change(|models, now| {
            let (taken, actions) = models.registry.ensure(now, &name);
            (taken.map(|id| (id, models.loaded.get(&id).cloned())), actions)
        });
        match first {
            Ok((id, model)) => self.lease(id, model, &name),
            Err(why) if why.worth_waiting() => self.wait(&name).await,
            Err(why) => Err(self.refusal(why)),
        }
    }

    async fn wait(&self, name: &str) -> Result<Lease, Error> {
        let waiter = self.lock().registry.wait(name).map_err(|error| self.refusal(error.into()))?;
        let mut waiting = Waiting { host: self.clone(), waiter: Some(waiter) };
        let deadline = tokio::time::Instant::now() + self.0.load_wait;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no change is missed.
            changed.as_mut().enable();
            let taken = self.change(|models, now| {
                let (taken, actions) = models.registry.take(now, waiter);
                (taken.map(|id| (id, models.loaded.get(&id).cloned())), actions)
            });
            match taken {
                Ok((id, model)) => {
                    waiting.waiter = None;
                    return self.lease(id, model, name);
                }
                Err(why) if !why.worth_waiting() => return Err(self.refusal(why)),
                Err(why) => {
                    if tokio::time::timeout_at(deadline, changed).await.is_err() {
                        return Err(self.refusal(why));
                    }
                }
            }
        }
    }

    fn lease(&self, id: ReplicaId, model: Option<Arc<Model>>, name: &str) -> Result<Lease, Error> {
        match model {
            Some(model) => Ok(Lease { host: self.clone(), id, model: Some(model) }),
            None => {
                self.change(|models, now| ((), models.registry.release(now, id)));
                Err(Error::ModelNotFound { model: name.to_owned(), loaded: self.names() })
            }
        }
    }

    /// The name that a request means: without one, the only one there is.
    fn name(&self, name: Option<&str>) -> Result<String, Error> {
        if let Some(name) = name {
            return Ok(name.to_owned());
        }
        match self.names().as_slice() {
            [only] => Ok(only.clone()),
            [] => Err(Error::ModelNotFound { model: String::new(), loaded: Vec::new() }),
            names => Err(Error::invalid("model", format!("is missing; one of {}", names.join(", ")))),
        }
    }

    fn names(&self) -> Vec<String> {
        self.lock().names()
    }

    fn refusal(&self, why: Unavailable) -> Error {
        let not_ready =
            |state, progress| Error::ModelNotReady { state, progress, retry_after: LOADING_RETRY_AFTER };
        match why {
            Unavailable::Loading { progress, .. } => not_ready("loading", progress),
            Unavailable::Draining { .. } | Unavailable::Cancelled => not_ready("draining", 0.0),
            Unavailable::NotLoaded { name } | Unavailable::Refused(RegistryError::NotFound { name, .. }) => {
                Error::ModelNotFound { model: name, loaded: self.names() }
            }
            Unavailable::Failed { name, reason, retry_in } => Error::ModelFailed {
                model: name,
                reason,
                retry_after: retry_in.map_or(60, |pause| pause.as_secs()),
            },
            Unavailable::Refused(error) => refused(error),
        }
    }

    /// Declares a model that requests may have loaded.
    pub(crate) fn declare(&self, order: LoadOrder, bytes: u64) {
        let mut models = self.lock();
        models.registry.declare(entry(&order, bytes));
        models.declared.insert(order.name.clone(), order);
    }

    /// Starts a load and returns at once. From then on a request brings the model back when it has had to go.
    ///
    /// # Errors
    /// There is no room, or the model can't be found.
    pub(crate) fn load(&self, order: LoadOrder, bytes: u64) -> Result<(), Error> {
        self.change(|models, now| match models.registry.load(now, entry(&order, bytes)) {
            Ok((id, actions)) => {
                models.registry.declare(entry(&order, bytes));
                models.declared.insert(order.name.clone(), order.clone());
                models.orders.insert(id, order);
                (Ok(()), actions)
            }
            Err(error) => (Err(refused(error)), Vec::new()),
        })
    }

    /// Starts to unload all replicas of a name, for good; requests that run end first.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`].
    pub(crate) fn unload(&self, name: &str) -> Result<(), Error> {
        let result = self.change(|models, now| match models.registry.unload(now, name) {
            Ok(actions) => {
                models.registry.undeclare(name);
                models.declared.remove(name);
                (Ok(()), actions)
            }
            Err(error) => (Err(error), Vec::new()),
        });
        self.0.changed.notify_waiters();
        result.map_err(|error| self.refusal(error.into()))
    }

    pub(crate) fn loader(&self) -> Option<Arc<dyn Loader>> {
        self.0.loader.clone()
    }

    /// All replicas of a name that are loaded.
    pub(crate) fn loaded(&self, name: &str) -> Vec<Arc<Model>> {
        let models = self.lock();
        models.loaded.values().filter(|model| model.id() == name).cloned().collect()
    }

    /// Every loaded replica, in the order of loading.
    pub(crate) fn all(&self) -> Vec<(ReplicaId, Arc<Model>)> {
        let models = self.lock();
        let mut all: Vec<_> = models.loaded.iter().map(|(id, model)| (*id, model.clone())).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    /// One card a name: that of its readiest replica.
    pub(crate) fn cards(&self, draining: bool) -> Vec<ModelCard> {
        let models = self.lock();
        let mut cards: Vec<ModelCard> = Vec::new();
        for view in models.registry.list() {
            let model = models.loaded.get(&view.id);
            let (state, progress) = match &view.state {
                _ if draining => ("draining", 0.0),
                State::Ready => ("ready", 1.0),
                State::Queued => ("loading", 0.0),
                State::Loading { progress } => ("loading", *progress),
                State::Draining | State::Unloading => ("draining", 0.0),
                State::Failed { .. } => ("failed", 0.0),
            };
            let failure = match view.state {
                State::Failed { reason } => Some(reason),
                _ => None,
            };
            let card = ModelCard {
                id: view.name.to_owned(),
                created: model.map_or(0, |model| model.created()),
                context_cap: model.map(|model| model.generate().context_cap()),
                state,
                progress,
                failure,
                in_flight: view.in_flight,
                bytes: view.bytes,
                replicas: 1,
            };
            match cards.iter_mut().find(|known| known.id == card.id) {
                Some(known) => known.join(card),
                None => cards.push(card),
            }
        }
        for entry in models.registry.declared() {
            if !cards.iter().any(|card| card.id == entry.name) {
                cards.push(ModelCard::absent(&entry.name, entry.bytes));
            }
        }
        cards
    }
}

/// An action with what it needs.
enum Work {
    Drop(ReplicaId, Option<Arc<Model>>),
    Load(ReplicaId, Option<LoadOrder>),
}

impl Models {
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

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let views = self.registry.list().map(|view| view.name.to_owned());
        for name in views.chain(self.declared.keys().cloned()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

fn entry(order: &LoadOrder, bytes: u64) -> Entry {
    Entry { name: order.name.clone(), bytes, ttl: order.ttl, pinned: order.pinned }
}

fn refused(error: RegistryError) -> Error {
    let message = error.to_string();
    match error {
        RegistryError::NeverFits { need, limit, .. } => {
            Error::MemoryImpossible { message, need_bytes: need, limit_bytes: limit }
        }
        RegistryError::Crowded { need, left, .. } => {
            Error::MemoryOverBudget { message, need_bytes: need, available_bytes: left }
        }
        RegistryError::NoRoomNow { need, available, .. } => {
            Error::MemoryOverBudget { message, need_bytes: need, available_bytes: available }
        }
        RegistryError::NotFound { name, known } => Error::ModelNotFound { model: name, loaded: known },
        RegistryError::ShuttingDown => {
            Error::ModelNotReady { state: "draining", progress: 0.0, retry_after: LOADING_RETRY_AFTER }
        }
    }
}

/// Runs blocking work: on the runtime's threads for that where there is a runtime.
fn spawn(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => drop(std::thread::spawn(work)),
    }
}

/// A request that waits; it gives up when it is dropped.
struct Waiting {
    host: Host,
    waiter: Option<WaiterId>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.host.change(|models, now| ((), models.registry.give_up(now, waiter)));
        }
    }
}

/// A model that a request uses; given back when dropped.
pub(crate) struct Lease {
    host: Host,
    id: ReplicaId,
    model: Option<Arc<Model>>,
}

impl Deref for Lease {
    type Target = Model;

    fn deref(&self) -> &Model {
        self.model.as_deref().expect("the model is there until the lease is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // First the model, so that whoever unloads it holds the last reference.
        self.model = None;
        self.host.change(|models, now| ((), models.registry.release(now, self.id)));
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.id).finish()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("models", &self.names()).finish_non_exhaustive()
    }
}
