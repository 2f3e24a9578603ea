//! How the blocks of each weight format are read, free of any instruction set.
//!
//! Every format is brought to one form: groups of 32 bytes with a scale and a minimum per group or half group,
//! `weight = scale * byte + minimum`. A format whose values are centred (Q4_0 stores `value + 8`) gets a minimum of
//! `-8 * scale`, so loops know of no offsets.

mod k_quants;
mod legacy;

pub use k_quants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub use legacy::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

use lichen_simd::Isa;
use lichen_tensor::DType;

/// Groups of a row that are worked with at once, one lane of a vector for each.
pub const LANES: usize = 8;

/// Weights of a group.
pub(crate) const GROUP: usize = 32;

/// Bytes of [`LANES`] groups of the longest format.
pub(crate) const MOST_BYTES: usize = LANES * 34;

/// Bytes of [`LANES`] groups.
pub(crate) const fn lanes_bytes<C: Codec>() -> usize {
    LANES * GROUP / C::DTYPE.block_len() * C::DTYPE.block_bytes()
}

/// What the bytes of [`LANES`] groups of a row are scaled with: a lane for each group.
///
/// `[half]`; formats with one scale per group fill the first half only, formats without minimums leave them.
pub struct Factors<I: Isa> {
    /// Multiplied with the bytes.
    pub scales: [I::Floats; 2],
    /// Added to each weight.
    pub minimums: [I::Floats; 2],
}

impl<I: Isa> Factors<I> {
    /// One scale per group, no minimum.
    #[inline(always)]
    fn scaled(isa: I, scales: I::Floats) -> Self {
        Self { scales: [scales, isa.splat(0.0)], minimums: [isa.splat(0.0); 2] }
    }

    /// One scale per group, of values that are stored with `centre` added.
    #[inline(always)]
    fn centred(isa: I, scales: I::Floats, centre: f32) -> Self {
        Self::centred_halves(isa, [scales, isa.splat(0.0)], centre)
    }

    /// One scale per half group, of values that are stored with `centre` added.
    #[inline(always)]
    fn centred_halves(isa: I, scales: [I::Floats; 2], centre: f32) -> Self {
        let centre = isa.splat(-centre);
        Self { scales, minimums: [isa.multiply(scales[0], centre), isa.multiply(scales[1], centre)] }
    }
}

/// A block format of weights.
pub trait Codec: 'static {
    /// The format.
    const DTYPE: DType;
    /// Whether the bytes are signed; else they are at most 127.
    const SIGNED: bool = false;
    /// Whether minimums are ever other than zero.
    const HAS_MINIMUM: bool = true;
    /// Whether the two halves of a group have factors of their own.
    const PER_HALF: bool = false;

    /// The largest magnitude of a byte, as few bits as that takes.
    const LARGEST: u8;

    /// Calls `each` with the number and the bytes of each group of `block`, in order.
    fn bytes<I: Isa>(isa: I, block: &[u8], each: impl FnMut(usize, I::Bytes));

    /// Scales and minimums of the first `GROUPS` groups, whole blocks and at most [`LANES`] groups; 0 in other lanes.
    fn factors<I: Isa, const GROUPS: usize>(isa: I, blocks: &[u8]) -> Factors<I>;
}

/// The values that the 4-bit codes of IQ4_NL and IQ4_XS stand for (ggml, `kvalues_iq4nl`), as signed bytes.
const IQ4_VALUES: [u8; 16] = {
    let values = [-127i8, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = values[i] as u8;
        i += 1;
    }
    bytes
};

/// The bits of a half-precision number at `offset` of a block.
#[inline(always)]
fn half_bits(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*bytes_at(block, offset))
}

/// Half-precision numbers at `offset` of each of the first `BLOCKS` blocks of `bytes` bytes.
#[inline(always)]
fn halves_at<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8], bytes: usize, offset: usize) -> I::Floats {
    let blocks = &blocks[..BLOCKS * bytes];
    let mut bits = [0; LANES];
    for lane in 0..BLOCKS {
        bits[lane] = half_bits(blocks, lane * bytes + offset);
    }
    isa.load_halves(&bits)
}

/// `N` bytes at `offset` of a block.
#[inline(always)]
fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> &[u8; N] {
    block[offset..].first_chunk().expect("the block is as long as its format says")
}
