//! The merge loop that both kinds of BPE share.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No neighbour.
const NONE: usize = usize::MAX;

/// A symbol that has no id of its own yet.
pub(crate) const NO_ID: u32 = u32::MAX;

/// A run of bytes of the text, and the id it has so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) id: u32,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: usize,
    right: usize,
    /// Bytes of both sides together: differs from the sum of the current lengths if one side was merged meanwhile.
    len: usize,
    id: u32,
}

/// Merges neighbours, lowest priority value first and leftmost first among equals, until `lookup` knows no more.
///
/// `lookup` gives the priority and the id of two neighbours put together. A heap keeps this at O(n log n), also for
/// one word of a megabyte.
pub(crate) fn merge(symbols: &mut Vec<Symbol>, lookup: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
    if symbols.len() < 2 {
        return;
    }
    let count = symbols.len();
    let mut prev: Vec<usize> = (0..count).map(|i| i.wrapping_sub(1)).collect();
    let mut next: Vec<usize> = (1..=count).collect();
    next[count - 1] = NONE;

    let candidate = |symbols: &[Symbol], left: usize, right: usize| {
        let (a, b) = (&symbols[left], &symbols[right]);
        let (priority, id) = lookup(a, b)?;
        let len = a.len + b.len;
        Some(Reverse(Candidate { priority, left, right, len, id }))
    };
    let mut heap: BinaryHeap<_> =
        (1..count).filter_map(|right| candidate(symbols, right - 1, right)).collect();

    while let Some(Reverse(best)) = heap.pop() {
        let Candidate { left, right, len, id, .. } = best;
        // A merged-away symbol has length 0, and `next` tells whether the two are still neighbours.
        if symbols[left].len == 0 || next[left] != right || symbols[left].len + symbols[right].len != len {
            continue;
        }
        symbols[left].len = len;
        symbols[left].id = id;
        symbols[right].len = 0;
        next[left] = next[right];
        if next[left] != NONE {
            prev[next[left]] = left;
            heap.extend(candidate(symbols, left, next[left]));
        }
        if prev[left] != NONE {
            heap.extend(candidate(symbols, prev[left], left));
        }
    }
    symbols.retain(|symbol| symbol.len != 0);
}
