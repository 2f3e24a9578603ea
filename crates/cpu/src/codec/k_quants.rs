//! Super-blocks of 256 weights with small integer scales. Layouts: ggml `ggml-common.h`.

use super::{Codec, IQ4_VALUES, Sub, bytes_at, half_at};
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

/// The 6-bit scale and minimum number `i` (0..8) of Q4_K and Q5_K, packed in 12 bytes.
#[inline(always)]
fn six_bit_pair(packed: &[u8; 12], i: usize) -> (f32, f32) {
    let (scale, minimum) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        (packed[i + 4] & 15 | packed[i - 4] >> 6 << 4, packed[i + 4] >> 4 | packed[i] >> 6 << 4)
    };
    (f32::from(scale), f32::from(minimum))
}

/// The 6-bit scale number `i` (0..16) of Q3_K, packed in 12 bytes, centred at 32.
#[inline(always)]
fn six_bit_centred(packed: &[u8; 12], i: usize) -> f32 {
    let low = if i < 8 { packed[i] & 15 } else { packed[i - 8] >> 4 };
    let high = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
    f32::from(low | high << 4) - 32.0
}

impl Codec for Q2K {
    const DTYPE: DType = DType::Q2K;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
        for sub in 0..8 {
            let packed = isa.load(bytes_at(block, 16 + 32 * (sub / 4)));
            let pair = [block[2 * sub], block[2 * sub + 1]];
            each(Sub {
                bytes: isa.shift_mask(packed, 2 * (sub % 4) as u8, 3),
                scale: pair.map(|byte| scale * f32::from(byte & 15)),
                minimum: pair.map(|byte| -minimum * f32::from(byte >> 4)),
            });
        }
    }
}

impl Codec for Q3K {
    const DTYPE: DType = DType::Q3K;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let high = isa.load(bytes_at(block, 0));
        let packed_scales = bytes_at(block, 96);
        let scale = half_at(block, 108);
        for sub in 0..8 {
            let low = isa.shift_mask(isa.load(bytes_at(block, 32 + 32 * (sub / 4))), 2 * (sub % 4) as u8, 3);
            let third = isa.shift_left(isa.shift_mask(high, sub as u8, 1), 2);
            let scale = [2 * sub, 2 * sub + 1].map(|i| scale * six_bit_centred(packed_scales, i));
            each(Sub { bytes: isa.or(low, third), scale, minimum: scale.map(|scale| -4.0 * scale) });
        }
    }
}

impl Codec for Q4K {
    const DTYPE: DType = DType::Q4K;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        for sub in 0..8 {
            let (small_scale, small_minimum) = six_bit_pair(bytes_at(block, 4), sub);
            let packed = isa.load(bytes_at(block, 16 + 32 * (sub / 2)));
            let bytes = isa.shift_mask(packed, 4 * (sub % 2) as u8, 15);
            each(Sub::whole(bytes, scale * small_scale, -minimum * small_minimum));
        }
    }
}

impl Codec for Q5K {
    const DTYPE: DType = DType::Q5K;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
        let high = isa.load(bytes_at(block, 16));
        for sub in 0..8 {
            let (small_scale, small_minimum) = six_bit_pair(bytes_at(block, 4), sub);
            let packed = isa.load(bytes_at(block, 48 + 32 * (sub / 2)));
            let low = isa.shift_mask(packed, 4 * (sub % 2) as u8, 15);
            let fifth = isa.shift_left(isa.shift_mask(high, sub as u8, 1), 4);
            each(Sub::whole(isa.or(low, fifth), scale * small_scale, -minimum * small_minimum));
        }
    }
}

impl Codec for Q6K {
    const DTYPE: DType = DType::Q6K;
    const PER_HALF: bool = true;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let scale = half_at(block, 208);
        for sub in 0..8 {
            let (half, quarter) = (sub / 4, sub % 4);
            let packed = isa.load(bytes_at(block, 64 * half + 32 * (quarter % 2)));
            let low = isa.shift_mask(packed, 4 * (quarter / 2) as u8, 15);
            let high = isa.shift_mask(isa.load(bytes_at(block, 128 + 32 * half)), 2 * quarter as u8, 3);
            let scale = [192 + 2 * sub, 193 + 2 * sub].map(|i| scale * f32::from(block[i] as i8));
            each(Sub {
                bytes: isa.or(low, isa.shift_left(high, 4)),
                scale,
                minimum: scale.map(|scale| -32.0 * scale),
            });
        }
    }
}

impl Codec for Iq4Xs {
    const DTYPE: DType = DType::Iq4Xs;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let scale = half_at(block, 0);
        let high = u16::from_le_bytes(*bytes_at(block, 2));
        for sub in 0..8 {
            let low = block[4 + sub / 2] >> (4 * (sub % 2)) & 15;
            let six_bits = f32::from(low) + 16.0 * f32::from(high >> (2 * sub) & 3);
            let bytes = isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 8 + 16 * sub)));
            each(Sub::whole(bytes, scale * (six_bits - 32.0), 0.0));
        }
    }
}
