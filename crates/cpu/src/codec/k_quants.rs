//! Super-blocks of 256 weights with small integer scales. Layouts: ggml `ggml-common.h`.

use super::{Codec, Factors, IQ4_VALUES, ROWS, bytes_at, half_bits};
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

/// `factors` of the eight small integers, packed as signed bytes, of each row, times the row's own factor.
#[inline(always)]
fn eight_of_rows<I: Isa>(isa: I, integers: &[u64; ROWS], factors: &[f32; ROWS]) -> [I::Floats; 8] {
    let mut rows = [isa.splat(0.0); ROWS];
    for row in 0..ROWS {
        rows[row] = isa.multiply(isa.floats_of_bytes(integers[row]), isa.splat(factors[row]));
    }
    isa.transpose(&rows)
}

/// One factor per group.
#[inline(always)]
fn per_group<I: Isa>(isa: I, into: &mut [[I::Floats; 2]; 8], integers: &[u64; ROWS], factors: &[f32; ROWS]) {
    let eight = eight_of_rows(isa, integers, factors);
    for group in 0..8 {
        into[group][0] = eight[group];
    }
}

/// One factor per half group: the first eight belong to groups 0 to 3.
#[inline(always)]
fn per_half<I: Isa>(
    isa: I,
    into: &mut [[I::Floats; 2]; 8],
    integers: &[[u64; ROWS]; 2],
    factors: &[f32; ROWS],
) {
    for part in 0..2 {
        let eight = eight_of_rows(isa, &integers[part], factors);
        for group in 0..4 {
            into[4 * part + group] = [eight[2 * group], eight[2 * group + 1]];
        }
    }
}

/// Minimums of values that are stored with `centre` added.
#[inline(always)]
fn centre<I: Isa>(isa: I, factors: &mut Factors<I>, centre: f32) {
    let centre = isa.splat(-centre);
    for group in 0..8 {
        for half in 0..2 {
            factors.minimums[group][half] = isa.multiply(factors.scales[group][half], centre);
        }
    }
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
    // Bytes below 64 with 32 taken off: no borrow crosses a byte once the top bit is set, and it ends as the sign.
    let centred =
        |bytes: u64| ((bytes | 0x8080_8080_8080_8080) - 0x2020_2020_2020_2020) ^ 0x8080_8080_8080_8080;
    [
        centred(low & 0x0f0f_0f0f_0f0f_0f0f | two_bits(0)),
        centred(low >> 4 & 0x0f0f_0f0f_0f0f_0f0f | two_bits(4)),
    ]
}

impl Codec for Q2K {
    const DTYPE: DType = DType::Q2K;
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
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        const NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        let (mut scales, mut minimums) = ([[0; ROWS]; 2], [[0; ROWS]; 2]);
        let (mut scale, mut minimum) = ([0.0; ROWS], [0.0; ROWS]);
        for row in 0..ROWS {
            for part in 0..2 {
                let packed = u64::from_le_bytes(*bytes_at(blocks[row], 8 * part));
                scales[part][row] = packed & NIBBLES;
                minimums[part][row] = packed >> 4 & NIBBLES;
            }
            scale[row] = isa.half(half_bits(blocks[row], 80));
            minimum[row] = -isa.half(half_bits(blocks[row], 82));
        }
        let mut factors = Factors::zeros(isa);
        per_half(isa, &mut factors.scales, &scales, &scale);
        per_half(isa, &mut factors.minimums, &minimums, &minimum);
        factors
    }
}

impl Codec for Q3K {
    const DTYPE: DType = DType::Q3K;
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
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        let mut scales = [[0; ROWS]; 2];
        let mut scale = [0.0; ROWS];
        for row in 0..ROWS {
            [scales[0][row], scales[1][row]] = six_bit_centred(bytes_at(blocks[row], 96));
            scale[row] = isa.half(half_bits(blocks[row], 108));
        }
        let mut factors = Factors::zeros(isa);
        per_half(isa, &mut factors.scales, &scales, &scale);
        centre(isa, &mut factors, 4.0);
        factors
    }
}

/// Scales and minimums of Q4_K and Q5_K, which start alike.
#[inline(always)]
fn factors_of_pairs<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
    let (mut scales, mut minimums) = ([0; ROWS], [0; ROWS]);
    let (mut scale, mut minimum) = ([0.0; ROWS], [0.0; ROWS]);
    for row in 0..ROWS {
        (scales[row], minimums[row]) = six_bit_pairs(bytes_at(blocks[row], 4));
        scale[row] = isa.half(half_bits(blocks[row], 0));
        minimum[row] = -isa.half(half_bits(blocks[row], 2));
    }
    let mut factors = Factors::zeros(isa);
    per_group(isa, &mut factors.scales, &scales, &scale);
    per_group(isa, &mut factors.minimums, &minimums, &minimum);
    factors
}

impl Codec for Q4K {
    const DTYPE: DType = DType::Q4K;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for pair in 0..4 {
            let packed = isa.load(bytes_at(block, 16 + 32 * pair));
            each(2 * pair, isa.shift_mask(packed, 0, 15));
            each(2 * pair + 1, isa.shift_mask(packed, 4, 15));
        }
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        factors_of_pairs(isa, blocks)
    }
}

impl Codec for Q5K {
    const DTYPE: DType = DType::Q5K;

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
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        factors_of_pairs(isa, blocks)
    }
}

impl Codec for Q6K {
    const DTYPE: DType = DType::Q6K;
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
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        let mut scales = [[0; ROWS]; 2];
        let mut scale = [0.0; ROWS];
        for row in 0..ROWS {
            for part in 0..2 {
                scales[part][row] = u64::from_le_bytes(*bytes_at(blocks[row], 192 + 8 * part));
            }
            scale[row] = isa.half(half_bits(blocks[row], 208));
        }
        let mut factors = Factors::zeros(isa);
        per_half(isa, &mut factors.scales, &scales, &scale);
        centre(isa, &mut factors, 32.0);
        factors
    }
}

impl Codec for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn bytes<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(usize, I::Bytes)) {
        for group in 0..8 {
            each(group, isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 8 + 16 * group))));
        }
    }

    #[inline(always)]
    fn factors<I: Isa>(isa: I, blocks: &[&[u8]; ROWS]) -> Factors<I> {
        let mut scales = [0; ROWS];
        let mut scale = [0.0; ROWS];
        for row in 0..ROWS {
            let low = u32::from_le_bytes(*bytes_at(blocks[row], 4));
            let high = u32::from(half_bits(blocks[row], 2));
            for group in 0..8 {
                let six_bits = low >> (4 * group) & 15 | (high >> (2 * group) & 3) << 4;
                scales[row] |= u64::from((six_bits as u8).wrapping_sub(32)) << (8 * group);
            }
            scale[row] = isa.half(half_bits(blocks[row], 0));
        }
        let mut factors = Factors::zeros(isa);
        per_group(isa, &mut factors.scales, &scales, &scale);
        factors
    }
}
