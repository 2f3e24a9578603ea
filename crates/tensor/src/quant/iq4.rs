//! Four bits through a table of 16 values, denser around zero: IQ4_NL and IQ4_XS.

use super::search::{ZERO, error_weights, nearest_int, sum_of_squares};
use super::{extreme, f16_at, inverse, put_f16};

/// What the 16 quants stand for, in units of the scale (`kvalues_iq4nl` in `ggml-common.h`).
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Scale, 16 bytes of nibbles; byte `j` has the quants of values `j` and `j + 16`.
pub(super) fn decode_iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    decode_32(f16_at(block, 0), &block[2..], out);
}

/// Scale, 2 high bits of 8 scales, 4 low bits of 8 scales, 128 bytes of nibbles.
pub(super) fn decode_iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let (high, low, quants) = (&block[2..4], &block[4..8], &block[8..]);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let low = low[part / 2] >> (part % 2 * 4) & 15;
        let high = high[part / 4] >> (part % 4 * 2) & 3;
        let scale = d * f32::from(i16::from(low | high << 4) - 32);
        decode_32(scale, &quants[part * 16..][..16], out);
    }
}

fn decode_32(scale: f32, quants: &[u8], out: &mut [f32; 32]) {
    for (j, &byte) in quants.iter().enumerate() {
        out[j] = scale * level(byte & 15);
        out[j + 16] = scale * level(byte >> 4);
    }
}

fn level(quant: u8) -> f32 {
    f32::from(LEVELS[usize::from(quant)])
}

/// The quant whose level is nearest; the upper one at equal distance.
fn nearest(value: f32) -> u8 {
    let above = LEVELS.partition_point(|&level| f32::from(level) <= value) as u8;
    match above {
        0 => 0,
        16 => 15,
        _ if value - level(above - 1) < level(above) - value => above - 1,
        _ => above,
    }
}

/// How many levels the trial scales reach to either side of the first guess.
const TRIALS: i8 = 7;

pub(super) fn encode_iq4_nl(values: &[f32; 32], block: &mut [u8; 18]) {
    put_iq4_nl(values, best_scale(values, &squares(values)), block);
}

pub(super) fn encode_iq4_nl_weighted(values: &[f32; 32], importance: &[f32; 32], block: &mut [u8; 18]) {
    let weights = error_weights(values, importance, sum_of_squares(values) * (2.0 / 32.0));
    put_iq4_nl(values, best_scale(values, &weights), block);
}

fn put_iq4_nl(values: &[f32; 32], scale: f32, block: &mut [u8; 18]) {
    put_f16(block, 0, scale);
    put_quants(values, scale, &mut block[2..]);
}

pub(super) fn encode_iq4_xs(values: &[f32; 256], block: &mut [u8; 136]) {
    encode_iq4_xs_with(values, |_, values| squares(values), block);
}

pub(super) fn encode_iq4_xs_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 136]) {
    let mean_square = sum_of_squares(values) * (2.0 / 256.0);
    let importance = importance.as_chunks().0;
    encode_iq4_xs_with(values, |part, values| error_weights(values, &importance[part], mean_square), block);
}

fn encode_iq4_xs_with(
    values: &[f32; 256],
    weigh: impl Fn(usize, &[f32; 32]) -> [f32; 32],
    block: &mut [u8; 136],
) {
    let values = values.as_chunks::<32>().0;
    let scales: [f32; 8] = std::array::from_fn(|part| best_scale(&values[part], &weigh(part, &values[part])));
    let unit = -extreme(&scales) / 32.0;
    let to_code = inverse(unit);
    block.fill(0);
    put_f16(block, 0, unit);
    for (part, values) in values.iter().enumerate() {
        let code = nearest_int(to_code * scales[part]).clamp(-32, 31);
        // The unit before it is rounded to half precision, as in ggml.
        put_quants(values, unit * code as f32, &mut block[8 + part * 16..][..16]);
        let code = (code + 32) as u8;
        block[2 + part / 4] |= (code >> 4) << (part % 4 * 2);
        block[4 + part / 2] |= (code & 15) << (part % 2 * 4);
    }
}

fn put_quants(values: &[f32; 32], scale: f32, bytes: &mut [u8]) {
    let inverse = inverse(scale);
    for (j, byte) in bytes.iter_mut().enumerate() {
        *byte = nearest(inverse * values[j]) | nearest(inverse * values[j + 16]) << 4;
    }
}

fn squares(values: &[f32; 32]) -> [f32; 32] {
    values.map(|value| value * value)
}

/// The scale, of a few tried, with the least weighted squared error.
fn best_scale(values: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let max = extreme(values);
    if max.abs() < ZERO {
        return 0.0;
    }
    let (xq, qq) = weighted_sums(values, weights, 1.0 / (-max / f32::from(LEVELS[0])));
    let mut scale = if qq > 0.0 { xq / qq } else { 0.0 };
    let mut best = scale * xq;
    for trial in -TRIALS..=TRIALS {
        let inverse = (f32::from(trial) + f32::from(LEVELS[0])) / max;
        let (xq, qq) = weighted_sums(values, weights, inverse);
        if qq > 0.0 && xq * xq > best * qq {
            scale = xq / qq;
            best = scale * xq;
        }
    }
    scale
}

/// Weighted sums of value times level and of level squared, for values divided by a scale.
fn weighted_sums(values: &[f32; 32], weights: &[f32; 32], inverse: f32) -> (f32, f32) {
    let (mut xq, mut qq) = (0.0, 0.0);
    for (&value, &weight) in values.iter().zip(weights) {
        let level = level(nearest(inverse * value));
        xq += weight * level * value;
        qq += weight * level * level;
    }
    (xq, qq)
}
