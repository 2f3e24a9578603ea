//! Reads model files into a [`Checkpoint`]: metadata by key, tensors by name, tensor bytes without a copy.
//!
//! Files are foreign input: each size is checked against the bytes that are there before it is used, and a
//! broken file gives a [`FormatError`] that names the file and the fault in one line.

mod checkpoint;
mod cursor;
mod error;
mod gguf;
mod logits;
mod metadata;
mod mmap;
mod value;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use error::{Fault, FormatError};
pub use logits::{LogitNumber, LogitsError, LogitsHeader, LogitsReader, LogitsWriter, tokens_hash};
pub use metadata::Metadata;
pub use mmap::Mapping;
pub use value::{Array, Strings, Value};
