//! Super-blocks of 256 values whose parts have small integer scales: Q2_K to Q6_K.

use super::f16_at;

/// 16 bytes of scale and minimum nibbles, 64 bytes of 2-bit quants, scale, scale of minima.
pub(super) fn decode_q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[part] & 15);
        let min = dmin * f32::from(scales[part] >> 4);
        let (start, shift) = two_bit_part(part);
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(quants[start + l] >> shift & 3) - min;
        }
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit quants, 12 bytes of 6-bit scales, scale.
pub(super) fn decode_q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(i16::from(q3_k_scale(scales, part)) - 32);
        let (start, shift) = two_bit_part(part);
        for (l, out) in out.iter_mut().enumerate() {
            // Bit `part / 2` of the mask, set when the quant is not to be lowered by 4.
            let third = high[part % 2 * 16 + l] >> (part / 2) & 1;
            let quant = quants[start + l] >> shift & 3 | third << 2;
            *out = scale * f32::from(i16::from(quant) - 4);
        }
    }
}

/// First byte and shift of the 2-bit quants of a part of 16 values: 128 values share 32 bytes.
fn two_bit_part(part: usize) -> (usize, usize) {
    (part / 8 * 32 + part % 2 * 16, part % 8 / 2 * 2)
}

/// Scale `part` of 16: low nibbles in bytes 0 to 7, two high bits in bytes 8 to 11.
fn q3_k_scale(scales: &[u8], part: usize) -> u8 {
    let low = scales[part % 8] >> (part / 8 * 4) & 15;
    let high = scales[8 + part % 4] >> (part / 4 * 2) & 3;
    low | high << 4
}

/// Scale, scale of minima, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles.
pub(super) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scales, quants) = (&block[4..16], &block[16..]);
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, part);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(nibble(quants, part, l)) - min;
        }
    }
}

/// Scale, scale of minima, 12 bytes of 6-bit scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles.
pub(super) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scales, high, quants) = (&block[4..16], &block[16..48], &block[48..]);
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, part);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            let quant = nibble(quants, part, l) | (high[l] >> part & 1) << 4;
            *out = scale * f32::from(quant) - min;
        }
    }
}

/// Nibble `l` of a part of 32 values: two parts share 32 bytes, the first one has the low nibbles.
fn nibble(quants: &[u8], part: usize, l: usize) -> u8 {
    quants[part / 2 * 32 + l] >> (part % 2 * 4) & 15
}

/// The 6-bit scale and minimum of part `part` of 8, packed in 12 bytes.
fn scale_and_min(packed: &[u8], part: usize) -> (u8, u8) {
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let low = packed[part + 4];
    (low & 15 | packed[part - 4] >> 6 << 4, low >> 4 | packed[part] >> 6 << 4)
}

/// 128 bytes of low nibbles, 64 bytes of 2 high bits, 16 signed scales, scale; value = scale * (quant - 32).
pub(super) fn decode_q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = f16_at(block, 208);
    for (row, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Each half of 128 values is 4 rows of 32: rows 0 and 2 share nibble bytes, as do 1 and 3.
        let (half, row_in_half) = (row / 4, row % 4);
        for (l, out) in out.iter_mut().enumerate() {
            let nibble = low[half * 64 + row_in_half % 2 * 32 + l] >> (row_in_half / 2 * 4) & 15;
            let top = high[half * 32 + l] >> (row_in_half * 2) & 3;
            let scale = d * f32::from(scales[row * 2 + l / 16].cast_signed());
            *out = scale * f32::from(i16::from(nibble | top << 4) - 32);
        }
    }
}
