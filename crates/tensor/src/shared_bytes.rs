//! Read-only bytes with a shared owner.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A range of bytes that keeps its owner (a mapped file, a buffer) alive.
///
/// A clone or a slice costs one reference count; the bytes are never copied.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// All bytes of `owner`, whose `as_ref` must give the same bytes on each call.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let range = 0..owner.as_ref().len();
        Self { owner: Arc::new(owner), range }
    }

    /// The bytes of `range`, counted from the start of these, or `None` if it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let range = self.range.start + range.start..self.range.start + range.end;
        Some(Self { owner: Arc::clone(&self.owner), range })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for SharedBytes {
    /// Prints the length only: the bytes are often gigabytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_slice_counts_from_its_own_start() {
        let all = SharedBytes::from(vec![0, 1, 2, 3, 4, 5]);
        let tail = all.slice(2..6).unwrap();
        assert_eq!(&*tail.slice(1..3).unwrap(), &[3, 4]);
        assert_eq!(tail.as_ptr(), all[2..].as_ptr(), "no copy");
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
    fn a_slice_outside_is_none() {
        let part = SharedBytes::from(vec![0; 6]).slice(0..4).unwrap();
        assert!(part.slice(0..5).is_none());
        assert!(part.slice(3..2).is_none());
        assert!(part.slice(usize::MAX..usize::MAX).is_none());
        assert!(part.slice(4..4).unwrap().is_empty());
    }
}
