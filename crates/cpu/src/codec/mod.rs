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

/// Rows of weights that are read side by side, one lane of a vector for each.
pub const ROWS: usize = 8;

/// Weights of a group.
pub(crate) const GROUP: usize = 32;

/// Groups of the longest blocks.
pub(crate) const MOST_GROUPS: usize = 8;

/// What the bytes of one block of [`ROWS`] rows are scaled with: a lane for each row.
///
/// `[group][half]`; formats with one scale per group fill the first half only, formats without minimums leave them.
pub struct Factors<I: Isa> {
    /// Multiplied with the bytes.
    pub scales: [[I::Floats; 2]; MOST_GROUPS],
    /// Added to each weight.
    pub minimums: [[I::Floats; 2]; MOST_GROUPS],
}

impl<I: Isa> Factors<I> {
    #[inline(always)]
    fn zeros(isa: I) -> Self {
        let zeros = [[isa.splat(0.0); 2]; MOST_GROUPS];
        Self { scales: zeros, minimums: zeros }
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

    /// Calls `each` with the number and the bytes of each group of `block`, in order.
    fn bytes<I: Isa>(isa: I, block: &[u8], each: impl FnMut(usize, I::Bytes));

    /// Scales and minimums of one block of each row.
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I>;
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

/// Half-precision numbers at `offset` of each block.
#[inline(always)]
fn halves_at<I: Isa>(isa: I, blocks: &[&[u8]; ROWS], offset: usize) -> I::Floats {
    let mut bits = [0; ROWS];
    for row in 0..ROWS {
        bits[row] = half_bits(blocks[row], offset);
    }
    isa.load_halves(&bits)
}

/// `N` bytes at `offset` of a block.
#[inline(always)]
fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> &[u8; N] {
    block[offset..].first_chunk().expect("the block is as long as its format says")
}
