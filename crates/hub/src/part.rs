//! A file on its way: bytes collect in `FILE.part` and become `FILE` only when they are the right ones.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{HubError, Result, digest};

/// What is known about a file before it arrives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// Digest, lower-case hex.
    pub(crate) sha256: Option<String>,
    /// Size in bytes.
    pub(crate) bytes: Option<u64>,
}

/// A file that arrived whole.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// The partial file of a destination; the caller holds the lock of that destination.
#[derive(Debug)]
pub(crate) struct Part {
    file: File,
    path: PathBuf,
    etag_path: PathBuf,
    destination: PathBuf,
    hasher: Sha256,
    length: u64,
}

impl Part {
    /// Opens what an earlier transfer left, or an empty part, and creates the folders above it.
    pub(crate) fn open(destination: &Path) -> Result<Self> {
        if let Some(parent) = destination.parent() {
            fs::create_dir_all(parent).map_err(HubError::io("create", parent))?;
        }
        let path = with_suffix(destination, ".part");
        let file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(HubError::io("open", &path))?;
        let mut hasher = Sha256::new();
        let length = digest::update_from_file(&mut hasher, &path)?;
        let etag_path = with_suffix(destination, ".part.etag");
        Ok(Self { file, path, etag_path, destination: destination.to_owned(), hasher, length })
    }

    /// Bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Entity tag of the content the bytes belong to.
    pub(crate) fn etag(&self) -> Option<String> {
        fs::read_to_string(&self.etag_path).ok().filter(|etag| !etag.is_empty())
    }

    /// Records the entity tag; a weak one does not identify bytes and is dropped.
    pub(crate) fn set_etag(&self, etag: Option<&str>) -> Result<()> {
        let strong = etag.filter(|etag| !etag.starts_with("W/") && etag.len() <= 512).unwrap_or("");
        fs::write(&self.etag_path, strong).map_err(HubError::io("write", &self.etag_path))
    }

    /// Starts again from nothing.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(HubError::io("truncate", &self.path))?;
        self.hasher = Sha256::new();
        self.length = 0;
        self.set_etag(None)
    }

    /// Adds bytes at the end.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(HubError::io("write", &self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Removes the part and what belongs to it.
    pub(crate) fn discard(&self) -> Result<()> {
        remove_if_there(&self.etag_path)?;
        remove_if_there(&self.path)
    }

    /// Checks size and digest and moves the part to its destination; discards it if they are wrong.
    pub(crate) fn commit(self, expected: &Expected, what: &str) -> Result<Arrived> {
        let sha256 = digest::finish(self.hasher.clone());
        let wrong = match expected {
            Expected { bytes: Some(bytes), .. } if *bytes != self.length => {
                Some(HubError::Size { what: what.to_owned(), expected: *bytes, actual: self.length })
            }
            Expected { sha256: Some(digest), .. } if *digest != sha256 => Some(HubError::Checksum {
                what: what.to_owned(),
                expected: digest.clone(),
                actual: sha256.clone(),
            }),
            _ => None,
        };
        if let Some(error) = wrong {
            self.discard()?;
            return Err(error);
        }
        self.file.sync_all().map_err(HubError::io("write", &self.path))?;
        fs::rename(&self.path, &self.destination).map_err(HubError::io("rename", &self.path))?;
        remove_if_there(&self.etag_path)?;
        Ok(Arrived { bytes: self.length, sha256 })
    }
}

/// `path` with `suffix` behind its file name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Removes a file; that it is not there is no error.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
