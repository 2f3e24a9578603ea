//! The folder behind the store, as a seam: tests put failing ones in its place.

use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::StoreError;

/// Held for as long as a process has the folder.
const LOCK: &str = "lock";

/// A file that is read.
pub trait SpillRead: Read + Seek + Send {}

impl<T: Read + Seek + Send> SpillRead for T {}

/// A file that is written.
pub trait SpillWrite: Write + Send {
    /// Returns once the bytes are on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// An entry of the folder.
#[derive(Debug, Clone)]
pub struct StoredFile {
    /// Its name within the folder.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last written or touched.
    pub modified: SystemTime,
    /// Whether it is a file, not a folder, link or device.
    pub is_regular: bool,
}

/// A flat folder of files. Names are made by the store, of hex digits and a suffix.
pub trait SpillStorage: Debug + Send + Sync {
    /// What is in the folder.
    fn list(&self) -> io::Result<Vec<StoredFile>>;
    /// Creates a file that is not there yet.
    fn create(&self, name: &str) -> io::Result<Box<dyn SpillWrite>>;
    /// Opens a regular file for reading; a link is not followed.
    fn open(&self, name: &str) -> io::Result<Box<dyn SpillRead>>;
    /// Gives a file its name for good, in one step, in place of one that had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Returns once names given before are on the disk.
    fn sync(&self) -> io::Result<()>;
    /// Removes a file, or a link itself.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Marks a file as used now.
    fn touch(&self, name: &str) -> io::Result<()>;
}

/// A folder of the file system, readable by its owner only, locked against other processes until dropped.
#[derive(Debug)]
pub struct DiskFolder {
    path: PathBuf,
    _lock: File,
}

impl DiskFolder {
    /// Opens the folder, and creates it if it isn't there.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let shown = path.display().to_string();
        folder_builder().create(&path).map_err(StoreError::io("create", &shown))?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let lock = private(&mut options)
            .open(path.join(LOCK))
            .map_err(StoreError::io("open the lock of", &shown))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path }),
            Err(TryLockError::Error(source)) => Err(StoreError::io("lock", shown)(source)),
        }
    }

    /// Where the folder is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_regular(&self, name: &str, options: &mut OpenOptions) -> io::Result<File> {
        let file = private(options).open(self.path.join(name))?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
    }
}

impl SpillWrite for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl SpillStorage for DiskFolder {
    fn list(&self) -> io::Result<Vec<StoredFile>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            // Names of the store are ASCII; others are none of its business.
            let Ok(name) = entry.file_name().into_string() else { continue };
            match entry.metadata() {
                Ok(meta) => {
                    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    files.push(StoredFile { name, bytes: meta.len(), modified, is_regular: meta.is_file() });
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SpillWrite>> {
        let file = self.open_regular(name, OpenOptions::new().create_new(true).write(true))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SpillRead>> {
        Ok(Box::new(self.open_regular(name, OpenOptions::new().read(true))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync(&self) -> io::Result<()> {
        // Only Unix lets folders be opened; elsewhere the rename itself has to do.
        if cfg!(unix) { File::open(&self.path)?.sync_all() } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn touch(&self, name: &str) -> io::Result<()> {
        self.open_regular(name, OpenOptions::new().write(true))?.set_modified(SystemTime::now())
    }
}

#[cfg(unix)]
fn folder_builder() -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
}

#[cfg(not(unix))]
fn folder_builder() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    builder
}

/// Files hold what people wrote: only their owner may read them. Links are not followed, and a pipe doesn't
/// block.
#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use nix::fcntl::OFlag;
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600).custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
