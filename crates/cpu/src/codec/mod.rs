//! How the blocks of each weight format are read, free of any instruction set.
//!
//! Every format is brought to one form: 32 bytes with a scale and a minimum per half,
//! `weight = scale * byte + minimum`. A format whose values are centred (Q4_0 stores `value + 8`) gets a minimum of
//! `-8 * scale`, so loops know of no offsets.

mod k_quants;
mod legacy;

pub use k_quants::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
pub use legacy::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

use half::f16;
use lichen_simd::Isa;
use lichen_tensor::DType;

/// 32 weights: `weight[i] = scale[i / 16] * bytes[i] + minimum[i / 16]`.
#[derive(Clone, Copy)]
pub struct Sub<I: Isa> {
    /// The stored values: signed if the codec says so, else at most 127.
    pub bytes: I::Bytes,
    /// Per half of 16.
    pub scale: [f32; 2],
    /// Per half of 16.
    pub minimum: [f32; 2],
}

impl<I: Isa> Sub<I> {
    /// One scale and one minimum for all 32.
    #[inline(always)]
    fn whole(bytes: I::Bytes, scale: f32, minimum: f32) -> Self {
        Self { bytes, scale: [scale; 2], minimum: [minimum; 2] }
    }
}

/// A block format of weights.
pub trait Codec: 'static {
    /// The format.
    const DTYPE: DType;
    /// Whether [`Sub::bytes`] are signed.
    const SIGNED: bool = false;
    /// Whether minimums are ever other than zero.
    const HAS_MINIMUM: bool = true;
    /// Whether the two halves of a [`Sub`] have scales of their own.
    const PER_HALF: bool = false;

    /// Calls `each` with the groups of 32 weights of `block`, in order.
    fn unpack<I: Isa>(isa: I, block: &[u8], each: impl FnMut(Sub<I>));
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

/// A half-precision number at `offset` of a block.
#[inline(always)]
fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// `N` bytes at `offset` of a block.
#[inline(always)]
fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> &[u8; N] {
    block[offset..].first_chunk().expect("the block is as long as its format says")
}
