//! Formats of 32 weights: half-precision scale (and minimum), then the values. Layouts: ggml `ggml-common.h`.

use super::{Codec, Factors, IQ4_VALUES, bytes_at, halves_at};
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

/// The scales at the start of each block.
#[inline(always)]
fn scales<C: Codec, I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> I::Floats {
    halves_at::<I, BLOCKS>(isa, blocks, const { C::DTYPE.block_bytes() }, 0)
}

/// A scale at the start of the block, then a minimum.
#[inline(always)]
fn scale_and_minimum<C: Codec, I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
    let mut factors = Factors::scaled(isa, scales::<C, I, BLOCKS>(isa, blocks));
    factors.minimums[0] = halves_at::<I, BLOCKS>(isa, blocks, const { C::DTYPE.block_bytes() }, 2);
    factors
}

impl Codec for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const LARGEST: u8 = 15;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.nibbles(bytes_at(block, 2)));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        Factors::centred(isa, scales::<Self, I, BLOCKS>(isa, blocks), 8.0)
    }
}

impl Codec for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const LARGEST: u8 = 15;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.nibbles(bytes_at(block, 4)));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        scale_and_minimum::<Self, I, BLOCKS>(isa, blocks)
    }
}

impl Codec for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const LARGEST: u8 = 31;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, five_bits(isa, block, 2));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        Factors::centred(isa, scales::<Self, I, BLOCKS>(isa, blocks), 16.0)
    }
}

impl Codec for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const LARGEST: u8 = 31;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, five_bits(isa, block, 4));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        scale_and_minimum::<Self, I, BLOCKS>(isa, blocks)
    }
}

impl Codec for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const LARGEST: u8 = 255;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.load(bytes_at(block, 2)));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        Factors::scaled(isa, scales::<Self, I, BLOCKS>(isa, blocks))
    }
}

impl Codec for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const LARGEST: u8 = 255;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        each(0, isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 2))));
    }

    #[inline(always)]
    fn factors<I: Isa, const BLOCKS: usize>(isa: I, blocks: &[u8]) -> Factors<I> {
        Factors::scaled(isa, scales::<Self, I, BLOCKS>(isa, blocks))
    }
}
