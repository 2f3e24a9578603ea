//! Blocks of 32 values with one scale, and for the `_1` types one minimum: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.
//!
//! The low nibble of quant byte `j` belongs to value `j`, the high nibble to value `j + 16`.

use super::search::{self, Affine, WEIGHTED_TRIALS};
use super::{extreme, f16_at, inverse, put_f16};

/// Scale, 16 bytes of nibbles; value = scale * (nibble - 8).
pub(super) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for j in 0..16 {
        let byte = block[2 + j];
        out[j] = f32::from(i16::from(byte & 15) - 8) * scale;
        out[j + 16] = f32::from(i16::from(byte >> 4) - 8) * scale;
    }
}

/// Scale, minimum, 16 bytes of nibbles; value = scale * nibble + minimum.
pub(super) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    for j in 0..16 {
        let byte = block[4 + j];
        out[j] = f32::from(byte & 15) * scale + min;
        out[j + 16] = f32::from(byte >> 4) * scale + min;
    }
}

/// Scale, fifth bits, 16 bytes of nibbles; value = scale * (quant - 16).
pub(super) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = f32::from(i16::from(five_bits(block, 2, j)) - 16) * scale;
    }
}

/// Scale, minimum, fifth bits, 16 bytes of nibbles; value = scale * quant + minimum.
pub(super) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (f16_at(block, 0), f16_at(block, 2));
    for (j, out) in out.iter_mut().enumerate() {
        *out = f32::from(five_bits(block, 4, j)) * scale + min;
    }
}

/// Scale, 32 signed bytes; value = scale * byte.
pub(super) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = f16_at(block, 0);
    for (byte, out) in block[2..].iter().zip(out) {
        *out = f32::from(byte.cast_signed()) * scale;
    }
}

/// Quant `j` of a block whose 4 bytes of fifth bits start at `high`, followed by the nibbles.
fn five_bits(block: &[u8], high: usize, j: usize) -> u8 {
    let byte = block[high + 4 + j % 16];
    let nibble = if j < 16 { byte & 15 } else { byte >> 4 };
    let fifth = block[high + j / 8] >> (j % 8) & 1;
    nibble | fifth << 4
}

/// Writes quants below 32 in the layout that `five_bits` reads.
fn put_five_bits(block: &mut [u8], high: usize, quants: &[u8; 32]) {
    block[high..high + 20].fill(0);
    for (j, &quant) in quants.iter().enumerate() {
        block[high + 4 + j % 16] |= if j < 16 { quant & 15 } else { quant << 4 };
        block[high + j / 8] |= (quant >> 4) << (j % 8);
    }
}

fn put_nibbles(nibbles: &mut [u8], quants: &[u8; 32]) {
    for (j, byte) in nibbles.iter_mut().enumerate() {
        *byte = quants[j] | quants[j + 16] << 4;
    }
}

/// Quants of a symmetric type: the value of greatest magnitude becomes `-half`, with `0.5` added to round.
fn symmetric(values: &[f32; 32], half: u8) -> (f32, [u8; 32]) {
    let half_f = f32::from(half);
    let scale = extreme(values) / -half_f;
    let inverse = inverse(scale);
    // A conversion from float saturates, so the result is in 0..=255 before the upper bound is applied.
    (scale, values.map(|value| ((value * inverse + (half_f + 0.5)) as u8).min(2 * half - 1)))
}

/// Quants of a type with a minimum: the range of the values is spread over `0..=top`.
fn affine(values: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let mut min = f32::MAX;
    let mut max = f32::MIN;
    for &value in values {
        min = if value < min { value } else { min };
        max = if value > max { value } else { max };
    }
    let scale = (max - min) / f32::from(top);
    let inverse = inverse(scale);
    (scale, min, values.map(|value| (((value - min) * inverse + 0.5) as u8).min(top)))
}

pub(super) fn encode_q4_0(values: &[f32; 32], block: &mut [u8; 18]) {
    put_q4_0(symmetric(values, 8), block);
}

/// `weights` say what the errors count.
pub(super) fn encode_q4_0_weighted(values: &[f32; 32], weights: &[f32; 32], block: &mut [u8; 18]) {
    put_q4_0(search::symmetric(values, weights, 8), block);
}

fn put_q4_0((scale, quants): (f32, [u8; 32]), block: &mut [u8; 18]) {
    put_f16(block, 0, scale);
    put_nibbles(&mut block[2..], &quants);
}

pub(super) fn encode_q4_1(values: &[f32; 32], block: &mut [u8; 20]) {
    put_q4_1(affine(values, 15), block);
}

/// `weights` say what the errors count.
pub(super) fn encode_q4_1_weighted(values: &[f32; 32], weights: &[f32; 32], block: &mut [u8; 20]) {
    put_q4_1(affine_weighted(values, weights, 15), block);
}

fn put_q4_1((scale, min, quants): (f32, f32, [u8; 32]), block: &mut [u8; 20]) {
    put_f16(block, 0, scale);
    put_f16(block, 2, min);
    put_nibbles(&mut block[4..], &quants);
}

pub(super) fn encode_q5_0(values: &[f32; 32], block: &mut [u8; 22]) {
    put_q5_0(symmetric(values, 16), block);
}

/// `weights` say what the errors count.
pub(super) fn encode_q5_0_weighted(values: &[f32; 32], weights: &[f32; 32], block: &mut [u8; 22]) {
    put_q5_0(search::symmetric(values, weights, 16), block);
}

fn put_q5_0((scale, quants): (f32, [u8; 32]), block: &mut [u8; 22]) {
    put_f16(block, 0, scale);
    put_five_bits(block, 2, &quants);
}

pub(super) fn encode_q5_1(values: &[f32; 32], block: &mut [u8; 24]) {
    put_q5_1(affine(values, 31), block);
}

/// `weights` say what the errors count.
pub(super) fn encode_q5_1_weighted(values: &[f32; 32], weights: &[f32; 32], block: &mut [u8; 24]) {
    put_q5_1(affine_weighted(values, weights, 31), block);
}

fn put_q5_1((scale, min, quants): (f32, f32, [u8; 32]), block: &mut [u8; 24]) {
    put_f16(block, 0, scale);
    put_f16(block, 2, min);
    put_five_bits(block, 4, &quants);
}

fn affine_weighted(values: &[f32; 32], weights: &[f32; 32], top: u8) -> (f32, f32, [u8; 32]) {
    let Affine { scale, lowering, quants } = search::affine(values, weights, top, &WEIGHTED_TRIALS);
    (scale, -lowering, quants)
}

pub(super) fn encode_q8_0(values: &[f32; 32], block: &mut [u8; 34]) {
    let scale = extreme(values).abs() / 127.0;
    let inverse = inverse(scale);
    put_f16(block, 0, scale);
    for (value, byte) in values.iter().zip(&mut block[2..]) {
        *byte = ((value * inverse).round() as i8).cast_unsigned();
    }
}
