//! The models of a node while it runs: performs what the registry decides, and lends models to requests.

mod cards;
mod refusal;
mod staging;
mod standing;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lichen_api::Error;
use lichen_registry::{Entry, Registry, ReplicaId, WaiterId};
use tokio::sync::Notify;

pub(crate) use cards::Comings;
use refusal::refused;
pub(crate) use staging::Missing;
use staging::Staging;
use work::Work;

use crate::order::{LoadOrder, Loader};
use crate::{Changes, Model, Settings};

/// Longest time between two looks at times to live.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The models of a node. Clones share them.
#[derive(Clone)]
pub(crate) struct Host(Arc<Inner>);

struct Inner {
    state: Mutex<Models>,
    /// Something has changed that waiting requests may want to know.
    changed: Notify,
    /// The same for who reports it.
    reported: Changes,
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
    /// Models whose files are being fetched, by name.
    staging: BTreeMap<String, Staging>,
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
            let (ttl, pinned, priority) = (model.ttl(), model.pinned(), model.priority());
            let entry = Entry { name, bytes, ttl, pinned, priority };
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
            staging: BTreeMap::new(),
            loading: HashMap::new(),
        };
        Ok(Self(Arc::new(Inner {
            state: Mutex::new(state),
            changed: Notify::new(),
            reported: Changes::default(),
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

    /// Tells whoever waits that something has changed.
    fn notify(&self) {
        self.0.changed.notify_waiters();
        self.0.reported.note();
    }

    /// Changes of models' states.
    pub(crate) fn changes(&self) -> &Changes {
        &self.0.reported
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
        self.staged(&name).await?;
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

    /// Starts to unload all replicas of a name; requests that run end first. Unless it is `kept` in mind, requests can't
    /// bring it back. Returns how many requests run.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`].
    pub(crate) fn unload(&self, name: &str, kept: bool) -> Result<usize, Error> {
        let result = self.change(|models, now| {
            let fetched = models.staging.remove(name).is_some();
            let of_name = models.registry.list().filter(|view| view.name == name);
            let in_flight = of_name.map(|view| view.in_flight).sum();
            match models.registry.unload(now, name) {
                Ok(actions) => {
                    if !kept {
                        models.registry.undeclare(name);
                        models.declared.remove(name);
                    }
                    (Ok(in_flight), actions)
                }
                Err(_) if fetched => (Ok(0), Vec::new()),
                Err(error) => (Err(error), Vec::new()),
            }
        });
        self.notify();
        result.map_err(|error| self.refusal(error.into()))
    }

    /// Unloads everything for good, and waits within bounds until it is gone. What still answers then, or loads, is left
    /// as it is.
    pub(crate) async fn retire(&self, within: Duration) {
        self.change(|models, now| {
            models.staging.clear();
            ((), models.registry.shutdown(now))
        });
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.lock().registry.list().next().is_none() {
                return;
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                return;
            }
        }
    }

    /// A model that is declared failed to load, for a cause from before its load.
    pub(crate) fn note_failure(&self, name: &str, reason: &str) {
        self.change(|models, now| {
            models.registry.note_failure(now, name, reason);
            ((), Vec::new())
        });
        self.notify();
    }

    /// How a model is loaded that is known by this name.
    pub(crate) fn order(&self, name: &str) -> Option<LoadOrder> {
        self.lock().declared.get(name).cloned()
    }

    /// Starts to unload one replica; requests that run on it end first. The model stays known. Returns its name.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if there is none of that number, or it isn't one of the given model.
    pub(crate) fn unload_replica(&self, number: &str, name: Option<&str>) -> Result<String, Error> {
        self.change(|models, now| {
            let replicas = models.registry.list().filter(|view| name.is_none_or(|name| view.name == name));
            let replica = replicas
                .filter(|view| view.id.to_string() == number)
                .map(|view| (view.id, view.name.to_owned()))
                .next();
            let Some((id, name)) = replica else {
                let reason = "is no replica here; GET /admin/models lists them";
                return (Err(Error::invalid("id", format!("{number:?} {reason}"))), Vec::new());
            };
            match models.registry.unload_replica(now, id) {
                Ok(actions) => (Ok(name), actions),
                Err(error) => (Err(refused(error)), Vec::new()),
            }
        })
    }

    /// The idle models, for whoever has to free memory.
    pub(crate) fn idle_models(&self) -> IdleModels {
        IdleModels(Arc::downgrade(&self.0))
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
}

impl Models {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let views = self.registry.list().map(|view| view.name.to_owned());
        for name in views.chain(self.declared.keys().cloned()).chain(self.staging.keys().cloned()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

fn entry(order: &LoadOrder, bytes: u64) -> Entry {
    let LoadOrder { name, ttl, pinned, priority, .. } = order.clone();
    Entry { name, bytes, ttl, pinned, priority }
}

/// The idle models of a node, for whoever has to free memory. It keeps no node alive.
pub struct IdleModels(Weak<Inner>);

impl IdleModels {
    fn host(&self) -> Option<Host> {
        self.0.upgrade().map(Host)
    }

    /// Bytes that [`IdleModels::unload`] could free now. Doesn't wait.
    pub fn bytes(&self) -> u64 {
        self.host().map_or(0, |host| host.lock().registry.idle_bytes(host.now()))
    }

    /// Unloads models that nobody has used for a while, the least recently used first, until so many bytes are free or
    /// none is left. A request that asks for one of them has it loaded again. Waits until they are gone, and returns
    /// how many bytes that has freed.
    pub fn unload(&self, bytes: u64) -> u64 {
        let Some(host) = self.host() else { return 0 };
        let (freed, work) = host.decide(|models, now| models.registry.relieve(now, bytes));
        for work in work {
            match work {
                // This thread may wait.
                Work::Drop(id, model) => host.drop_model(id, model),
                load @ Work::Load(..) => host.perform(load),
            }
        }
        freed
    }
}

impl fmt::Debug for IdleModels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleModels").field("bytes", &self.bytes()).finish()
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
