//! Where the numbers of a page lie.
//!
//! A page is all heads of all layers one after another. A head has `stride` channels, its dimensions padded with zeros:
//!
//! | precision | keys | values |
//! |---|---|---|
//! | F32, F16 | numbers `[channel][token]` | numbers `[token][channel]` |
//! | Q8 | signed codes `[channel][token]`, then steps and minimums `[channel]` | signed codes `[token][channel]`, then scales `[group][token]` |
//! | Q5, Q4 | codes in quads of channels, for Q5 their fifth bits, then steps and minimums `[channel]` | codes in quads of tokens, then scales `[group][token]` |
//!
//! Codes in quads are `[row][column][4]`: four channels of one token, or four tokens of one channel, which is what dot
//! products of bytes take. Two such rows share a byte: quad `j` is in the low four bits, quad `j + quads / 2` in the
//! high ones. Bit `j % 8` of fifth-bit row `j / 8` belongs to quad `j`. Steps, minimums and scales are half precision.

use lichen_backend::KvPrecision;
use lichen_op::{KvLayer, KvLayout};

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 64;
/// Values of a token that share a scale.
pub(crate) const GROUP: usize = 32;
/// Channels are padded to a multiple of this, the widest vector.
const CHANNELS: usize = 16;
/// The logarithm of the most channels that a Hadamard transform mixes.
const MOST_ROTATED: u32 = 6;

/// The size of the heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadShape {
    pub(crate) head_dim: usize,
    /// Channels stored, `head_dim` and padding.
    pub(crate) stride: usize,
}

impl HeadShape {
    pub(crate) fn new(head_dim: usize) -> Self {
        Self { head_dim, stride: head_dim.next_multiple_of(CHANNELS) }
    }

    /// Groups of values that share a scale.
    pub(crate) fn groups(self) -> usize {
        self.stride.div_ceil(GROUP)
    }

    /// Channels that one Hadamard transform mixes: a power of two that divides `head_dim`.
    pub(crate) fn rotated(self) -> usize {
        1 << self.head_dim.trailing_zeros().min(MOST_ROTATED)
    }

    /// Bytes of each part of a head, in the order of [`Parts`].
    fn part_bytes(self, precision: KvPrecision) -> [usize; 6] {
        let numbers = self.stride * PAGE_TOKENS;
        let (channels, scales) = (2 * self.stride, 2 * self.groups() * PAGE_TOKENS);
        let fifth_bits = self.stride.div_ceil(32) * PAGE_TOKENS * 4;
        match precision {
            KvPrecision::F32 => [4 * numbers, 0, 0, 0, 4 * numbers, 0],
            KvPrecision::F16 => [2 * numbers, 0, 0, 0, 2 * numbers, 0],
            KvPrecision::Q8 => [numbers, 0, channels, channels, numbers, scales],
            KvPrecision::Q5 => [numbers / 2, fifth_bits, channels, channels, numbers / 2, scales],
            KvPrecision::Q4 => [numbers / 2, 0, channels, channels, numbers / 2, scales],
        }
    }

    /// Bytes of a head in a page.
    pub(crate) fn bytes(self, precision: KvPrecision) -> usize {
        self.part_bytes(precision).iter().sum()
    }
}

/// The parts of one head of a page; which of them there are depends on the precision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<B, H> {
    pub(crate) keys: B,
    pub(crate) fifth_bits: B,
    pub(crate) steps: H,
    pub(crate) minimums: H,
    pub(crate) values: B,
    pub(crate) scales: H,
}

/// One head of a page, to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'p> {
    pub(crate) precision: KvPrecision,
    pub(crate) parts: Parts<&'p [u8], &'p [u16]>,
}

impl<'p> Head<'p> {
    /// `bytes` is a whole head, aligned as a page is.
    pub(crate) fn new(precision: KvPrecision, shape: HeadShape, bytes: &'p [u8]) -> Self {
        let mut rest = bytes;
        let [keys, fifth_bits, steps, minimums, values, scales] =
            shape.part_bytes(precision).map(|len| rest.split_off(..len).expect("a head is all its parts"));
        let [steps, minimums, scales] = [steps, minimums, scales].map(bytemuck::cast_slice);
        Self { precision, parts: Parts { keys, fifth_bits, steps, minimums, values, scales } }
    }
}

/// The parts of one head of a page, to write; see [`Head::new`].
pub(crate) fn split_mut(
    precision: KvPrecision,
    shape: HeadShape,
    bytes: &mut [u8],
) -> Parts<&mut [u8], &mut [u16]> {
    let mut rest = bytes;
    let [keys, fifth_bits, steps, minimums, values, scales] =
        shape.part_bytes(precision).map(|len| rest.split_off_mut(..len).expect("a head is all its parts"));
    let [steps, minimums, scales] = [steps, minimums, scales].map(bytemuck::cast_slice_mut);
    Parts { keys, fifth_bits, steps, minimums, values, scales }
}

/// The heads of all layers.
#[derive(Debug)]
pub(crate) struct Layout {
    layers: Vec<KvLayer>,
    /// Where the first head of each layer begins, in the order of [`KvPrecision::ALL`].
    offsets: [Vec<usize>; KvPrecision::ALL.len()],
}

fn layer_bytes(precision: KvPrecision, layer: &KvLayer) -> usize {
    layer.kv_heads * HeadShape::new(layer.head_dim).bytes(precision)
}

/// Bytes of a page of a model with this layout.
pub fn page_bytes(layout: &KvLayout, precision: KvPrecision) -> u64 {
    Layout::new(layout).page_bytes(precision) as u64
}

impl Layout {
    pub(crate) fn new(layout: &KvLayout) -> Self {
        let offsets = KvPrecision::ALL.map(|precision| {
            let bytes = layout.layers.iter().map(|layer| layer_bytes(precision, layer));
            let sum_before = |sum: &mut usize, bytes| {
                let before = *sum;
                *sum += bytes;
                Some(before)
            };
            bytes.scan(0, sum_before).collect()
        });
        Self { layers: layout.layers.clone(), offsets }
    }

    pub(crate) fn kv_heads(&self, layer: usize) -> usize {
        self.layers[layer].kv_heads
    }

    pub(crate) fn shape(&self, layer: usize) -> HeadShape {
        HeadShape::new(self.layers[layer].head_dim)
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self, precision: KvPrecision) -> usize {
        self.layers.iter().map(|layer| layer_bytes(precision, layer)).sum()
    }

    /// Where the first head of a layer begins.
    pub(crate) fn offset(&self, precision: KvPrecision, layer: usize) -> usize {
        self.offsets[precision as usize][layer]
    }

    /// The shapes of all heads of a page, in their order.
    pub(crate) fn heads(&self) -> impl Iterator<Item = HeadShape> {
        self.layers
            .iter()
            .flat_map(|layer| std::iter::repeat_n(HeadShape::new(layer.head_dim), layer.kv_heads))
    }
}
