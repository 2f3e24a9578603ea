//! What a server serves: the models of one node and its settings.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use lichen_api::{Error, ModelCard};
use lichen_generate::Stats;
use lichen_registry::Limits;
use serde_json::Value;

use crate::exchange::AccessLog;
use crate::host::{Host, IdleModels, Lease};
use crate::metrics::Traffic;
use crate::order::{LoadOrder, Loader};
use crate::responses::Conversations;
use crate::session_names::SessionNames;
use crate::{ApiKeys, Model};

/// Seconds a client should wait for another server once this one is on its way down.
const DRAIN_RETRY_AFTER: u64 = 5;

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
}

impl Node {
    /// A node that serves these models; the same name again is one more replica.
    ///
    /// # Errors
    /// The models take more memory than the limit.
    pub fn new(info: Info, settings: Settings, models: Vec<Model>) -> Result<Self, Error> {
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
        })))
    }

    /// Declares a model that is loaded when a request first asks for it; `bytes` is what it will take.
    pub fn declare(&self, order: LoadOrder, bytes: u64) {
        self.host().declare(order, bytes);
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

/// Unix time in seconds; 0 if the clock stands before 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
