//! Which weights stay in memory when there is no room for all of them.
//!
//! A forward pass reads its weights in the same order each time. A cache that drops what was used longest ago then
//! finds nothing: whatever is read next was dropped just before. So a part stays, and the rest is read from disk, used
//! and dropped at once: of `W` bytes with room for `R` a pass reads `W - R`, the least there can be.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::limit::{UnknownSize, static_limit};
use crate::{Class, Sample, Snapshot};

const MIB: u64 = 1 << 20;
/// Most bytes that are read or dropped at once.
pub const CHUNK_BYTES: u64 = 4 * MIB;
/// Bytes of streamed weights that are in memory at a time: what is in use, and what is read ahead.
pub const WINDOW_BYTES: u64 = 16 * MIB;
/// Smaller tensors (norms, biases) stay: they share their pages with others, and cost nothing.
const SMALL_BYTES: u64 = 64 << 10;
/// The part that stays grows by no less, so that it doesn't follow each wiggle of the room.
const GROWTH_BYTES: u64 = 2 * CHUNK_BYTES;

/// Weights that a forward pass reads, as bytes of their file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightRange {
    /// Where they are.
    pub bytes: Range<u64>,
    /// Whether single rows are read too, by token: such weights stay before all others.
    pub rows: bool,
}

/// Which weights stay in memory and which are streamed. Nothing stays before the first [`ResidencyPlan::resize`] but
/// what is small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidencyPlan {
    /// In the order of the pass.
    chunks: Vec<Range<u64>>,
    /// Chunks in the order in which they are kept, and the place of each chunk in it.
    kept: Vec<usize>,
    rank: Vec<usize>,
    /// Bytes of the first so many of `kept`.
    sums: Vec<u64>,
    small: u64,
    hot: usize,
}

impl ResidencyPlan {
    /// A plan for weights in the order in which a pass reads them. Those named twice count the first time.
    pub fn new(pass: &[WeightRange]) -> Self {
        let mut known = BTreeSet::new();
        let (mut chunks, mut first, mut small) = (Vec::new(), Vec::new(), 0);
        for WeightRange { bytes, rows } in pass {
            if bytes.is_empty() || !known.insert((bytes.start, bytes.end)) {
                continue;
            }
            let len = bytes.end - bytes.start;
            if len < SMALL_BYTES {
                small += len;
                continue;
            }
            let size = len.div_ceil(len.div_ceil(CHUNK_BYTES));
            let mut start = bytes.start;
            while start < bytes.end {
                let end = bytes.end.min(start.saturating_add(size));
                chunks.push(start..end);
                first.push(*rows);
                start = end;
            }
        }
        let mut kept: Vec<usize> = (0..chunks.len()).collect();
        kept.sort_by_key(|&chunk| (!first[chunk], spread(chunk)));
        let mut rank = vec![0; chunks.len()];
        kept.iter().enumerate().for_each(|(place, &chunk)| rank[chunk] = place);
        let bytes = kept.iter().map(|&chunk| chunks[chunk].end - chunks[chunk].start);
        let sums = std::iter::once(0)
            .chain(bytes.scan(0, |sum, bytes| {
                *sum += bytes;
                Some(*sum)
            }))
            .collect();
        Self { chunks, kept, rank, sums, small, hot: 0 }
    }

    /// Fits what stays into the room for weights. If not all fits, a part of the room is left to what is streamed.
    pub fn resize(&mut self, room: u64) {
        let left = room.saturating_sub(self.small);
        let left =
            if left >= self.sums[self.chunks.len()] { left } else { left.saturating_sub(WINDOW_BYTES) };
        let fits = self.sums.partition_point(|sum| *sum <= left) - 1;
        let grows = fits == self.chunks.len() || self.sums[fits] >= self.sums[self.hot] + GROWTH_BYTES;
        if fits < self.hot || grows {
            self.hot = fits;
        }
    }

    /// The stretches that a pass reads, in its order.
    pub fn chunks(&self) -> &[Range<u64>] {
        &self.chunks
    }

    /// Whether a chunk stays in memory.
    pub fn stays(&self, chunk: usize) -> bool {
        self.rank[chunk] < self.hot
    }

    /// Bytes that stay in memory.
    pub fn hot_bytes(&self) -> u64 {
        self.small + self.sums[self.hot]
    }

    /// Bytes that each pass reads from disk.
    pub fn streamed_bytes(&self) -> u64 {
        self.sums[self.chunks.len()] - self.sums[self.hot]
    }
}

/// A number for each index such that those below any bound are spread evenly over all indices: multiples of the golden
/// ratio, of which the whole part is dropped (Weyl's sequence). So a pass alternates between what it has and what it
/// waits for, and the disk works all the time.
fn spread(index: usize) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    (index as u64).wrapping_mul(GOLDEN)
}

/// Bytes of mapped weights that memory has room for beside all else, whether they are in memory now or not: the least
/// over the operator's budget, every control group and the machine. Pages of files count as free: they are weights, or
/// can go. No margin is kept: the system drops weights by itself when anything else needs their place.
///
/// # Errors
/// If neither the sample nor the operator tells a limit.
pub fn weight_room(sample: &Sample, explicit: Option<u64>, account: &Snapshot) -> Result<u64, UnknownSize> {
    let (limit, _) = static_limit(sample, explicit)?;
    let reserved = account.mapped() - account.class(Class::WeightsMapped).mapped;
    let anonymous = sample.anonymous.unwrap_or(0);
    // What the ledger gave and nobody has touched yet.
    let coming = reserved.saturating_sub(anonymous);
    let groups = sample.groups.iter().map(|group| {
        let taken = group.usage.map_or(anonymous, |usage| usage.saturating_sub(group.file.unwrap_or(0)));
        group.limit.saturating_sub(taken).saturating_sub(coming)
    });
    let machine = sample.available.map(|available| {
        let own = sample.total.map_or(256 * MIB, |total| (total / 50).max(256 * MIB));
        available.saturating_sub(own).saturating_sub(coming)
    });
    let ours = limit.saturating_sub(anonymous.max(reserved));
    Ok(groups.chain(machine).fold(ours, u64::min))
}
