//! Super-blocks of 256 weights with small integer scales. Layouts: ggml `ggml-common.h`.

use super::{Codec, Factors, IQ4_VALUES, bytes_at, half_bits};
use lichen_simd::Isa;
use lichen_tensor::DType;

/// 2 bits, scale and minimum per 16.
pub struct Q2K;
/// 3 bits, scale per 16.
pub struct Q3K;
/// 4 bits, scale and minimum per 32.
pub struct Q4K;
/// 5 bits, scale and minimum per 32.
pub struct Q5K;
/// 6 bits, scale per 16.
pub struct Q6K;
/// 4 bits through a table, scale per 32.
pub struct Iq4Xs;

/// `factor` times each of eight signed bytes.
#[inline(always)]
fn times_bytes<I: Isa>(isa: I, factor: f32, bytes: u64) -> I::Floats {
    isa.multiply(isa.floats_of_bytes(bytes), isa.splat(factor))
}

/// `factor` times each of sixteen signed bytes: first those of the low halves of groups, then those of the high ones.
#[inline(always)]
fn times_pairs<I: Isa>(isa: I, factor: f32, bytes: [u64; 2]) -> [I::Floats; 2] {
    let [low, high] = isa.floats_of_byte_pairs(bytes);
    [isa.multiply(low, isa.splat(factor)), isa.multiply(high, isa.splat(factor))]
}

/// The eight 6-bit scales and the eight minimums of Q4_K and Q5_K, packed in 12 bytes: a byte each.
#[inline(always)]
fn six_bit_pairs(packed: &[u8; 12]) -> (u64, u64) {
    let word = |at: usize| u64::from(u32::from_le_bytes(*bytes_at(packed, at)));
    let (first, second, third) = (word(0), word(4), word(8));
    let scales = third & 0x0f0f_0f0f | (first >> 6 & 0x0303_0303) << 4;
    let minimums = third >> 4 & 0x0f0f_0f0f | (second >> 6 & 0x0303_0303) << 4;
    (first & 0x3f3f_3f3f | scales << 32, second & 0x3f3f_3f3f | minimums << 32)
}

/// The sixteen 6-bit scales of Q3_K, packed in 12 bytes and centred at 32: a signed byte each.
#[inline(always)]
fn six_bit_centred(packed: &[u8; 12]) -> [u64; 2] {
    let low = u64::from_le_bytes(*bytes_at(packed, 0));
    let high = u64::from(u32::from_le_bytes(*bytes_at(packed, 8)));
    let two_bits =
        |shift: u32| (high >> shift & 0x0303_0303 | (high >> (shift + 2) & 0x0303_0303) << 32) << 4;
    [
        centred(low & 0x0f0f_0f0f_0f0f_0f0f | two_bits(0)),
        centred(low >> 4 & 0x0f0f_0f0f_0f0f_0f0f | two_bits(4)),
    ]
}

/// The eight 6-bit scales of IQ4_XS, four bits of each in `low` and two in `high`, centred at 32: a signed byte each.
#[inline(always)]
fn six_bit_split(low: u64, high: u64) -> u64 {
    let nibbles = (low | low << 16) & 0x0000_ffff_0000_ffff;
    let nibbles = (nibbles | nibbles << 8) & 0x00ff_00ff_00ff_00ff;
    let nibbles = (nibbles | nibbles << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = (high | high << 24) & 0x0000_00ff_0000_00ff;
    let pairs = (pairs | pairs << 12) & 0x000f_000f_000f_000f;
    let pairs = (pairs | pairs << 6) & 0x0303_0303_0303_0303;
    centred(nibbles | pairs << 4)
}

/// Takes 32 off each byte; they are below 64.
#[inline(always)]
fn centred(bytes: u64) -> u64 {
    // No borrow crosses a byte once the top bit is set, and it ends as the sign.
    ((bytes | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020) ^ 0x8080_8080_8080_8080
}

impl Codec for Q2K {
    const DTYPE: DType = DType::Q2K;
    const LARGEST: u8 = 3;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for part in 0..2 {
            let packed = isa.load(bytes_at(block, 16 + 32 * part));
            each(4 * part, isa.shift_mask(packed, 0, 3));
            each(4 * part + 1, isa.shift_mask(packed, 2, 3));
            each(4 * part + 2, isa.shift_mask(packed, 4, 3));
            each(4 * part + 3, isa.shift_mask(packed, 6, 3));
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let packed = [0, 8].map(|at| u64::from_le_bytes(*bytes_at(block, at)));
        let (scale, minimum) = (isa.half(half_bits(block, 80)), isa.half(half_bits(block, 82)));
        Factors {
            scales: times_pairs(isa, scale, packed.map(|packed| packed & NIBBLES)),
            minimums: times_pairs(isa, -minimum, packed.map(|packed| packed >> 4 & NIBBLES)),
        }
    }
}

impl Codec for Q3K {
    const DTYPE: DType = DType::Q3K;
    const LARGEST: u8 = 7;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        let high = isa.load(bytes_at(block, 0));
        for part in 0..2 {
            let packed = isa.load(bytes_at(block, 32 + 32 * part));
            // The third bits of the upper four groups are the upper four bits.
            let high = isa.shift_mask(high, 4 * part as u8, 15);
            let third = isa.shift_left(isa.shift_mask(high, 0, 1), 2);
            each(4 * part, isa.or(isa.shift_mask(packed, 0, 3), third));
            let third = isa.shift_left(isa.shift_mask(high, 1, 1), 2);
            each(4 * part + 1, isa.or(isa.shift_mask(packed, 2, 3), third));
            let third = isa.shift_mask(high, 0, 4);
            each(4 * part + 2, isa.or(isa.shift_mask(packed, 4, 3), third));
            let third = isa.shift_mask(high, 1, 4);
            each(4 * part + 3, isa.or(isa.shift_mask(packed, 6, 3), third));
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        let scales = times_pairs(isa, isa.half(half_bits(block, 108)), six_bit_centred(bytes_at(block, 96)));
        Factors::centred_halves(isa, scales, 4.0)
    }
}

/// Scales and minimums of Q4_K and Q5_K, which start alike.
#[inline(always)]
fn factors_of_pairs<I: Isa>(isa: I, block: &[u8]) -> Factors<I> {
    let (scales, minimums) = six_bit_pairs(bytes_at(block, 4));
    let (scale, minimum) = (isa.half(half_bits(block, 0)), isa.half(half_bits(block, 2)));
    let mut factors = Factors::scaled(isa, times_bytes(isa, scale, scales));
    factors.minimums[0] = times_bytes(isa, -minimum, minimums);
    factors
}

impl Codec for Q4K {
    const DTYPE: DType = DType::Q4K;
    const LARGEST: u8 = 15;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for pair in 0..4 {
            let packed = isa.load(bytes_at(block, 16 + 32 * pair));
            each(2 * pair, isa.shift_mask(packed, 0, 15));
            each(2 * pair + 1, isa.shift_mask(packed, 4, 15));
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        factors_of_pairs(isa, block)
    }
}

impl Codec for Q5K {
    const DTYPE: DType = DType::Q5K;
    const LARGEST: u8 = 31;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        let mut high = isa.load(bytes_at(block, 16));
        for pair in 0..4 {
            let packed = isa.load(bytes_at(block, 48 + 32 * pair));
            let fifth = isa.shift_left(isa.shift_mask(high, 0, 1), 4);
            each(2 * pair, isa.or(isa.shift_mask(packed, 0, 15), fifth));
            let fifth = isa.shift_left(isa.shift_mask(high, 0, 2), 3);
            each(2 * pair + 1, isa.or(isa.shift_mask(packed, 4, 15), fifth));
            high = isa.shift_mask(high, 2, 0x3f);
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        factors_of_pairs(isa, block)
    }
}

impl Codec for Q6K {
    const DTYPE: DType = DType::Q6K;
    const LARGEST: u8 = 63;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for part in 0..2 {
            let high = isa.load(bytes_at(block, 128 + 32 * part));
            let a = isa.load(bytes_at(block, 64 * part));
            let b = isa.load(bytes_at(block, 64 * part + 32));
            let upper = isa.shift_left(isa.shift_mask(high, 0, 3), 4);
            each(4 * part, isa.or(isa.shift_mask(a, 0, 15), upper));
            let upper = isa.shift_left(isa.shift_mask(high, 0, 12), 2);
            each(4 * part + 1, isa.or(isa.shift_mask(b, 0, 15), upper));
            let upper = isa.shift_mask(high, 0, 0x30);
            each(4 * part + 2, isa.or(isa.shift_mask(a, 4, 15), upper));
            let upper = isa.shift_mask(high, 2, 0x30);
            each(4 * part + 3, isa.or(isa.shift_mask(b, 4, 15), upper));
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        let scales = [192, 200].map(|at| u64::from_le_bytes(*bytes_at(block, at)));
        Factors::centred_halves(isa, times_pairs(isa, isa.half(half_bits(block, 208)), scales), 32.0)
    }
}

impl Codec for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const LARGEST: u8 = 255;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for group in 0..8 {
            each(group, isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 8 + 16 * group))));
        }
    }

    #[inline(always)]
    fn factors<I: Isa, const GROUPS: usize>(isa: I, block: &[u8]) -> Factors<I> {
        let low = u64::from(u32::from_le_bytes(*bytes_at(block, 4)));
        let scales = six_bit_split(low, u64::from(half_bits(block, 2)));
        Factors::scaled(isa, times_bytes(isa, isa.half(half_bits(block, 0)), scales))
    }
}
