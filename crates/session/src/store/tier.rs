//! The store itself.

use std::io::{self, ErrorKind, Write};
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::index::{Entry, Index};
use super::prefix::chain;
use super::storage::StoredFile;
use super::{
    DiskFolder, EntryKey, PrefixMatch, SpillRead, SpillStorage, SpillWrite, StoreError, StoredEntry,
};
use crate::blob::read_tokens;
use crate::{BlobError, BlobReader, BlobWriter, ModelTag, Profile};

/// Suffix of complete files.
const COMPLETE: &str = ".session";
/// Suffix of files that are being written.
const PARTIAL: &str = ".partial";

/// A blob of the store as it is read.
pub type StoredBlob = BlobReader<Box<dyn SpillRead>>;

/// A file that was not taken over when the store was opened.
#[derive(Debug)]
pub struct Refused {
    /// Its name within the folder.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
    /// Whether it was removed; if not, it could not be.
    pub removed: bool,
}

/// What was found when a store was opened.
#[derive(Debug, Default)]
pub struct OpenReport {
    /// Files that an interrupted writer left, removed.
    pub partial: usize,
    /// Files that are no sound blobs under their right names.
    pub refused: Vec<Refused>,
    /// Entries given up because the limit was lowered.
    pub evicted: u64,
}

/// Figures of a store since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreStats {
    /// Entries.
    pub entries: usize,
    /// Bytes of all entries.
    pub bytes: u64,
    /// Most bytes of all entries, those being written counted in.
    pub limit: u64,
    /// Entries given up to make room.
    pub evicted: u64,
    /// Entries whose file was damaged or gone.
    pub damaged: u64,
    /// Entries that could not be written.
    pub write_errors: u64,
    /// Entries that could not be read, for reasons other than damage.
    pub read_errors: u64,
}

#[derive(Debug, Default)]
struct Counters {
    evicted: AtomicU64,
    damaged: AtomicU64,
    write_errors: AtomicU64,
    read_errors: AtomicU64,
}

/// A bounded folder of blobs by key. It is a cache: what it gives up or loses can be computed again. All
/// methods may be called from several threads; one that reads or writes holds up no other.
#[derive(Debug)]
pub struct Store {
    storage: Box<dyn SpillStorage>,
    limit: u64,
    index: Mutex<Index>,
    counters: Counters,
    /// Number of the next partial file.
    writes: AtomicU64,
}

fn complete(key: EntryKey) -> String {
    format!("{key}{COMPLETE}")
}

/// What stands behind the hex digits of a key, if a name begins as those of the store do.
fn suffix(name: &str) -> Option<&str> {
    let (key, suffix) = name.split_at_checked(64)?;
    key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some(suffix)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Store {
    /// Opens a folder for at most `limit` bytes. Leftovers and damaged files are removed and reported.
    pub fn open(path: impl Into<PathBuf>, limit: u64) -> Result<(Self, OpenReport), StoreError> {
        Self::with_storage(Box::new(DiskFolder::open(path)?), limit)
    }

    /// Opens a store on any storage.
    pub fn with_storage(
        storage: Box<dyn SpillStorage>,
        limit: u64,
    ) -> Result<(Self, OpenReport), StoreError> {
        let (index, counters, writes) = (Mutex::default(), Counters::default(), AtomicU64::new(0));
        let store = Self { storage, limit, index, counters, writes };
        let mut report = OpenReport::default();
        let mut files = store.storage.list().map_err(StoreError::io("list", "the session folder"))?;
        files.sort_by(|a, b| (a.modified, &a.name).cmp(&(b.modified, &b.name)));
        for file in files {
            store.take_over(&file, &mut report);
        }
        // No key is spared: nothing is being written yet.
        store.make_room(&mut store.lock(), 0, None)?;
        report.evicted = store.counters.evicted.load(Ordering::Relaxed);
        Ok((store, report))
    }

    /// Puts a file that was there before into the index, or removes it. Files of others are left alone.
    fn take_over(&self, file: &StoredFile, report: &mut OpenReport) {
        let name = &file.name;
        match suffix(name) {
            Some(COMPLETE) => {}
            Some(suffix) if suffix.ends_with(PARTIAL) => match self.storage.remove(name) {
                Ok(()) => return report.partial += 1,
                Err(error) => return self.refuse(name, error.to_string(), false, report),
            },
            _ => return,
        }
        let checked = if file.is_regular { self.read_entry(name) } else { Err(not_regular(name)) };
        match checked {
            Ok(entry) if complete(entry.shown.key) == *name => self.lock().insert(entry),
            Ok(_) => self.refuse(name, "it holds another session".to_owned(), true, report),
            // What can't be read now may be readable later.
            Err(error) => {
                let remove = !matches!(&error, StoreError::Io { .. }) || !file.is_regular;
                self.refuse(name, error.to_string(), remove, report);
            }
        }
    }

    fn refuse(&self, name: &str, reason: String, remove: bool, report: &mut OpenReport) {
        count(&self.counters.damaged);
        let removed = remove && self.storage.remove(name).is_ok();
        report.refused.push(Refused { file: name.to_owned(), reason, removed });
    }

    fn lock(&self) -> MutexGuard<'_, Index> {
        // The index is changed by whole steps that don't panic.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_entry(&self, name: &str) -> Result<Entry, StoreError> {
        let input = self.storage.open(name).map_err(StoreError::io("open", name))?;
        Entry::read(input, u64::MAX).map_err(StoreError::blob("read", name))
    }

    /// Writes an entry, in place of an older one with its key. `bytes` is the most that it will take, see
    /// [`encoded_bytes`](crate::encoded_bytes); the least valuable entries go to make room for it. The entry
    /// is there once this returns, also after a loss of power; until then an older one stays, unless its own
    /// room is needed.
    pub fn put(
        &self,
        key: EntryKey,
        profile: &Profile,
        bytes: u64,
        write: impl FnOnce(&mut BlobWriter<'_, &mut dyn Write>) -> Result<(), BlobError>,
    ) -> Result<(), StoreError> {
        self.try_put(key, profile, bytes, write).inspect_err(|_| count(&self.counters.write_errors))
    }

    fn try_put(
        &self,
        key: EntryKey,
        profile: &Profile,
        bytes: u64,
        write: impl FnOnce(&mut BlobWriter<'_, &mut dyn Write>) -> Result<(), BlobError>,
    ) -> Result<(), StoreError> {
        let partial = self.begin(key, bytes)?;
        let mut output = Announced { file: partial.create()?, left: bytes, overrun: false };
        let written = (|| {
            let mut writer = BlobWriter::new(&mut output as &mut dyn Write, profile, *key.as_bytes(), now())?;
            write(&mut writer)?;
            writer.finish()
        })();
        if output.overrun {
            return Err(StoreError::Overrun { announced: bytes });
        }
        written.map_err(StoreError::blob("write", &partial.name))?;
        output.file.sync().map_err(StoreError::io("sync", &partial.name))?;
        drop(output);
        let entry = self.read_entry(&partial.name)?;
        partial.publish(entry)?;
        self.storage.sync().map_err(StoreError::io("sync", "the session folder"))
    }

    /// Makes room for `bytes` and holds it.
    fn begin(&self, key: EntryKey, bytes: u64) -> Result<Partial<'_>, StoreError> {
        let mut index = self.lock();
        self.make_room(&mut index, bytes, Some(key))?;
        index.reserved += bytes;
        let number = self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(Partial { store: self, name: format!("{key}.{number}{PARTIAL}"), bytes })
    }

    /// Gives up entries until `bytes` more fit, that of `last` only when it is the last.
    fn make_room(&self, index: &mut Index, bytes: u64, last: Option<EntryKey>) -> Result<(), StoreError> {
        let available = self.limit.saturating_sub(index.reserved);
        if bytes > available {
            return Err(StoreError::TooLarge { bytes, available, limit: self.limit });
        }
        while index.bytes > available - bytes {
            let key = index.least_valuable(last).expect("without entries all bytes are available");
            self.discard(index, key)?;
            count(&self.counters.evicted);
        }
        Ok(())
    }

    /// Removes an entry and its file. A file that can't be removed keeps its entry, so that its bytes still
    /// count.
    fn discard(&self, index: &mut Index, key: EntryKey) -> Result<(), StoreError> {
        match self.storage.remove(&complete(key)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError::io("remove", complete(key))(error))
            }
            _ => {
                index.remove(key);
                Ok(())
            }
        }
    }

    /// Reads an entry with `read` and marks it as used; `None` if there is none with this key. A damaged one
    /// is removed. What `read` has taken before it returns an error is to be dropped.
    pub fn get<T>(
        &self,
        key: EntryKey,
        profile: &Profile,
        read: impl FnOnce(&mut StoredBlob) -> Result<T, BlobError>,
    ) -> Result<Option<T>, StoreError> {
        self.read(key, |input| read(&mut BlobReader::open(input, profile)?))
    }

    /// Reads only the tokens of an entry, which are good for the same model whatever its numerics.
    pub fn get_tokens(&self, key: EntryKey, profile: &Profile) -> Result<Option<Vec<u32>>, StoreError> {
        self.read(key, |input| read_tokens(input, profile))
    }

    fn read<T>(
        &self,
        key: EntryKey,
        read: impl FnOnce(Box<dyn SpillRead>) -> Result<T, BlobError>,
    ) -> Result<Option<T>, StoreError> {
        if !self.lock().contains(key) {
            return Ok(None);
        }
        let name = complete(key);
        let value = match self.storage.open(&name) {
            Ok(input) => read(input),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Either just evicted, or taken away by somebody.
                let mut index = self.lock();
                if index.contains(key) {
                    index.remove(key);
                    count(&self.counters.damaged);
                }
                return Ok(None);
            }
            Err(error) => Err(BlobError::Io(error)),
        };
        match &value {
            Ok(_) => {
                self.lock().touch(key);
                // The order after a restart is all that is lost if this fails.
                let _ = self.storage.touch(&name);
            }
            Err(error) if error.is_damage() => {
                count(&self.counters.damaged);
                self.discard(&mut self.lock(), key)?;
            }
            Err(_) => count(&self.counters.read_errors),
        }
        value.map(Some).map_err(StoreError::blob("read", &name))
    }

    /// Removes an entry; whether there was one.
    pub fn remove(&self, key: EntryKey) -> Result<bool, StoreError> {
        let mut index = self.lock();
        let there = index.contains(key);
        if there {
            self.discard(&mut index, key)?;
        }
        Ok(there)
    }

    /// The entry of a model that shares most with the start of `tokens`, in whole chunks of 64 tokens; of
    /// several, that used last. Entries with recurrent layers count only up to where they have a state.
    pub fn longest_prefix(&self, model: &ModelTag, tokens: &[u32]) -> Option<PrefixMatch> {
        let hashes: Vec<_> = chain(model, tokens).collect();
        self.lock().longest_prefix(&hashes)
    }

    /// All entries by key.
    pub fn list(&self) -> Vec<StoredEntry> {
        self.lock().list()
    }

    /// Figures.
    pub fn stats(&self) -> StoreStats {
        let index = self.lock();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            entries: index.len(),
            bytes: index.bytes,
            limit: self.limit,
            evicted: get(&self.counters.evicted),
            damaged: get(&self.counters.damaged),
            write_errors: get(&self.counters.write_errors),
            read_errors: get(&self.counters.read_errors),
        }
    }
}

fn not_regular(name: &str) -> StoreError {
    StoreError::io("open", name)(io::Error::other("not a regular file"))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A file that is being written and the room that it holds; both are given back unless it is published.
struct Partial<'s> {
    store: &'s Store,
    name: String,
    bytes: u64,
}

impl Partial<'_> {
    fn create(&self) -> Result<Box<dyn SpillWrite>, StoreError> {
        self.store.storage.create(&self.name).map_err(StoreError::io("create", &self.name))
    }

    /// Gives the file the name of its entry.
    fn publish(mut self, entry: Entry) -> Result<(), StoreError> {
        let mut index = self.store.lock();
        let name = complete(entry.shown.key);
        self.store.storage.rename(&self.name, &name).map_err(StoreError::io("rename", name))?;
        index.insert(entry);
        // Counted as an entry from here on.
        index.reserved -= mem::take(&mut self.bytes);
        Ok(())
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        // Not there any more if it was published; swept by the next opening if it can't be removed.
        let _ = self.store.storage.remove(&self.name);
        self.store.lock().reserved -= self.bytes;
    }
}

/// Takes no more bytes than were announced.
struct Announced {
    file: Box<dyn SpillWrite>,
    left: u64,
    overrun: bool,
}

impl Write for Announced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            self.overrun = true;
            return Err(io::Error::other("more than announced"));
        }
        let written = self.file.write(bytes)?;
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
