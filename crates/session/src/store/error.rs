//! What can go wrong with the store.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use crate::BlobError;

/// Error of the store. The way out is always the same: compute the state again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has the folder.
    #[error("the session folder {} is in use by another process: give each its own", path.display())]
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// The disk is full, or a quota is.
    #[error(
        "no space left for sessions (cannot {action} {file}): free some, or lower the limit of the folder"
    )]
    NoSpace {
        /// The operation, as a verb.
        action: &'static str,
        /// File within the folder.
        file: String,
    },
    /// A file operation failed.
    #[error("cannot {action} {file}: {source}")]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// File within the folder, or the folder.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A blob that the limit has no room for, even with all other entries gone.
    #[error(
        "a session of {bytes} bytes does not fit: {available} of {limit} bytes can be freed; raise the limit"
    )]
    TooLarge {
        /// Bytes announced.
        bytes: u64,
        /// Bytes that are not being written by others.
        available: u64,
        /// Limit of the folder.
        limit: u64,
    },
    /// More was written than announced.
    #[error("more than the {announced} bytes were written that were announced for the session")]
    Overrun {
        /// Bytes announced.
        announced: u64,
    },
    /// The blob is damaged or belongs to another model.
    #[error(transparent)]
    Blob(BlobError),
}

impl StoreError {
    /// Wraps a system error with the operation and the file it happened on.
    pub(super) fn io(action: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace { action, file },
            _ => Self::Io { action, file, source },
        }
    }

    /// Wraps an error of a blob, whose system errors happened while doing `action`.
    pub(super) fn blob(action: &'static str, file: &str) -> impl FnOnce(BlobError) -> Self {
        move |error| match error {
            BlobError::Io(source) => Self::io(action, file)(source),
            error => Self::Blob(error),
        }
    }
}
