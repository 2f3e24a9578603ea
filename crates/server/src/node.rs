//! What a server serves: the models of one node and its settings.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use lichen_api::{Error, ModelCard};
use lichen_contract::{Discovery, Memory, NodeReport};
use lichen_generate::Stats;
use lichen_registry::Limits;
use serde_json::Value;

use crate::exchange::AccessLog;
use crate::host::{Host, IdleModels, Lease};
use crate::metrics::Traffic;
use crate::order::{LoadOrder, Loader};
use crate::responses::Conversations;
use crate::session_names::SessionNames;
use crate::{ApiKeys, Changes, Model};

/// Seconds a client should wait for another server once this one is on its way down.
const DRAIN_RETRY_AFTER: u64 = 5;
/// How long the end of the server waits for models to be unloaded.
const RETIRING: Duration = Duration::from_secs(10);

/// What `GET /` tells about the program and the machine.
#[derive(Debug, Clone, Default)]
pub struct Info {
    /// The node's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// `cpu`, `cuda` and so on.
    pub backend: String,
    /// Commit or build name.
    pub build: String,
    /// The accelerator's name, or `none`.
    pub accelerator: String,
    /// Names of the devices in use.
    pub devices: Vec<String>,
    /// What gateways are told of the machine. A name of this start and what is free are added to it.
    pub machine: Discovery,
}

/// How the server behaves.
#[derive(Clone)]
pub struct Settings {
    /// Largest request body in bytes.
    pub body_limit: usize,
    /// Longest silence of a stream: clients and proxies give up after about 20 s.
    pub keep_alive: Duration,
    /// How long running answers may go on after the order to stop.
    pub drain: Duration,
    /// `Access-Control-Allow-Origin`; `None` lets no web page of another origin in.
    pub allow_origin: Option<HeaderValue>,
    /// The keys that are accepted; without any, everybody may ask.
    pub api_keys: ApiKeys,
    /// Takes a line for each exchange.
    pub access_log: Option<AccessLog>,
    /// Memory for models, and how long they stay.
    pub limits: Limits,
    /// Loads models at run time; without it the node serves what it was started with.
    pub loader: Option<Arc<dyn Loader>>,
    /// How long a request waits for its model to be loaded.
    pub load_wait: Duration,
    /// Tells of the memory of the process; without it nothing is known.
    pub memory: Option<Arc<dyn MemoryView>>,
    /// Where gateways reach the node, `http://HOST:PORT`; without it where they have reached it.
    pub address: Option<String>,
}

/// What a node tells about the memory of its process.
pub trait MemoryView: Send + Sync {
    /// How short it is, in one word.
    fn level(&self) -> &'static str;
    /// All that is known, for `GET /admin/memory`.
    fn report(&self) -> Value;
    /// The same as metrics in the text format of Prometheus, whole blocks.
    fn metrics(&self) -> String;
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("body_limit", &self.body_limit)
            .field("keep_alive", &self.keep_alive)
            .field("drain", &self.drain)
            .field("allow_origin", &self.allow_origin)
            .field("api_keys", &self.api_keys)
            .field("access_log", &self.access_log.is_some())
            .field("limits", &self.limits)
            .field("loader", &self.loader.is_some())
            .field("load_wait", &self.load_wait)
            .field("memory", &self.memory.is_some())
            .field("address", &self.address)
            .finish()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 32 << 20,
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            allow_origin: Some(HeaderValue::from_static("*")),
            api_keys: ApiKeys::default(),
            access_log: None,
            limits: Limits::default(),
            loader: None,
            load_wait: Duration::from_secs(120),
            memory: None,
            address: None,
        }
    }
}

/// A node: models, settings, state. Clones share all of it.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: Info,
    settings: Settings,
    host: Host,
    conversations: Conversations,
    session_names: SessionNames,
    traffic: Arc<Traffic>,
    started: Instant,
    draining: AtomicBool,
    /// Of the last report.
    sequence: Mutex<u64>,
}

impl Node {
    /// A node that serves these models; the same name again is one more replica.
    ///
    /// # Errors
    /// The models take more memory than the limit.
    pub fn new(mut info: Info, settings: Settings, models: Vec<Model>) -> Result<Self, Error> {
        if info.machine.boot_id.is_empty() {
            info.machine.boot_id = boot_id();
        }
        let host = Host::new(&settings, models)?;
        Ok(Self(Arc::new(Inner {
            info,
            settings,
            host,
            conversations: Conversations::default(),
            session_names: SessionNames::default(),
            traffic: Arc::default(),
            started: Instant::now(),
            draining: AtomicBool::new(false),
            sequence: Mutex::new(0),
        })))
    }

    /// Declares a model that is loaded when a request first asks for it; `bytes` is what it will take.
    pub fn declare(&self, order: LoadOrder, bytes: u64) {
        self.host().declare(order, bytes);
    }

    /// Notes that a declared model could not be loaded. Requests for it are told so, and have it tried again later.
    pub fn note_failure(&self, name: &str, reason: &str) {
        self.host().note_failure(name, reason);
    }

    /// The node at this moment, for a gateway. Each report is newer than the one before.
    pub fn report(&self, address: Option<String>) -> NodeReport {
        // Held until the report is made, so that a higher number never has older news.
        let mut sequence = self.0.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence += 1;
        let Discovery { node_id, boot_id, devices, .. } = self.discovery();
        NodeReport {
            node_id,
            boot_id,
            sequence: *sequence,
            address,
            draining: self.is_draining(),
            memory: self.memory(),
            devices,
            models: self.host().statuses(),
        }
    }

    /// What the node is made of.
    pub fn discovery(&self) -> Discovery {
        let mut machine = self.info().machine.clone();
        let Memory { budget_bytes, free_bytes } = self.memory();
        machine.budget_bytes = budget_bytes;
        machine.devices.iter_mut().for_each(|device| device.free_bytes = device.memory_bytes.min(free_bytes));
        machine
    }

    /// Memory for models. Where it is not bounded, that of the machine stands for it.
    fn memory(&self) -> Memory {
        let Memory { budget_bytes, free_bytes } = self.host().memory();
        let machine = self.info().machine.ram_bytes;
        let unbounded = budget_bytes == u64::MAX && machine > 0;
        let taken = budget_bytes - free_bytes;
        match unbounded {
            true => Memory { budget_bytes: machine, free_bytes: machine.saturating_sub(taken) },
            false => Memory { budget_bytes, free_bytes },
        }
    }

    /// Counts changes that gateways want to know of at once.
    pub fn changes(&self) -> &Changes {
        self.host().changes()
    }

    /// Unloads all models, once no more requests come. Waits a while for what still runs.
    pub async fn retire(&self) {
        self.host().retire(RETIRING).await;
    }

    /// The models that may go when memory is short.
    pub fn idle_models(&self) -> IdleModels {
        self.host().idle_models()
    }

    pub(crate) fn host(&self) -> &Host {
        &self.0.host
    }

    /// Conversations that later responses continue.
    pub(crate) fn conversations(&self) -> &Conversations {
        &self.0.conversations
    }

    /// What clients call their sessions.
    pub(crate) fn session_names(&self) -> &SessionNames {
        &self.0.session_names
    }

    /// Counts of all requests.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.0.traffic
    }

    pub(crate) fn info(&self) -> &Info {
        &self.0.info
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Acquire)
    }

    /// Refuses new generations from now on; running ones go on.
    pub(crate) fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Release);
        self.changes().note();
    }

    /// What each model is like and does.
    pub(crate) fn cards(&self) -> Vec<ModelCard> {
        self.host().cards(self.is_draining())
    }

    /// The card of one model.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`].
    pub(crate) fn card(&self, id: &str) -> Result<ModelCard, Error> {
        let cards = self.cards();
        let loaded = cards.iter().map(|card| card.id.clone()).collect();
        let found = cards.into_iter().find(|card| card.id == id);
        found.ok_or_else(|| Error::ModelNotFound { model: id.to_owned(), loaded })
    }

    /// Lends the model of a request. Without a name it is the only one.
    ///
    /// # Errors
    /// As [`Host::lend`], and [`Error::ModelNotReady`] while draining.
    pub(crate) async fn lend(&self, name: Option<&str>) -> Result<Lease, Error> {
        if self.is_draining() {
            return Err(Error::ModelNotReady {
                state: "draining",
                progress: 0.0,
                retry_after: DRAIN_RETRY_AFTER,
            });
        }
        self.host().lend(name).await
    }

    /// What each replica does now, by name and number.
    pub(crate) fn stats(&self) -> Vec<(String, String, Stats)> {
        let all = self.host().all().into_iter();
        all.map(|(id, model)| (model.id().to_owned(), id.to_string(), model.generate().stats())).collect()
    }
}

/// A name for this start that no other one has: the time, and a random number from the system.
fn boot_id() -> String {
    let random = RandomState::new().build_hasher().finish();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    format!("{time:x}-{random:016x}")
}

/// Unix time in seconds; 0 if the clock stands before 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
