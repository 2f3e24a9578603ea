//! What the folder holds, in memory: sizes, uses and prefixes. Built from the files alone.

use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Seek};

use super::prefix::{ChunkHash, PrefixIndex, PrefixMatch, chain};
use crate::blob::{Container, PAGE_TOKENS};
use crate::identity::tag;
use crate::{BlobError, ModelTag};

tag! {
    /// Which entry of a store. Made from any bytes by hashing, so that no text of a client becomes a file
    /// name.
    EntryKey
}

impl EntryKey {
    /// The key of a session or prefix with this name.
    pub fn of(name: &[u8]) -> Self {
        Self::from_bytes(blake3::derive_key("lichen session entry v1", name))
    }
}

/// An entry as listings show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its key.
    pub key: EntryKey,
    /// The model whose state it is.
    pub model: ModelTag,
    /// Length of its file.
    pub bytes: u64,
    /// Tokens that it has pages for.
    pub tokens: u64,
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// An entry, as read from its file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) shown: StoredEntry,
    /// Hashes of the prefixes that it can be restored to.
    points: Vec<ChunkHash>,
    /// Number of the last use.
    used: u64,
}

impl Entry {
    /// Reads the frame and the tokens of a blob.
    pub(super) fn read(input: impl Read + Seek, limit: u64) -> Result<Self, BlobError> {
        let mut container = Container::open(input, limit)?;
        let mut tokens = container.read_tokens()?;
        let (header, contents) = (*container.header(), container.contents());
        tokens.truncate(contents.page_tokens() as usize);
        let states: HashSet<u64> = contents.state_positions().collect();
        let restorable = |position| states.is_empty() || states.contains(&position);
        let points = chain(&header.model, &tokens).zip(1..);
        let points =
            points.filter(|&(_, chunks)| restorable(chunks * PAGE_TOKENS)).map(|(hash, _)| hash).collect();
        let shown = StoredEntry {
            key: EntryKey::from_bytes(header.id),
            model: header.model,
            bytes: container.bytes(),
            tokens: contents.page_tokens(),
            created_unix_ms: header.created_unix_ms,
        };
        Ok(Self { shown, points, used: 0 })
    }
}

/// All entries; `bytes` plus `reserved` is what the limit holds down.
#[derive(Debug, Default)]
pub(super) struct Index {
    entries: BTreeMap<EntryKey, Entry>,
    prefixes: PrefixIndex,
    /// Bytes of all entries.
    pub(super) bytes: u64,
    /// Bytes announced by writers that are not done.
    pub(super) reserved: u64,
    uses: u64,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, key: EntryKey) -> bool {
        self.entries.contains_key(&key)
    }

    pub(super) fn list(&self) -> Vec<StoredEntry> {
        self.entries.values().map(|entry| entry.shown).collect()
    }

    /// Puts in an entry as the one used last, in place of an older one with its key.
    pub(super) fn insert(&mut self, mut entry: Entry) {
        let key = entry.shown.key;
        self.remove(key);
        self.uses += 1;
        entry.used = self.uses;
        self.bytes += entry.shown.bytes;
        self.prefixes.insert(key, &entry.points);
        self.entries.insert(key, entry);
    }

    pub(super) fn remove(&mut self, key: EntryKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.shown.bytes;
            self.prefixes.remove(key, &entry.points);
        }
    }

    pub(super) fn touch(&mut self, key: EntryKey) {
        self.uses += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = self.uses;
        }
    }

    pub(super) fn longest_prefix(&self, chain: &[ChunkHash]) -> Option<PrefixMatch> {
        let (tokens, keys) = self.prefixes.longest(chain)?;
        let key = keys.iter().max_by_key(|&key| self.entries.get(key).map_or(0, |entry| entry.used))?;
        Some(PrefixMatch { key: *key, tokens })
    }

    /// The entry to give up first: that with the fewest tokens per byte and use ago. `last` goes when nothing
    /// else is left.
    pub(super) fn least_valuable(&self, last: Option<EntryKey>) -> Option<EntryKey> {
        let value = |entry: &Entry| {
            let age = (self.uses - entry.used + 1) as f64;
            entry.shown.tokens as f64 / (entry.shown.bytes as f64 * age)
        };
        let rank = |entry: &&Entry| (Some(entry.shown.key) == last, value(entry));
        let order = |a: &&Entry, b: &&Entry| {
            let ((a_last, a_value), (b_last, b_value)) = (rank(a), rank(b));
            a_last.cmp(&b_last).then(a_value.total_cmp(&b_value))
        };
        self.entries.values().min_by(order).map(|entry| entry.shown.key)
    }
}
