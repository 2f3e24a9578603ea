//! Activations of several vectors side by side, as panels are multiplied with them.

use crate::activation::{BLOCK, Block};
use crate::codec::LANES;

/// The most vectors of a tile.
pub(crate) const TILE: usize = 8;

/// The quads of a block.
pub(crate) const QUADS: usize = BLOCK / 4;

/// The lengths of the tiles that `vectors` vectors are split into.
pub(crate) fn lengths(vectors: usize) -> impl Iterator<Item = usize> {
    let rest = [4, 2, 1].into_iter().filter(move |length| vectors & length != 0);
    std::iter::repeat_n(TILE, vectors / TILE).chain(rest)
}

/// Where group `group` of `groups` stands in the order in which they are summed: every eighth group first, then every
/// eighth from the second on. See [`crate::gemv`].
pub(crate) fn place_of(group: usize, groups: usize) -> usize {
    let lane = group % LANES;
    lane * (groups / LANES) + lane.min(groups % LANES) + group / LANES
}

/// How many of `groups` groups are summed in one lane.
pub(crate) fn groups_of_lane(groups: usize, lane: usize) -> usize {
    (groups + LANES - 1 - lane) / LANES
}

/// Eight, four, two or one quantised vectors, interleaved, groups in the order in which they are summed.
#[derive(Debug, Default)]
pub struct Tile {
    /// How many vectors it has.
    pub(crate) vectors: usize,
    /// `[group][quad of 4 values][vector][4]`.
    pub(crate) quads: Vec<[u8; 4]>,
    /// `[group][vector]`, and so below.
    pub(crate) scales: Vec<f32>,
    pub(crate) shifts: Vec<i32>,
    pub(crate) sums: Vec<f32>,
    /// `[group][half][vector]`.
    pub(crate) half_sums: Vec<f32>,
}

impl Tile {
    /// Tiles of all rows of `width` values, as long as they can be.
    ///
    /// # Panics
    /// If `rows` aren't whole rows or `width` isn't a multiple of 32.
    pub fn of(rows: &[f32], width: usize) -> Vec<Self> {
        assert!(rows.len().is_multiple_of(width), "rows must be whole");
        let (mut tiles, mut rows) = (Vec::new(), rows);
        for length in lengths(rows.len() / width) {
            let (part, rest) = rows.split_at(length * width);
            let mut tile = Self::default();
            tile.quantise(part, width);
            tiles.push(tile);
            rows = rest;
        }
        tiles
    }

    /// Values of each vector.
    pub(crate) fn width(&self) -> usize {
        self.scales.len() / self.vectors.max(1) * BLOCK
    }

    /// Quantises 8, 4, 2 or 1 rows of `width` values; they take the place of what was there before.
    ///
    /// # Panics
    /// If `width` isn't a multiple of 32.
    #[inline(always)]
    pub(crate) fn quantise(&mut self, rows: &[f32], width: usize) {
        assert!(width.is_multiple_of(BLOCK), "{width} values are no whole blocks of {BLOCK}");
        let (groups, vectors) = (width / BLOCK, rows.len() / width);
        self.vectors = vectors;
        self.quads.resize(groups * QUADS * vectors, [0; 4]);
        self.scales.resize(groups * vectors, 0.0);
        self.shifts.resize(groups * vectors, 0);
        self.sums.resize(groups * vectors, 0.0);
        self.half_sums.resize(groups * 2 * vectors, 0.0);
        for (vector, row) in rows.chunks_exact(width).enumerate() {
            for (group, values) in row.as_chunks::<BLOCK>().0.iter().enumerate() {
                self.place(Block::quantise(values), place_of(group, groups), vector);
            }
        }
    }

    #[inline(always)]
    fn place(&mut self, block: Block, place: usize, vector: usize) {
        let vectors = self.vectors;
        let Block { quants, scale, sums: [low, high] } = block;
        let quads = &mut self.quads[place * QUADS * vectors..][..QUADS * vectors];
        for (place, values) in quads.iter_mut().skip(vector).step_by(vectors).zip(quants.as_chunks::<4>().0) {
            *place = *values;
        }
        let at = place * vectors + vector;
        self.scales[at] = scale;
        self.shifts[at] = -128 * (low + high);
        self.sums[at] = scale * (low + high) as f32;
        for (half, sum) in [low, high].into_iter().enumerate() {
            self.half_sums[(2 * place + half) * vectors + vector] = scale * sum as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_is_summed_once_in_the_lane_of_its_number() {
        for groups in 0..40 {
            let mut order: Vec<_> = (0..groups).collect();
            order.sort_by_key(|&group| place_of(group, groups));
            let mut order = order.into_iter();
            for lane in 0..LANES {
                for _ in 0..groups_of_lane(groups, lane) {
                    assert_eq!(order.next().map(|group| group % LANES), Some(lane));
                }
            }
            assert_eq!(order.next(), None);
            let mut places: Vec<_> = (0..groups).map(|group| place_of(group, groups)).collect();
            places.sort_unstable();
            assert_eq!(places, (0..groups).collect::<Vec<_>>());
        }
    }

    #[test]
    fn tiles_are_as_long_as_they_can_be() {
        assert_eq!(lengths(0).count(), 0);
        assert_eq!(lengths(15).collect::<Vec<_>>(), [8, 4, 2, 1]);
        assert_eq!(lengths(18).collect::<Vec<_>>(), [8, 8, 2]);
    }
}
