//! What can be wrong with a model file.

use std::io;
use std::path::PathBuf;

/// Why a model file could not be opened. The message is one line and names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The file could not be opened or mapped.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The path is a folder, a pipe or a device.
    #[error("{}: not a regular file: pass the path of a .gguf file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The content is broken or not supported.
    #[error("{}: {fault}", path.display())]
    Content {
        /// The file, or `<memory>` for bytes without one.
        path: PathBuf,
        /// What is wrong with it.
        fault: Fault,
    },
}

/// What is wrong with the content of a GGUF file. Names from the file are quoted and shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with {found:02x?}")]
    Magic {
        /// The bytes found.
        found: [u8; 4],
    },
    /// The version number has its bytes swapped.
    #[error("a big-endian GGUF file: convert it to little-endian")]
    BigEndian,
    /// A version other than 2 and 3.
    #[error("GGUF version {version} is not supported: convert it to version 3")]
    Version {
        /// The version found.
        version: u32,
    },
    /// The file holds one part of a split model.
    #[error("one of {parts} parts of a split model: merge them first (llama-gguf-split --merge)")]
    Split {
        /// The number of parts.
        parts: u32,
    },
    /// The file ends inside a field.
    #[error("truncated: {what} at byte {at} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Where it starts.
        at: usize,
        /// Bytes it takes.
        needed: u64,
        /// Bytes that are there.
        left: usize,
    },
    /// A count is larger than the rest of the file could hold.
    #[error("{count} {what} announced at byte {at}, but the {left} bytes left can't hold them")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number announced.
        count: u64,
        /// Where the counted things start.
        at: usize,
        /// Bytes that are there.
        left: usize,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Utf8 {
        /// The string.
        what: &'static str,
        /// Where it starts.
        at: usize,
    },
    /// A key or tensor name is longer than the format allows.
    #[error("{what} at byte {at} has {len} bytes, more than {max}")]
    NameLength {
        /// The name.
        what: &'static str,
        /// Where it starts.
        at: usize,
        /// Its length in bytes.
        len: usize,
        /// The longest allowed.
        max: usize,
    },
    /// A metadata key occurs twice.
    #[error("metadata key {key} occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A metadata value has a type that GGUF doesn't have.
    #[error("metadata {key}: unknown value type {id}")]
    ValueType {
        /// The key.
        key: String,
        /// The type number found.
        id: u32,
    },
    /// A bool is neither 0 nor 1.
    #[error("metadata {key}: {byte} is no bool")]
    Bool {
        /// The key.
        key: String,
        /// The byte found.
        byte: u8,
    },
    /// Arrays are nested too deep.
    #[error("metadata {key}: arrays nested deeper than {max}")]
    Nesting {
        /// The key.
        key: String,
        /// The deepest nesting allowed.
        max: usize,
    },
    /// `general.alignment` can't be used.
    #[error("general.alignment is {found}: expected a power of two as u32")]
    Alignment {
        /// The value found.
        found: String,
    },
    /// A tensor name occurs twice.
    #[error("tensor {name} occurs twice")]
    DuplicateTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor has too many dimensions.
    #[error("tensor {name}: {rank} dimensions, more than {max}")]
    Rank {
        /// The tensor.
        name: String,
        /// Its number of dimensions.
        rank: u32,
        /// The largest number allowed.
        max: u32,
    },
    /// A tensor has a dimension of 0.
    #[error("tensor {name}: dimension {axis} is 0")]
    ZeroDimension {
        /// The tensor.
        name: String,
        /// The dimension, in ggml's order.
        axis: usize,
    },
    /// A tensor type that is not supported.
    #[error("tensor {name}: ggml type {id} is not supported: requantise the model, to q8_0 for instance")]
    TensorType {
        /// The tensor.
        name: String,
        /// The ggml type number found.
        id: u32,
    },
    /// The rows of a tensor don't fill whole blocks.
    #[error("tensor {name}: rows of {row} values don't fill {dtype} blocks of {}", dtype.block_len())]
    PartialBlock {
        /// The tensor.
        name: String,
        /// Values in a row.
        row: u64,
        /// Its type.
        dtype: lichen_tensor::DType,
    },
    /// The size of a tensor overflows.
    #[error("tensor {name}: shape {shape:?} overflows")]
    Overflow {
        /// The tensor.
        name: String,
        /// Its shape, outermost dimension first.
        shape: Vec<u64>,
    },
    /// The offset of a tensor is not aligned.
    #[error("tensor {name}: offset {offset} is no multiple of the alignment {alignment}")]
    Unaligned {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// The alignment of the file.
        alignment: u32,
    },
    /// The bytes of a tensor reach past the end of the file.
    #[error("truncated: tensor {name} has {len} bytes at offset {offset} of the data, which has {available}")]
    OutOfFile {
        /// The tensor.
        name: String,
        /// Its offset from the start of the data.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// Bytes of data in the file.
        available: usize,
    },
    /// Two tensors share bytes.
    #[error("tensors {first} and {second} overlap")]
    Overlap {
        /// The tensor that starts first.
        first: String,
        /// The tensor that starts inside it.
        second: String,
    },
}

/// A name from the file as messages show it: quoted, control characters escaped, shortened.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 80;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &name[..end]),
        None => format!("{name:?}"),
    }
}
