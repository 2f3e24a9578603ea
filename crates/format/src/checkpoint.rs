//! An open model file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use lichen_tensor::{DType, SharedBytes};

use crate::error::{Fault, FormatError};
use crate::gguf;
use crate::metadata::Metadata;
use crate::mmap::Mapping;

/// A tensor of a checkpoint.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name in the file; unique in its checkpoint.
    pub name: String,
    /// How values are stored. Rows (the last dimension) are whole blocks.
    pub dtype: DType,
    /// Lengths of the dimensions, outermost first (ggml's order reversed); at most 4, none of them 0.
    pub shape: Vec<u64>,
    pub(crate) bytes: SharedBytes,
}

/// A model file: metadata and tensors.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Checkpoint {
    /// Values by key.
    pub metadata: Metadata,
    /// The tensors, in the order of the file.
    pub tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    mapping: Option<Mapping>,
}

impl Checkpoint {
    /// Maps a GGUF file (version 2 or 3) and reads its header. Tensor data is not touched.
    ///
    /// The file must not be changed or truncated while the checkpoint or bytes of it are in use.
    ///
    /// # Errors
    ///
    /// If the file can't be read, or its header is broken or not supported.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let io = |source| FormatError::Io { path: path.to_owned(), source };
        // Asked before opening: opening a pipe would wait for a writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(FormatError::NotAFile { path: path.to_owned() });
        }
        let mapping = Mapping::of(File::open(path).map_err(io)?).map_err(io)?;
        let checkpoint = Self::from_gguf(&mapping.bytes());
        let checkpoint = checkpoint.map_err(|fault| FormatError::Content { path: path.to_owned(), fault })?;
        Ok(Self { mapping: Some(mapping), ..checkpoint })
    }

    /// Reads the header of a GGUF file that is in memory already.
    ///
    /// # Errors
    ///
    /// If the header is broken or not supported; the message has `<memory>` for a file name.
    pub fn parse(bytes: SharedBytes) -> Result<Self, FormatError> {
        let path = PathBuf::from("<memory>");
        Self::from_gguf(&bytes).map_err(|fault| FormatError::Content { path, fault })
    }

    fn from_gguf(bytes: &SharedBytes) -> Result<Self, Fault> {
        let gguf::Content { metadata, tensors, by_name } = gguf::parse(bytes)?;
        Ok(Self { metadata, tensors, by_name, mapping: None })
    }

    /// The mapped file, unless the bytes came from memory.
    pub fn mapping(&self) -> Option<&Mapping> {
        self.mapping.as_ref()
    }

    /// The tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let &index = self.by_name.get(name)?;
        self.tensors.get(index)
    }

    /// The stored bytes of a tensor, row after row; they stay mapped for as long as the result lives.
    pub fn data(&self, tensor: &TensorInfo) -> SharedBytes {
        tensor.bytes.clone()
    }
}
