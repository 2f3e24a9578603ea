//! The disk tier of `lichen serve`: a bounded folder for the state that caches give up, shared by all models.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use lichen_backend::KvPrecision;
use lichen_engine::{ColdTier, Engine, LeavingPage, TakePage};
use lichen_hub::HubConfig;
use lichen_session::{
    BlobError, EntryKey, ModelTag, OpenReport, PAGE_TOKENS, Page, Profile, SectionName, Store, StoreError,
    digest, encoded_bytes,
};
use serde_json::{Value, json};

use crate::commands::serve::size;
use crate::memory::metric;
use crate::{output, sessions};

/// Most reasons that are told; a folder that fails in more ways has been told of.
const MOST_TOLD: usize = 32;
/// Longest time that engines which are ending are waited for.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at them.
const GLANCE: Duration = Duration::from_millis(2);

/// Where state goes that memory has no room for.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SpillArgs {
    /// Folder for the state of texts that memory has no room for, and of those that are there when the server stops.
    /// One server at a time uses it; it holds what people wrote, readable by its owner only [default: spill in the
    /// folder of models]
    #[arg(long, env = "LICHEN_SPILL_DIR", value_name = "DIR")]
    spill_dir: Option<PathBuf>,

    /// Most bytes of that folder, such as 8G; 0 turns it off. The default holds 30 texts of 1,000 tokens of a model with
    /// 8B parameters and hundreds of one with 0.5B, is read in seconds, and few disks miss it
    #[arg(long, env = "LICHEN_SPILL_BUDGET", value_name = "SIZE", default_value = "4G", value_parser = size)]
    spill_budget: u64,
}

/// The folder, and what has come of it.
pub(crate) struct SpillFolder {
    store: Store,
    path: PathBuf,
    /// Nothing is written any more.
    closed: AtomicBool,
    /// Engines with their tiers, which go when all is written.
    users: Mutex<Vec<(Weak<Engine>, Weak<ModelTier>)>>,
    told: Mutex<BTreeSet<String>>,
    writes: AtomicU64,
    restored: AtomicU64,
    failed: AtomicU64,
    open_errors: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
}

/// The folder as one model sees it.
pub(crate) struct ModelTier {
    folder: Arc<SpillFolder>,
    profile: Profile,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Entries are put in whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl SpillArgs {
    /// Opens the folder; `None` if there is to be none. One that can't be used is told of: requests are served without.
    pub(crate) fn open(&self) -> Option<Arc<SpillFolder>> {
        if self.spill_budget == 0 {
            return None;
        }
        let path = self.spill_dir.clone().unwrap_or_else(|| HubConfig::from_env().home.join("spill"));
        match Store::open(&path, self.spill_budget) {
            Ok((store, report)) => Some(Arc::new(SpillFolder::new(store, path, &report))),
            Err(error) => {
                output::note(format_args!(
                    "state that memory has no room for is not kept: {error}; --spill-dir names another folder"
                ));
                None
            }
        }
    }
}

impl SpillFolder {
    fn new(store: Store, path: PathBuf, report: &OpenReport) -> Self {
        let folder = Self {
            store,
            path,
            closed: AtomicBool::new(false),
            users: Mutex::default(),
            told: Mutex::default(),
            writes: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            open_errors: AtomicU64::new(0),
            read_errors: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        };
        for refused in &report.refused {
            folder.note(&folder.open_errors, "take over", &refused.file, &refused.reason);
        }
        folder
    }

    /// Notes an engine that uses the folder, to be retired with it.
    pub(crate) fn join(&self, engine: &Arc<Engine>, tier: Weak<ModelTier>) {
        let mut users = lock(&self.users);
        users.retain(|(_, tier)| tier.strong_count() > 0);
        users.push((Arc::downgrade(engine), tier));
    }

    /// Writes what the caches of all engines hold, and waits until it is there. Engines that are ending at this moment
    /// do so by themselves, and are waited for.
    pub(crate) fn retire(&self) {
        let users = std::mem::take(&mut *lock(&self.users));
        users.iter().filter_map(|(engine, _)| engine.upgrade()).for_each(|engine| engine.retire());
        let until = Instant::now() + LAST_PATIENCE;
        while users.iter().any(|(_, tier)| tier.strong_count() > 0) && Instant::now() < until {
            std::thread::sleep(GLANCE);
        }
    }

    /// Writes nothing more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Counts an error, and tells its reason if it is new.
    fn note(&self, counter: &AtomicU64, action: &str, file: &str, reason: &str) {
        count(counter);
        let mut told = lock(&self.told);
        if told.len() < MOST_TOLD && told.insert(format!("{action} {reason}")) {
            let path = self.path.join(file);
            output::note(format_args!(
                "cannot {action} {}: {reason}; what it is for is computed again",
                path.display()
            ));
        }
    }

    fn note_error(&self, counter: &AtomicU64, action: &str, key: EntryKey, error: &StoreError) {
        let reason = match error {
            // Without the name of the file, which is another one each time.
            StoreError::NoSpace { .. } => "no space left".to_owned(),
            StoreError::Io { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        self.note(counter, action, &format!("{key}.session"), &reason);
    }

    /// What people are told of it.
    pub(crate) fn report(&self) -> Value {
        let stats = self.store.stats();
        json!({
            "dir": self.path.display().to_string(),
            "budget_bytes": stats.limit,
            "bytes": stats.bytes,
            "entries": stats.entries,
        })
    }

    /// The same as metrics.
    pub(crate) fn metrics(&self, text: &mut String) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let labelled = |label: &str, rows: &[(&str, &AtomicU64)]| -> Vec<(String, f64)> {
            rows.iter().map(|(name, counter)| (format!("{{{label}=\"{name}\"}}"), get(counter))).collect()
        };
        let bytes = [(String::new(), self.store.stats().bytes as f64)];
        metric(text, "lichen_spill_bytes", "gauge", "Bytes of state on disk.", &bytes);
        let writes = [(String::new(), get(&self.writes))];
        metric(text, "lichen_spill_writes_total", "counter", "Texts whose state went to disk.", &writes);
        let reads = labelled("result", &[("restored", &self.restored), ("failed", &self.failed)]);
        metric(text, "lichen_spill_reads_total", "counter", "Texts whose state was asked for.", &reads);
        let errors =
            [("open", &self.open_errors), ("read", &self.read_errors), ("write", &self.write_errors)];
        let help = "Operations on the folder that failed.";
        metric(text, "lichen_spill_errors_total", "counter", help, &labelled("op", &errors));
    }
}

impl ModelTier {
    /// The tier of a model whose keys and values are stored in this precision while memory is not short. With another
    /// precision it is another model here: no restart brings back what is coarser than asked for.
    pub(crate) fn new(folder: Arc<SpillFolder>, profile: Profile, precision: KvPrecision) -> Self {
        let tag = digest([profile.model.as_bytes().as_slice(), precision.name().as_bytes()]);
        Self { folder, profile: Profile { model: ModelTag::from_bytes(tag), ..profile } }
    }

    /// The name of a text.
    fn key(&self, tokens: &[u32]) -> EntryKey {
        let tokens = tokens.iter().flat_map(|token| token.to_le_bytes());
        let name: Vec<u8> = self.profile.model.as_bytes().iter().copied().chain(tokens).collect();
        EntryKey::of(&name)
    }

    /// The entry that is a beginning of these tokens and nothing more.
    fn beginning(&self, tokens: &[u32]) -> Option<EntryKey> {
        let found = self.folder.store.longest_prefix(&self.profile.model, tokens)?;
        let same = |tokens: u64| found.tokens == tokens;
        let entries = self.folder.store.list();
        entries.iter().any(|entry| entry.key == found.key && same(entry.tokens)).then_some(found.key)
    }
}

impl ColdTier for ModelTier {
    fn find(&self, tokens: &[u32]) -> usize {
        let found = self.folder.store.longest_prefix(&self.profile.model, tokens);
        found.map_or(0, |found| found.tokens as usize)
    }

    fn write(&self, tokens: &[u32], sizes: &[u64], pages: &mut dyn Iterator<Item = LeavingPage>) {
        let folder = &self.folder;
        if folder.closed.load(Ordering::Relaxed) {
            return;
        }
        let (key, beginning) = (self.key(tokens), self.beginning(tokens));
        let bytes = encoded_bytes(std::iter::once(tokens.len() as u64 * 4).chain(sizes.iter().copied()));
        let written = folder.store.put(key, &self.profile, bytes, |writer| {
            writer.tokens(tokens)?;
            for page in pages {
                let precision = sessions::number(page.precision);
                writer.page(Page { precision, tokens: PAGE_TOKENS }, &page.bytes)?;
            }
            Ok(())
        });
        match written {
            Ok(()) => {
                count(&folder.writes);
                // What is in the new entry too is not needed twice. If it can't be removed, it leaves with its age.
                if let Some(beginning) = beginning.filter(|&beginning| beginning != key)
                    && self.find(tokens) == tokens.len()
                {
                    let _ = folder.store.remove(beginning);
                }
            }
            Err(error) => folder.note_error(&folder.write_errors, "write", key, &error),
        }
    }

    fn forget(&self, tokens: &[u32]) {
        for end in (0..=tokens.len()).step_by(PAGE_TOKENS as usize).skip(1) {
            let key = self.key(&tokens[..end]);
            if let Err(error) = self.folder.store.remove(key) {
                self.folder.note_error(&self.folder.write_errors, "remove", key, &error);
            }
        }
    }

    fn read(&self, tokens: &[u32], take: &mut TakePage<'_>) -> bool {
        let folder = &self.folder;
        let Some(found) = folder.store.longest_prefix(&self.profile.model, tokens) else { return true };
        let count_of_pages = (found.tokens / PAGE_TOKENS) as usize;
        let mut malformed = None;
        let read = folder.store.get(found.key, &self.profile, |blob| {
            if !blob.tokens().starts_with(&tokens[..found.tokens as usize]) {
                let reason = "these are not the tokens that it was written for";
                return Err(BlobError::Layout { section: SectionName::Tokens, reason });
            }
            let mut bytes = Vec::new();
            for (index, page) in blob.pages().into_iter().take(count_of_pages).enumerate() {
                blob.read_page(index, &mut bytes)?;
                match take(sessions::precision(page.precision), &bytes) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        malformed = Some(error);
                        break;
                    }
                }
            }
            Ok(())
        });
        let useless = match (read, malformed) {
            // Given up since it was found.
            (Ok(None), _) => return true,
            (Ok(Some(())), None) => {
                count(&folder.restored);
                return true;
            }
            (Ok(Some(())), Some(error)) => {
                let name = format!("{}.session", found.key);
                folder.note(&folder.read_errors, "use", &name, &error.to_string());
                true
            }
            (Err(error), _) => {
                folder.note_error(&folder.read_errors, "read", found.key, &error);
                matches!(error, StoreError::Blob(_))
            }
        };
        count(&folder.failed);
        if useless {
            // It would fail again. What can't be removed leaves with its age.
            let _ = folder.store.remove(found.key);
        }
        false
    }
}
