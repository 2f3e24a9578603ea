//! The blob: a versioned container of what a conversation's state consists of.
//!
//! All integers are little-endian, sections begin at multiples of 64 bytes, gaps are zero, and no byte is
//! left that isn't covered by a checksum or checked to be zero.
//!
//! | Part | Bytes |
//! | --- | --- |
//! | header | 128: magic, version, time, tags of model and numerics, id |
//! | sections | tokens first, then pages, states and metadata, each padded to 64 |
//! | table | 72 a section: kind, detail, position, count, offset, length, BLAKE3 of its bytes |
//! | trailer | 64: offset of the table, length of the blob, number of sections, BLAKE3, end mark |
//!
//! The table stands at the end so that a blob is written in one pass to anything that takes bytes. The hash
//! in the trailer covers header, table and trailer, and through the table's hashes all the rest. A page of KV
//! is a section of its own, so that each is verified before it is used and a shorter prefix is read without
//! the rest.
//!
//! Versions: a major version is refused by readers of another; a minor one adds kinds of section only.
//! Unknown kinds with the highest bit set may be skipped, others may not. The meaning of a kind never
//! changes.

mod contents;
mod error;
mod layout;
mod metadata;
mod profile;
mod reader;
mod section;
mod writer;

pub use contents::{Page, StateAt};
pub use error::{BlobError, SectionName};
pub use layout::{FORMAT_VERSION, Header, encoded_bytes};
pub use profile::{PAGE_TOKENS, Profile};
pub(crate) use reader::Container;
pub use reader::{BlobReader, read_tokens};
pub use writer::BlobWriter;
