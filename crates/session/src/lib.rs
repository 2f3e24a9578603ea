//! The state of a conversation outside of memory: a portable blob, and a bounded folder that keeps such
//! blobs.
//!
//! A blob is written by [`BlobWriter`] and read by [`BlobReader`], both against the [`Profile`] of the loaded
//! model. [`Store`] is the disk tier: cold sessions and prefixes, by key and by longest common prefix. Blobs
//! are foreign input: sizes are checked before memory is taken, and nothing leaves the reader before its
//! checksum held.

mod blob;
mod identity;
mod store;

pub use blob::{
    BlobError, BlobReader, BlobWriter, FORMAT_VERSION, Header, PAGE_TOKENS, Page, Profile, SectionName,
    StateAt, encoded_bytes, read_tokens,
};
pub use identity::{ModelTag, NumericsTag, TensorIdentity, digest, model_tag, numerics_tag};
pub use store::{
    DiskFolder, EntryKey, OpenReport, PrefixMatch, Refused, SpillRead, SpillStorage, SpillWrite, Store,
    StoreError, StoreStats, StoredBlob, StoredEntry, StoredFile,
};
