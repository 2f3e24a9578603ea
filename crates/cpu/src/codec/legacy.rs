//! Formats of 32 weights: half-precision scale (and minimum), then the values. Layouts: ggml `ggml-common.h`.

use super::{Codec, Factors, IQ4_VALUES, ROWS, bytes_at, halves_at};
use lichen_simd::Isa;
use lichen_tensor::DType;

/// 4 bits, centred at 8.
pub struct Q4_0;
/// 4 bits with a minimum.
pub struct Q4_1;
/// 5 bits, centred at 16.
pub struct Q5_0;
/// 5 bits with a minimum.
pub struct Q5_1;
/// 8 bits, signed.
pub struct Q8_0;
/// 4 bits through a table.
pub struct Iq4Nl;

/// Low four bits from 16 bytes at `offset + 4`, the fifth from the 4 bytes at `offset`.
#[inline(always)]
fn five_bits<I: Isa>(isa: I, block: &[u8], offset: usize) -> I::Bytes {
    let high = u32::from_le_bytes(*bytes_at(block, offset));
    isa.or(isa.nibbles(bytes_at(block, offset + 4)), isa.spread_bits(high, 16))
}

/// A scale at the start of the block.
#[inline(always)]
fn scale_only<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
    let mut factors = Factors::zeros(isa);
    factors.scales[0][0] = halves_at(isa, blocks, 0);
    factors
}

/// A scale at the start of the block, of values that are stored with `centre` added.
#[inline(always)]
fn centred<I: Isa>(isa: I, blocks: &[&[u8]; ROWS], centre: f32) -> Factors<I> {
    let mut factors = scale_only(isa, blocks);
    factors.minimums[0][0] = isa.multiply(factors.scales[0][0], isa.splat(-centre));
    factors
}

/// A scale at the start of the block, then a minimum.
#[inline(always)]
fn scale_and_minimum<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
    let mut factors = scale_only(isa, blocks);
    factors.minimums[0][0] = halves_at(isa, blocks, 2);
    factors
}

impl Codec for Q4_0 {
    const DTYPE: DType = DType::Q4_0;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.nibbles(bytes_at(block, 2)));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        centred(isa, blocks, 8.0)
    }
}

impl Codec for Q4_1 {
    const DTYPE: DType = DType::Q4_1;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.nibbles(bytes_at(block, 4)));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        scale_and_minimum(isa, blocks)
    }
}

impl Codec for Q5_0 {
    const DTYPE: DType = DType::Q5_0;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, five_bits(isa, block, 2));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        centred(isa, blocks, 16.0)
    }
}

impl Codec for Q5_1 {
    const DTYPE: DType = DType::Q5_1;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, five_bits(isa, block, 4));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        scale_and_minimum(isa, blocks)
    }
}

impl Codec for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.load(bytes_at(block, 2)));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        scale_only(isa, blocks)
    }
}

impl Codec for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 2))));
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        scale_only(isa, blocks)
    }
}
