//! The disk tier: a bounded folder of blobs.

mod error;
mod index;
mod prefix;
mod storage;
mod tier;

pub use error::StoreError;
pub use index::{EntryKey, StoredEntry};
pub use prefix::PrefixMatch;
pub use storage::{DiskFolder, SpillRead, SpillStorage, SpillWrite, StoredFile};
pub use tier::{OpenReport, Refused, Store, StoreStats, StoredBlob};
