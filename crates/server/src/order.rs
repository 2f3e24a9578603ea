//! What is asked for when a model is to be loaded, and who can do it.

use std::sync::Arc;
use std::time::Duration;

use lichen_api::{Error, Fields};

use crate::Model;

/// Told now and then how much of a load is done, 0 to 1.
pub type Progress = Arc<dyn Fn(f32) + Send + Sync>;

/// A model to be loaded, with the options that a model has.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOrder {
    /// A path, a name from the catalogue or a reference.
    pub reference: String,
    /// The name that requests use.
    pub name: String,
    /// What changes the defaults.
    pub options: ModelOptions,
    /// How long it may stay without a request.
    pub ttl: Option<Duration>,
    /// Leaves only when told to.
    pub pinned: bool,
    /// Its class: it displaces models of its own class and of lower ones.
    pub priority: i32,
}

/// Why a load came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Memory is used otherwise. It may be tried again once something has gone.
    #[error("it needs {need} bytes and {available} are free; unload another model, or try again later")]
    NoRoom {
        /// Bytes needed.
        need: u64,
        /// Bytes that can be had now.
        available: u64,
    },
    /// Anything else; for the user to read.
    #[error("{0}")]
    Failed(String),
}

/// Limits of one model; `None` leaves the server's default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOptions {
    /// Most tokens of prompt and answer together.
    pub ctx_cap: Option<u32>,
    /// Most sessions whose state is kept.
    pub max_sessions: Option<usize>,
    /// Most requests that run at once.
    pub max_concurrent: Option<usize>,
    /// Most tokens of thinking.
    pub reasoning_budget: Option<usize>,
}

impl ModelOptions {
    /// These options, and those of `base` where these say nothing.
    pub(crate) fn over(&self, base: &Self) -> Self {
        Self {
            ctx_cap: self.ctx_cap.or(base.ctx_cap),
            max_sessions: self.max_sessions.or(base.max_sessions),
            max_concurrent: self.max_concurrent.or(base.max_concurrent),
            reasoning_budget: self.reasoning_budget.or(base.reasoning_budget),
        }
    }

    /// Reads the options of a body.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the field.
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        let ctx_cap = fields.count("ctx_cap", 1)?;
        let ctx_cap = ctx_cap.map(|cap| {
            u32::try_from(cap).map_err(|_| Error::invalid("ctx_cap", format!("is larger than {}", u32::MAX)))
        });
        Ok(Self {
            ctx_cap: ctx_cap.transpose()?,
            max_sessions: fields.count("max_sessions", 0)?,
            max_concurrent: fields.count("max_concurrent", 1)?,
            reasoning_budget: fields.count("reasoning_budget", 0)?,
        })
    }
}

impl LoadOrder {
    /// Reads the body of a load request: `model` (or `model_id`), `name`, options, `ttl` in seconds, `pin`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the field.
    pub(crate) fn read(fields: &Fields, default_name: impl Fn(&str) -> String) -> Result<Self, Error> {
        let reference = fields.text("model")?.or(fields.text("model_id")?);
        let reference = reference.ok_or_else(|| {
            Error::invalid("model", "is missing: a path, a name from the catalogue or a reference")
        })?;
        let name = fields.text("name")?.map_or_else(|| default_name(reference), str::to_owned);
        if name.is_empty() || name.len() > 256 {
            return Err(Error::invalid("name", "must have 1 to 256 bytes"));
        }
        Ok(Self {
            reference: reference.to_owned(),
            name,
            options: ModelOptions::read(fields)?,
            ttl: fields.count("ttl", 1)?.map(|seconds| Duration::from_secs(seconds as u64)),
            pinned: fields.flag("pin")?.or(fields.flag("pinned")?).unwrap_or(false),
            priority: 0,
        })
    }
}

/// Loads models: the one part of a server that knows files and engines.
pub trait Loader: Send + Sync {
    /// The name of a model that was given none.
    fn name(&self, reference: &str) -> String;

    /// Whether the file of a model has to be fetched from elsewhere before it can be read. Blocks, but not for long.
    fn is_away(&self, _order: &LoadOrder) -> bool {
        false
    }

    /// Fetches the file of a model. Blocks.
    ///
    /// # Errors
    /// It can't be had; for the user to read.
    fn fetch(&self, _order: &LoadOrder, _progress: Progress) -> Result<(), String> {
        Ok(())
    }

    /// Bytes that a model will take, as far as that can be told without fetching it. Blocks.
    ///
    /// # Errors
    /// It can't be found or read; for the user to read.
    fn estimate(&self, order: &LoadOrder) -> Result<u64, String>;

    /// Fetches and loads a model. It may take so many bytes of `room`, and less of a context where the order leaves that
    /// open. Blocks.
    ///
    /// # Errors
    /// [`LoadError`].
    fn load(&self, order: &LoadOrder, room: u64, progress: Progress) -> Result<Model, LoadError>;
}
