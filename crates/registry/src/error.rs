//! Why something cannot be had.

use std::time::Duration;
use thiserror::Error;

/// Why a load or an unload is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// Larger than all the memory there may be.
    #[error(
        "model '{name}' needs {need} bytes and the limit is {limit}; \
         raise the limit, or take a smaller quantisation or context"
    )]
    NeverFits {
        /// The model asked for.
        name: String,
        /// Bytes it needs.
        need: u64,
        /// Bytes of the limit.
        limit: u64,
    },
    /// Too little room even with everything unloaded that may be.
    #[error(
        "model '{name}' needs {need} bytes, and beside {} that stay there are {left}; unload one of them",
        kept.join(", ")
    )]
    Crowded {
        /// The model asked for.
        name: String,
        /// Bytes it needs.
        need: u64,
        /// Bytes beside the models that stay.
        left: u64,
        /// Models that stay: pinned ones, those of a higher class, and replicas of the model itself.
        kept: Vec<String>,
    },
    /// Too little room for now: models are in use, or too freshly loaded to be evicted.
    #[error(
        "model '{name}' needs {need} bytes and {available} can be had now{}{}; \
         try again later, or unload one of them",
        listed("in use", busy),
        listed("loaded only just now", recent)
    )]
    NoRoomNow {
        /// The model asked for.
        name: String,
        /// Bytes it needs.
        need: u64,
        /// Bytes free, or taken by models that could be evicted.
        available: u64,
        /// Models that load, drain, run requests or are waited for.
        busy: Vec<String>,
        /// Idle models within their minimum residency.
        recent: Vec<String>,
    },
    /// Nothing bears this name.
    #[error("model '{name}' does not exist here{}", listed("known", known))]
    NotFound {
        /// The name asked for.
        name: String,
        /// Names there are.
        known: Vec<String>,
    },
    /// Everything is being unloaded for good.
    #[error("the server is shutting down; ask another one")]
    ShuttingDown,
}

/// Why no replica takes a request.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Unavailable {
    /// It is being loaded, or in line for it.
    #[error("model '{name}' is loading, {:.0} % done; try again soon", progress * 100.0)]
    Loading {
        /// The model asked for.
        name: String,
        /// The share done of the furthest replica, 0 to 1.
        progress: f32,
    },
    /// It is known and could be loaded.
    #[error("model '{name}' is not loaded; load it first")]
    NotLoaded {
        /// The model asked for.
        name: String,
    },
    /// It is on its way out.
    #[error("model '{name}' is being unloaded; load it again afterwards")]
    Draining {
        /// The model asked for.
        name: String,
    },
    /// It was unloaded while the request waited for it.
    #[error("the model was unloaded while this request waited for it; ask again to have it loaded")]
    Cancelled,
    /// Its load failed, or it broke.
    #[error("model '{name}' failed: {reason}; {}", after(retry_in))]
    Failed {
        /// The model asked for.
        name: String,
        /// What was reported.
        reason: String,
        /// How long from now a request may start the next load; `None` if only an explicit load can.
        retry_in: Option<Duration>,
    },
    /// It cannot be loaded.
    #[error(transparent)]
    Refused(#[from] RegistryError),
}

impl Unavailable {
    /// Whether a request that waits can hope: the model is loading, or others may come to be idle and make
    /// room.
    pub fn worth_waiting(&self) -> bool {
        match self {
            Self::Loading { .. } => true,
            Self::Refused(RegistryError::NoRoomNow { busy, recent, .. }) => {
                !busy.is_empty() || !recent.is_empty()
            }
            _ => false,
        }
    }
}

fn listed(what: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(", {what}: {}", names.join(", ")) }
}

fn after(retry_in: &Option<Duration>) -> String {
    match retry_in {
        Some(pause) => format!("the next request after {} s tries again", pause.as_secs_f32().ceil()),
        None => "load it again once the cause is gone".to_owned(),
    }
}
