//! Many byte strings by number, and their numbers by their bytes, without a piece of memory for each.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Byte strings by number, one after another in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<usize>,
}

impl Pieces {
    /// Adds the piece that `write` appends.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    /// The piece of this number.
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }

    /// The number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// The numbers of pieces by their bytes. The pieces are handed in again at each use, always the same.
#[derive(Debug, Default)]
pub(crate) struct PieceIndex {
    numbers: HashTable<u32>,
    hasher: RandomState,
}

impl PieceIndex {
    /// Those of the pieces that are wanted; of equal ones the first.
    pub(crate) fn new(pieces: &Pieces, wanted: impl Fn(u32) -> bool) -> Self {
        let mut index = Self { numbers: HashTable::with_capacity(pieces.len()), ..Self::default() };
        for number in (0..pieces.len() as u32).filter(|&number| wanted(number)) {
            let piece = bytes(pieces, number);
            let hash = index.hasher.hash_one(piece);
            let equal = |&other: &u32| bytes(pieces, other) == piece;
            if index.numbers.find(hash, equal).is_none() {
                let hasher = &index.hasher;
                index.numbers.insert_unique(hash, number, |&other| hasher.hash_one(bytes(pieces, other)));
            }
        }
        index
    }

    /// The number of the piece with these bytes.
    pub(crate) fn get(&self, pieces: &Pieces, piece: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(piece);
        self.numbers.find(hash, |&number| bytes(pieces, number) == piece).copied()
    }
}

fn bytes(pieces: &Pieces, number: u32) -> &[u8] {
    pieces.get(number as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_found_by_number_and_the_first_of_equal_ones_by_its_bytes() {
        let items = ["a", "", "bc", "a", "", "bc", "d"];
        let mut pieces = Pieces::default();
        items.iter().for_each(|item| pieces.push(|bytes| bytes.extend(item.as_bytes())));
        for (number, item) in items.iter().enumerate() {
            assert_eq!(pieces.get(number), Some(item.as_bytes()));
        }
        assert_eq!((pieces.len(), pieces.get(7)), (7, None));
        let index = PieceIndex::new(&pieces, |number| number != 2);
        let found = ["a", "", "bc", "d", "ab"].map(|item| index.get(&pieces, item.as_bytes()));
        assert_eq!(found, [Some(0), Some(1), Some(5), Some(6), None]);
    }
}
