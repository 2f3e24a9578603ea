//! What a server serves: the models of one node and its settings.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use lichen_api::{Error, ModelCard};
use lichen_generate::{Generate, Pooling, Sampling, Stats};

use crate::Language;

/// Seconds a client should wait for another server once this one is on its way down.
const DRAIN_RETRY_AFTER: u64 = 5;

/// One loaded model.
pub struct Model {
    id: String,
    created: u64,
    generate: Arc<dyn Generate>,
    language: Arc<dyn Language>,
    defaults: Sampling,
    pooling: Pooling,
}

impl Model {
    /// A model under the name that requests use.
    pub fn new(id: impl Into<String>, generate: Arc<dyn Generate>, language: Arc<dyn Language>) -> Self {
        let defaults = Sampling::default();
        Self {
            id: id.into(),
            created: unix_time(),
            generate,
            language,
            defaults,
            pooling: Pooling::default(),
        }
    }

    /// Sets what applies where a request is silent.
    #[must_use]
    pub fn with_defaults(mut self, defaults: Sampling) -> Self {
        self.defaults = defaults;
        self
    }

    /// Sets how embeddings are made; the mean over all tokens if not set.
    #[must_use]
    pub fn with_pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    pub(crate) fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn generate(&self) -> &dyn Generate {
        &*self.generate
    }

    pub(crate) fn language(&self) -> &dyn Language {
        &*self.language
    }

    pub(crate) fn defaults(&self) -> &Sampling {
        &self.defaults
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("id", &self.id).finish_non_exhaustive()
    }
}

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
#[derive(Debug, Clone)]
pub struct Settings {
    /// Largest request body in bytes.
    pub body_limit: usize,
    /// Longest silence of a stream: clients and proxies give up after about 20 s.
    pub keep_alive: Duration,
    /// How long running answers may go on after the order to stop.
    pub drain: Duration,
    /// `Access-Control-Allow-Origin`; `None` lets no web page of another origin in.
    pub allow_origin: Option<HeaderValue>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body_limit: 32 << 20,
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
            allow_origin: Some(HeaderValue::from_static("*")),
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
    models: Vec<Arc<Model>>,
    started: Instant,
    draining: AtomicBool,
}

impl Node {
    /// A node that serves these models, the first one of a name where names repeat.
    pub fn new(info: Info, settings: Settings, models: Vec<Model>) -> Self {
        let models = models.into_iter().map(Arc::new).collect();
        Self(Arc::new(Inner {
            info,
            settings,
            models,
            started: Instant::now(),
            draining: AtomicBool::new(false),
        }))
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

    pub(crate) fn cards(&self) -> Vec<ModelCard> {
        self.0.models.iter().map(|model| self.card(model)).collect()
    }

    pub(crate) fn card(&self, model: &Model) -> ModelCard {
        ModelCard {
            id: model.id.clone(),
            created: model.created,
            context_cap: model.generate.context_cap(),
            state: if self.is_draining() { "draining" } else { "ready" },
        }
    }

    /// The model of a request. Without a name it is the only one.
    ///
    /// # Errors
    /// [`Error::ModelNotFound`], or [`Error::InvalidRequest`] if there is a choice and no name.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Arc<Model>, Error> {
        let models = &self.0.models;
        match (name, models.as_slice()) {
            (None, [only]) => Ok(only.clone()),
            (None, [_, _, ..]) => {
                Err(Error::invalid("model", format!("is missing; one of {}", self.names().join(", "))))
            }
            _ => models.iter().find(|model| Some(model.id()) == name).cloned().ok_or_else(|| {
                Error::ModelNotFound { model: name.unwrap_or_default().to_owned(), loaded: self.names() }
            }),
        }
    }

    /// The model of a request that generates.
    ///
    /// # Errors
    /// As [`Node::model`], and [`Error::ModelNotReady`] while draining.
    pub(crate) fn ready_model(&self, name: Option<&str>) -> Result<Arc<Model>, Error> {
        if self.is_draining() {
            return Err(Error::ModelNotReady {
                state: "draining",
                progress: 0.0,
                retry_after: DRAIN_RETRY_AFTER,
            });
        }
        self.model(name)
    }

    /// What each model does now.
    pub(crate) fn stats(&self) -> Vec<(String, Stats)> {
        self.0.models.iter().map(|model| (model.id.clone(), model.generate.stats())).collect()
    }

    fn names(&self) -> Vec<String> {
        self.0.models.iter().map(|model| model.id.clone()).collect()
    }
}

/// Unix time in seconds; 0 if the clock stands before 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
