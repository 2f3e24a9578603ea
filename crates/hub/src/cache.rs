//! Lichen's own cache: `models/KIND/…/FILE`, each file with a record beside it, and one lock a file.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::part::{Arrived, remove_if_there, with_suffix};
use crate::reference::url_file_name;
use crate::{CatalogueEntry, HubError, Progress, Reference, Result, digest};

/// Suffix of the record beside a file.
const RECORD: &str = ".lichen.json";

/// Depth of folders looked into; hub paths may have a few levels of their own.
const MAX_DEPTH: usize = 16;

/// Largest record read, in bytes.
const MAX_RECORD: u64 = 1 << 16;

/// One file of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Reference it was pulled by, with the file and the revision filled in.
    pub reference: String,
    /// Where it is.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Digest when it was pulled, lower-case hex.
    pub sha256: String,
}

#[derive(Serialize, Deserialize)]
struct Record {
    reference: String,
    bytes: u64,
    sha256: String,
}

/// The folder and its layout.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Exclusive right to one file of the cache, across processes, until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// Place of a catalogue model.
    pub(crate) fn catalogue_path(&self, entry: &CatalogueEntry) -> PathBuf {
        self.models().join("catalogue").join(&entry.name).join(&entry.file)
    }

    /// Place of a file of the hub.
    pub(crate) fn hf_path(&self, owner: &str, repo: &str, revision: &str, file: &str) -> PathBuf {
        self.models().join("hf").join(owner).join(repo).join(revision.replace('/', "--")).join(file)
    }

    /// Place of a file with an address; the digest keeps equal names of different addresses apart.
    pub(crate) fn url_path(&self, url: &str) -> PathBuf {
        let name = url_file_name(url).unwrap_or("model");
        self.models().join("url").join(&digest::of_text(url)[..16]).join(name)
    }

    /// Place of a file of a wheel.
    pub(crate) fn pip_path(&self, package: &str, version: &str, file: &str) -> PathBuf {
        self.models().join("pip").join(format!("{package}=={version}")).join(file)
    }

    /// Takes the lock of a file, and says so if another process has it.
    pub(crate) fn lock(&self, path: &Path, progress: &dyn Progress) -> Result<Lock> {
        let folder = self.root.join("locks");
        fs::create_dir_all(&folder).map_err(HubError::io("create", &folder))?;
        // Locks stay: removing one that another process has just opened would leave two holders.
        let key = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy();
        let lock_path = folder.join(format!("{}.lock", digest::of_text(&key)));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(HubError::io("open", &lock_path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.message(&format!("waiting for another pull of {}", path.display()));
                file.lock().map_err(HubError::io("lock", &lock_path))?;
            }
            Err(TryLockError::Error(error)) => return Err(HubError::io("lock", &lock_path)(error)),
        }
        Ok(Lock { _file: file })
    }

    /// The file at `path` if it was pulled completely.
    pub(crate) fn get(&self, path: &Path) -> Option<CachedModel> {
        let record_path = with_suffix(path, RECORD);
        let small = fs::metadata(&record_path).is_ok_and(|meta| meta.len() <= MAX_RECORD);
        let text = small.then(|| fs::read_to_string(&record_path).ok()).flatten()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let meta = fs::metadata(path).ok()?;
        (meta.is_file() && meta.len() == record.bytes).then(|| CachedModel {
            reference: record.reference,
            path: path.to_owned(),
            bytes: record.bytes,
            sha256: record.sha256,
        })
    }

    /// Records that the file at `path` is complete.
    pub(crate) fn record(&self, path: &Path, reference: &str, arrived: Arrived) -> Result<CachedModel> {
        let Arrived { bytes, sha256 } = arrived;
        let record = Record { reference: reference.to_owned(), bytes, sha256: sha256.clone() };
        let text = serde_json::to_string(&record)
            .map_err(|error| HubError::io("write", path)(std::io::Error::other(error)))?;
        let (temporary, target) = (with_suffix(path, ".lichen.tmp"), with_suffix(path, RECORD));
        fs::write(&temporary, text).map_err(HubError::io("write", &temporary))?;
        fs::rename(&temporary, &target).map_err(HubError::io("rename", &temporary))?;
        Ok(CachedModel { reference: record.reference, path: path.to_owned(), bytes, sha256 })
    }

    /// All complete files, by reference.
    pub(crate) fn list(&self) -> Result<Vec<CachedModel>> {
        let mut found = Vec::new();
        self.walk(&self.models(), MAX_DEPTH, &mut found)?;
        found.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(found)
    }

    fn walk(&self, folder: &Path, depth: usize, found: &mut Vec<CachedModel>) -> Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(HubError::io("read", folder))?,
        };
        for entry in entries {
            let entry = entry.map_err(HubError::io("read", folder))?;
            let path = entry.path();
            // The type of the entry itself, so that a link does not lead out of the cache.
            let kind = entry.file_type().map_err(HubError::io("read", &path))?;
            if kind.is_dir() && depth > 0 {
                self.walk(&path, depth - 1, found)?;
            } else if let Some(model) = path.to_str().and_then(|text| text.strip_suffix(RECORD)) {
                found.extend(self.get(Path::new(model)));
            }
        }
        Ok(())
    }

    /// Removes a file, its record and what an unfinished transfer left; returns the bytes freed.
    pub(crate) fn remove(&self, path: &Path) -> Result<u64> {
        let _lock = self.lock(path, &crate::Silent)?;
        let mut freed = 0;
        // The record goes first: without it nothing counts as complete.
        for suffix in [RECORD, "", ".part", ".part.etag", ".lichen.tmp"] {
            let path = with_suffix(path, suffix);
            freed += fs::metadata(&path).map_or(0, |meta| meta.len());
            remove_if_there(&path)?;
        }
        let models = self.models();
        for folder in path.ancestors().skip(1).take_while(|folder| **folder != *models) {
            // Stops at the first folder that holds something else.
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
        Ok(freed)
    }

    /// Whether anything of `path` is there, complete or not.
    pub(crate) fn has_any(&self, path: &Path) -> bool {
        path.exists() || with_suffix(path, ".part").exists()
    }

    /// Complete files of one revision of a hub repository.
    pub(crate) fn of_repository(&self, owner: &str, repo: &str, revision: &str) -> Result<Vec<CachedModel>> {
        let mut found = Vec::new();
        self.walk(&self.hf_path(owner, repo, revision, ""), MAX_DEPTH, &mut found)?;
        Ok(found)
    }

    /// The file name of `model` within its repository.
    pub(crate) fn file_in_repository(model: &CachedModel) -> Option<String> {
        match model.reference.parse() {
            Ok(Reference::HuggingFace { file, .. }) => file,
            _ => None,
        }
    }
}
