//! Which entry has the longest prefix of a sequence of tokens: hash-chained chunks, as vLLM's prefix cache
//! has them.

use std::collections::{BTreeSet, HashMap};

use blake3::Hasher;

use super::EntryKey;
use crate::ModelTag;
use crate::blob::PAGE_TOKENS;

/// Hash of a chunk and of all before it.
pub(super) type ChunkHash = [u8; 32];

/// An entry that begins as the tokens asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixMatch {
    /// The entry.
    pub key: EntryKey,
    /// Tokens in common that the entry has state for, a multiple of 64.
    pub tokens: u64,
}

/// Hashes of the whole chunks of 64 tokens, each with all before it and the model.
pub(super) fn chain(model: &ModelTag, tokens: &[u32]) -> impl Iterator<Item = ChunkHash> {
    let chunks = tokens.chunks_exact(PAGE_TOKENS as usize);
    chunks.scan(*model.as_bytes(), |parent, chunk| {
        let mut hasher = Hasher::new_derive_key("lichen session prefix v1");
        hasher.update(parent);
        chunk.iter().for_each(|token| {
            hasher.update(&token.to_le_bytes());
        });
        *parent = hasher.finalize().into();
        Some(*parent)
    })
}

/// Entries by the prefixes that they can be restored to.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    entries: HashMap<ChunkHash, BTreeSet<EntryKey>>,
}

impl PrefixIndex {
    pub(super) fn insert(&mut self, key: EntryKey, points: &[ChunkHash]) {
        for point in points {
            self.entries.entry(*point).or_default().insert(key);
        }
    }

    pub(super) fn remove(&mut self, key: EntryKey, points: &[ChunkHash]) {
        for point in points {
            if let Some(keys) = self.entries.get_mut(point) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.entries.remove(point);
                }
            }
        }
    }

    /// The longest prefix of a chain that any entry has, in tokens, with all entries that have it. Entries
    /// with recurrent layers are found at their states only, so a longer prefix may be known where a shorter
    /// one isn't.
    pub(super) fn longest(&self, chain: &[ChunkHash]) -> Option<(u64, &BTreeSet<EntryKey>)> {
        let found =
            |chunks: usize| Some((chunks as u64 * PAGE_TOKENS, self.entries.get(&chain[chunks - 1])?));
        (1..=chain.len()).rev().find_map(found)
    }
}
