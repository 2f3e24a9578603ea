//! Refusals in words that users see.

use lichen_api::Error;
use lichen_registry::{RegistryError, Unavailable};

use super::Host;

/// Seconds after which a client should ask again for a model that loads.
const LOADING_RETRY_AFTER: u64 = 2;

impl Host {
    pub(super) fn refusal(&self, why: Unavailable) -> Error {
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
}

pub(super) fn refused(error: RegistryError) -> Error {
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
