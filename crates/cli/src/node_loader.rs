//! Loads models for a running node.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use lichen_hub::{Hub, Reference};
use lichen_server::{LoadError, LoadOrder, Loader, Model, ModelOptions, Progress};

use crate::load::{self, ComputeArgs, Limits, QueueArgs};
use crate::memory::{Memory, NoRoom};
use crate::{output, start};

/// Share of a load that is the transfer of its file; the rest is reading and binding it.
const TRANSFER: f32 = 0.9;

/// Loads models with the settings of one process.
pub(crate) struct NodeLoader {
    pub(crate) hub: Hub,
    pub(crate) compute: ComputeArgs,
    pub(crate) queue: QueueArgs,
    pub(crate) memory: Memory,
}

impl NodeLoader {
    fn try_load(&self, order: &LoadOrder, room: u64, progress: &dyn lichen_hub::Progress) -> Result<Model> {
        let reference: Reference = order.reference.parse()?;
        let path = self.hub.pull(&reference, progress)?.path;
        let limits = limits_of(&order.options)?;
        let opened = load::open_file(path, limits.ctx_cap)?;
        let within = Some((&self.memory, room));
        let loaded = start::start(opened, Some(&order.name), &self.compute, &self.queue, limits, within)?;
        let (limiter, queue) = (loaded.limiter(), self.queue.clone());
        let change = move |options: &ModelOptions| -> Result<(), String> {
            let changed = limits_of(options).and_then(|limits| limiter(&queue, limits));
            changed.map_err(|error| format!("{error:#}"))
        };
        Ok(Model::new(&order.name, loaded.engine, loaded.language)
            .with_pooling(loaded.pooling)
            .with_sessions(loaded.sessions)
            .with_bytes(loaded.bytes)
            .with_ttl(order.ttl)
            .with_pin(order.pinned)
            .with_priority(order.priority)
            .with_options(order.options.clone())
            .with_change(Box::new(change)))
    }

    fn try_estimate(&self, order: &LoadOrder) -> Result<u64> {
        let reference: Reference = order.reference.parse()?;
        let path = match (&reference, self.hub.find(&reference)?) {
            // A file that isn't there is told about by whoever opens it.
            (Reference::Path(path), _) => path.clone(),
            (_, Some(path)) => path,
            (Reference::Name(name), None) => return Ok(self.hub.catalogue().get(name)?.bytes),
            // What is not here yet is measured once it has been fetched.
            _ => return Ok(0),
        };
        let limits = limits_of(&order.options)?;
        load::open_file(path, limits.ctx_cap)?.estimate(&self.compute, &self.queue, limits, &self.memory)
    }
}

impl Loader for NodeLoader {
    fn name(&self, reference: &str) -> String {
        match reference.parse() {
            Ok(Reference::Path(path)) => load::stem(&path),
            _ => reference.to_owned(),
        }
    }

    fn is_away(&self, order: &LoadOrder) -> bool {
        let here = |reference: Reference| {
            Ok(matches!(reference, Reference::Path(_)) || self.hub.find(&reference)?.is_some())
        };
        // What makes no sense is told about by the estimate.
        order.reference.parse().and_then(here).is_ok_and(|here| !here)
    }

    fn fetch(&self, order: &LoadOrder, progress: Progress) -> Result<(), String> {
        let transfer = Transfer::new(progress, 1.0);
        let pull = |reference: Reference| self.hub.pull(&reference, &transfer);
        order
            .reference
            .parse()
            .and_then(pull)
            .map(drop)
            .map_err(|error: lichen_hub::HubError| error.to_string())
    }

    fn estimate(&self, order: &LoadOrder) -> Result<u64, String> {
        self.try_estimate(order).map_err(|error| format!("{error:#}"))
    }

    fn load(&self, order: &LoadOrder, room: u64, progress: Progress) -> Result<Model, LoadError> {
        let transfer = Transfer::new(progress.clone(), TRANSFER);
        let model = self.try_load(order, room, &transfer).map_err(|error| match error.downcast_ref() {
            Some(&NoRoom { need, available, .. }) => LoadError::NoRoom { need, available },
            None => LoadError::Failed(format!("{error:#}")),
        })?;
        progress(1.0);
        Ok(model)
    }
}

/// The limits that options ask for.
fn limits_of(options: &ModelOptions) -> Result<Limits> {
    let defaults = Limits::default();
    Ok(Limits {
        ctx_cap: options
            .ctx_cap
            .map(|cap| NonZeroU32::new(cap).context("ctx_cap must be at least 1"))
            .transpose()?,
        max_concurrent: match options.max_concurrent {
            Some(count) => NonZeroUsize::new(count).context("max_concurrent must be at least 1")?,
            None => defaults.max_concurrent,
        },
        max_sessions: options.max_sessions.unwrap_or(defaults.max_sessions),
    })
}

/// The progress of a transfer as a share of the job.
struct Transfer {
    progress: Progress,
    /// What the whole transfer is of the job.
    share: f32,
    total: AtomicU64,
    done: AtomicU64,
}

impl Transfer {
    fn new(progress: Progress, share: f32) -> Self {
        Self { progress, share, total: AtomicU64::new(0), done: AtomicU64::new(0) }
    }

    fn report(&self, done: u64) {
        let total = self.total.load(Ordering::Relaxed);
        if total > 0 {
            (self.progress)(self.share * done as f32 / total as f32);
        }
    }
}

impl lichen_hub::Progress for Transfer {
    fn total(&self, bytes: Option<u64>, done: u64) {
        self.total.store(bytes.unwrap_or(0), Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
        self.report(done);
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.report(done);
    }

    fn message(&self, line: &str) {
        output::note(line);
    }
}

/// A model before the server starts: loaded, or the bytes that it will take when a request asks for it, or why it can't
/// be loaded.
pub(crate) enum Begun {
    Loaded(Box<Model>),
    Declared(u64),
    Failed(String),
}

/// What becomes of a start whose models can't all be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFailure {
    /// It fails.
    Stop,
    /// The failure is told and the next model is tried.
    GoOn,
}

/// Loads models one after another before the server starts, with a bar on the terminal, within so many bytes. What
/// doesn't fit beside those that are loaded is left for a request to ask for.
///
/// # Errors
/// One of them can't be loaded, or not even alone, and the start shall stop then.
pub(crate) fn load_now(
    loader: &NodeLoader,
    orders: &[LoadOrder],
    limit: u64,
    on_failure: OnFailure,
) -> Result<Vec<Begun>> {
    let mut left = limit;
    let mut begun: Vec<Begun> = Vec::new();
    for order in orders {
        let first = !begun.iter().any(|one| matches!(one, Begun::Loaded(_)));
        begun.push(match begin(loader, order, left, first) {
            Ok(Begun::Loaded(model)) => {
                left = left.saturating_sub(model.bytes());
                Begun::Loaded(model)
            }
            Err(error) if on_failure == OnFailure::GoOn => {
                output::note(format_args!(
                    "cannot load {}: {error:#}; going on with the next model",
                    order.name
                ));
                Begun::Failed(format!("{error:#}"))
            }
            other => other?,
        });
    }
    Ok(begun)
}

fn begin(loader: &NodeLoader, order: &LoadOrder, left: u64, first: bool) -> Result<Begun> {
    match loader.try_load(order, left, &lichen_hub::ProgressBar::new()) {
        Ok(model) if first || model.bytes() <= left => return Ok(Begun::Loaded(Box::new(model))),
        Err(error) if first || !error.is::<NoRoom>() => return Err(error),
        _ => {}
    }
    output::note(format_args!(
        "{} doesn't fit beside the models before it; it is loaded when a request asks for it",
        order.name
    ));
    Ok(Begun::Declared(loader.try_estimate(order)?))
}
