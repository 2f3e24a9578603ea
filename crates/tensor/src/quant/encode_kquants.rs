//! Encoders of Q2_K to Q6_K, to the layouts that `kquants` reads.
//!
//! All work in three steps: find scale (and minimum) of each part of a super-block, store these as small
//! integers times a scale of the super-block, and round the values again with what the integers stand for.

use super::put_f16;
use super::search::{
    Affine, Penalty, Trials, WEIGHTED_TRIALS, ZERO, affine, error_weights, nearest_int, sum, sum_of_squares,
    symmetric, symmetric_by_descent, unsigned,
};

const Q2_K_TRIALS: Trials = Trials { first: -0.5, step: 0.1, last: 15, penalty: Penalty::Absolute };
const Q4_K_TRIALS: Trials = Trials { first: -1.0, step: 0.1, last: 20, penalty: Penalty::Squared };
const Q5_K_TRIALS: Trials = Trials { first: -0.5, step: 0.1, last: 15, penalty: Penalty::Squared };

/// Largest integer scale or minimum of a part of Q2_K, and of Q4_K and Q5_K.
const FOUR_BITS: u8 = 15;
const SIX_BITS: u8 = 63;

/// The fits of the parts of a super-block.
struct Parts<const PARTS: usize> {
    scales: [f32; PARTS],
    /// What is subtracted; not negative.
    mins: [f32; PARTS],
    /// Sums of the weights.
    weights: [f32; PARTS],
    quants: [u8; 256],
}

/// Integers for the parts' scales or minima, and what 1 stands for.
struct Codes<const PARTS: usize> {
    unit: f32,
    codes: [u8; PARTS],
}

/// Fits each part of `LEN` values, with the weights that `weigh` gives for its number and values.
fn fit<const LEN: usize, const PARTS: usize>(
    values: &[f32; 256],
    weigh: impl Fn(usize, &[f32; LEN]) -> [f32; LEN],
    top: u8,
    trials: &Trials,
) -> Parts<PARTS> {
    let mut parts =
        Parts { scales: [0.0; PARTS], mins: [0.0; PARTS], weights: [0.0; PARTS], quants: [0; 256] };
    let outs = parts.quants.as_chunks_mut::<LEN>().0;
    for (part, (values, out)) in values.as_chunks::<LEN>().0.iter().zip(outs).enumerate() {
        let weights = weigh(part, values);
        let Affine { scale, lowering, quants } = affine(values, &weights, top, trials);
        (parts.scales[part], parts.mins[part]) = (scale, lowering);
        parts.weights[part] = sum(&weights);
        *out = quants;
    }
    parts
}

/// Codes that give the greatest number the code `top`.
fn spread<const PARTS: usize>(numbers: &[f32; PARTS], top: u8) -> Codes<PARTS> {
    let max = numbers.iter().fold(0.0_f32, |max, &number| if number > max { number } else { max });
    let inverse = if max > 0.0 { f32::from(top) / max } else { 0.0 };
    let codes = numbers.map(|number| nearest_int(inverse * number).clamp(0, i32::from(top)) as u8);
    Codes { unit: max / f32::from(top), codes }
}

/// Codes with the least weighted error.
fn fitted<const PARTS: usize>(numbers: &[f32; PARTS], weights: &[f32; PARTS], top: u8) -> Codes<PARTS> {
    let (unit, codes) = unsigned(numbers, weights, top);
    Codes { unit, codes }
}

/// A scale as it will be read.
fn stored(value: f32) -> f32 {
    half::f16::from_f32(value).to_f32()
}

/// Rounds again with the stored scales and minima. Parts with scale 0 keep their quants.
fn round_again<const LEN: usize, const PARTS: usize>(
    values: &[f32; 256],
    quants: &mut [u8; 256],
    scales: &Codes<PARTS>,
    mins: &Codes<PARTS>,
    top: u8,
) {
    let (scale_unit, min_unit) = (stored(scales.unit), stored(mins.unit));
    let outs = quants.as_chunks_mut::<LEN>().0;
    for (part, (values, out)) in values.as_chunks::<LEN>().0.iter().zip(outs).enumerate() {
        let scale = scale_unit * f32::from(scales.codes[part]);
        if scale == 0.0 {
            continue;
        }
        let min = min_unit * f32::from(mins.codes[part]);
        *out = values.map(|value| nearest_int((value + min) / scale).clamp(0, i32::from(top)) as u8);
    }
}

/// As [`round_again`] for quants around 0, which are stored with `half` added.
fn round_again_symmetric(
    values: &[f32; 256],
    quants: &mut [u8; 256],
    unit: f32,
    scales: &[i8; 16],
    half: i32,
) {
    let unit = stored(unit);
    let outs = quants.as_chunks_mut::<16>().0;
    for (part, (values, out)) in values.as_chunks::<16>().0.iter().zip(outs).enumerate() {
        let scale = unit * f32::from(scales[part]);
        if scale == 0.0 {
            continue;
        }
        *out = values.map(|value| (nearest_int(value / scale).clamp(-half, half - 1) + half) as u8);
    }
}

/// Importance weights of part `part`.
fn weigh_part<const LEN: usize>(
    part: usize,
    values: &[f32; LEN],
    importance: &[f32; 256],
    mean_square: f32,
) -> [f32; LEN] {
    error_weights(values, &importance.as_chunks::<LEN>().0[part], mean_square)
}

pub(super) fn encode_q2_k(values: &[f32; 256], block: &mut [u8; 84]) {
    let mut parts = fit(values, |_, values: &[f32; 16]| values.map(f32::abs), 3, &Q2_K_TRIALS);
    let (scales, mins) = (spread(&parts.scales, FOUR_BITS), spread(&parts.mins, FOUR_BITS));
    put_q2_k(values, &mut parts.quants, &scales, &mins, block);
}

pub(super) fn encode_q2_k_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 84]) {
    let mean_square = sum_of_squares(values) / 256.0;
    let weigh = |part, values: &[f32; 16]| weigh_part(part, values, importance, mean_square);
    let mut parts = fit(values, weigh, 3, &WEIGHTED_TRIALS);
    let scales = fitted(&parts.scales, &parts.weights, FOUR_BITS);
    let mins = fitted(&parts.mins, &parts.weights, FOUR_BITS);
    put_q2_k(values, &mut parts.quants, &scales, &mins, block);
}

fn put_q2_k(
    values: &[f32; 256],
    quants: &mut [u8; 256],
    scales: &Codes<16>,
    mins: &Codes<16>,
    block: &mut [u8; 84],
) {
    round_again::<16, 16>(values, quants, scales, mins, 3);
    for part in 0..16 {
        block[part] = scales.codes[part] | mins.codes[part] << 4;
    }
    put_two_bits(quants, &mut block[16..80]);
    put_f16(block, 80, scales.unit);
    put_f16(block, 82, mins.unit);
}

/// The low two bits of the quants: 128 values share 32 bytes.
fn put_two_bits(quants: &[u8; 256], bytes: &mut [u8]) {
    bytes.fill(0);
    for (j, &quant) in quants.iter().enumerate() {
        bytes[j / 128 * 32 + j % 32] |= (quant & 3) << (j % 128 / 32 * 2);
    }
}

pub(super) fn encode_q3_k(values: &[f32; 256], block: &mut [u8; 110]) {
    let (mut scales, mut quants) = ([0.0; 16], [0; 256]);
    for (part, (values, out)) in parts_of(values, &mut quants).enumerate() {
        (scales[part], *out) = symmetric_by_descent(values, 4);
    }
    let max = super::extreme(&scales);
    let (mut unit, mut codes) = (0.0, [0; 16]);
    if max != 0.0 {
        let inverse = -32.0 / max;
        unit = 1.0 / inverse;
        codes = scales.map(|scale| (nearest_int(inverse * scale).clamp(-32, 31) + 32) as u8);
    }
    put_q3_k(values, &mut quants, &Codes { unit, codes }, block);
}

pub(super) fn encode_q3_k_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 110]) {
    let mean_square = 2.0 * sum_of_squares(values) / 256.0;
    let (mut scales, mut sums, mut quants) = ([0.0; 16], [0.0; 16], [0; 256]);
    for (part, (values, out)) in parts_of(values, &mut quants).enumerate() {
        let weights = weigh_part(part, values, importance, mean_square);
        sums[part] = sum(&weights);
        (scales[part], *out) = symmetric(values, &weights, 4);
    }
    let (unit, codes) = symmetric(&scales, &sums, 32);
    put_q3_k(values, &mut quants, &Codes { unit, codes }, block);
}

fn parts_of<'a>(
    values: &'a [f32; 256],
    quants: &'a mut [u8; 256],
) -> impl Iterator<Item = (&'a [f32; 16], &'a mut [u8; 16])> {
    values.as_chunks().0.iter().zip(quants.as_chunks_mut().0)
}

/// Codes have 32 added.
fn put_q3_k(values: &[f32; 256], quants: &mut [u8; 256], scales: &Codes<16>, block: &mut [u8; 110]) {
    let signed = scales.codes.map(|code| code.cast_signed() - 32);
    round_again_symmetric(values, quants, scales.unit, &signed, 4);
    block[..32].fill(0);
    for (j, &quant) in quants.iter().enumerate() {
        block[j % 32] |= (quant >> 2) << (j / 32);
    }
    put_two_bits(quants, &mut block[32..96]);
    block[96..108].fill(0);
    for (part, &code) in scales.codes.iter().enumerate() {
        block[96 + part % 8] |= (code & 15) << (part / 8 * 4);
        block[104 + part % 4] |= (code >> 4) << (part / 4 * 2);
    }
    put_f16(block, 108, scales.unit);
}

/// Weights of Q4_K and Q5_K without importance: a magnitude that doesn't vanish for small values.
fn magnitude_weights(values: &[f32; 32]) -> [f32; 32] {
    let average = (sum_of_squares(values) / 32.0).sqrt();
    values.map(|value| average + value.abs())
}

pub(super) fn encode_q4_k(values: &[f32; 256], block: &mut [u8; 144]) {
    let parts = fit(values, |_, values| magnitude_weights(values), 15, &Q4_K_TRIALS);
    let (scales, mins) = (spread(&parts.scales, SIX_BITS), spread(&parts.mins, SIX_BITS));
    put_q4_k(values, parts.quants, &scales, &mins, block);
}

pub(super) fn encode_q4_k_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 144]) {
    let (quants, scales, mins) = fit_weighted_32(values, importance, 15);
    put_q4_k(values, quants, &scales, &mins, block);
}

pub(super) fn encode_q5_k(values: &[f32; 256], block: &mut [u8; 176]) {
    let parts = fit(values, |_, values| magnitude_weights(values), 31, &Q5_K_TRIALS);
    let (scales, mins) = (spread(&parts.scales, SIX_BITS), spread(&parts.mins, SIX_BITS));
    put_q5_k(values, parts.quants, &scales, &mins, block);
}

pub(super) fn encode_q5_k_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 176]) {
    let (quants, scales, mins) = fit_weighted_32(values, importance, 31);
    put_q5_k(values, quants, &scales, &mins, block);
}

/// Quants, scales and minima of 8 parts.
fn fit_weighted_32(values: &[f32; 256], importance: &[f32; 256], top: u8) -> ([u8; 256], Codes<8>, Codes<8>) {
    let mean_square = 2.0 * sum_of_squares(values) / 256.0;
    let weigh = |part, values: &[f32; 32]| weigh_part(part, values, importance, mean_square);
    let parts = fit(values, weigh, top, &WEIGHTED_TRIALS);
    let scales = fitted(&parts.scales, &parts.weights, SIX_BITS);
    let mins = fitted(&parts.mins, &parts.weights, SIX_BITS);
    (parts.quants, scales, mins)
}

fn put_q4_k(
    values: &[f32; 256],
    mut quants: [u8; 256],
    scales: &Codes<8>,
    mins: &Codes<8>,
    block: &mut [u8; 144],
) {
    round_again::<32, 8>(values, &mut quants, scales, mins, 15);
    put_scales_and_mins(scales, mins, &mut block[..16]);
    put_nibbles(&quants, &mut block[16..]);
}

fn put_q5_k(
    values: &[f32; 256],
    mut quants: [u8; 256],
    scales: &Codes<8>,
    mins: &Codes<8>,
    block: &mut [u8; 176],
) {
    round_again::<32, 8>(values, &mut quants, scales, mins, 31);
    put_scales_and_mins(scales, mins, &mut block[..16]);
    block[16..48].fill(0);
    for (j, &quant) in quants.iter().enumerate() {
        block[16 + j % 32] |= (quant >> 4) << (j / 32);
    }
    put_nibbles(&quants, &mut block[48..]);
}

/// Low nibbles: two parts of 32 values share 32 bytes.
fn put_nibbles(quants: &[u8; 256], bytes: &mut [u8]) {
    bytes.fill(0);
    for (j, &quant) in quants.iter().enumerate() {
        bytes[j / 64 * 32 + j % 32] |= (quant & 15) << (j % 64 / 32 * 4);
    }
}

/// The first 16 bytes of a block: both units, then the codes of 6 bits.
fn put_scales_and_mins(scales: &Codes<8>, mins: &Codes<8>, block: &mut [u8]) {
    put_f16(block, 0, scales.unit);
    put_f16(block, 2, mins.unit);
    let packed = &mut block[4..];
    for part in 0..4 {
        // The high bits of the upper four lie above those of the lower four.
        let (scale, min) = (scales.codes[part + 4], mins.codes[part + 4]);
        packed[part] = scales.codes[part] | scale >> 4 << 6;
        packed[part + 4] = mins.codes[part] | min >> 4 << 6;
        packed[part + 8] = scale & 15 | min << 4;
    }
}

pub(super) fn encode_q6_k(values: &[f32; 256], block: &mut [u8; 210]) {
    encode_q6_k_with(values, |_, values| values.map(|value| value * value), block);
}

pub(super) fn encode_q6_k_weighted(values: &[f32; 256], importance: &[f32; 256], block: &mut [u8; 210]) {
    // The importance alone: here ggml leaves the magnitude out.
    encode_q6_k_with(values, |part, _| importance.as_chunks().0[part], block);
}

fn encode_q6_k_with(
    values: &[f32; 256],
    weigh: impl Fn(usize, &[f32; 16]) -> [f32; 16],
    block: &mut [u8; 210],
) {
    let (mut scales, mut quants) = ([0.0; 16], [0; 256]);
    for (part, (values, out)) in parts_of(values, &mut quants).enumerate() {
        (scales[part], *out) = symmetric(values, &weigh(part, values), 32);
    }
    block.fill(0);
    let max = super::extreme(&scales);
    if max.abs() < ZERO {
        return;
    }
    let inverse = -128.0 / max;
    let unit = 1.0 / inverse;
    let codes = scales.map(|scale| nearest_int(inverse * scale).clamp(-128, 127) as i8);
    round_again_symmetric(values, &mut quants, unit, &codes, 32);
    for (j, &quant) in quants.iter().enumerate() {
        // Each half of 128 values is 4 rows of 32: rows 0 and 2 share nibble bytes, as do 1 and 3.
        let (half, row, l) = (j / 128, j % 128 / 32, j % 32);
        block[half * 64 + row % 2 * 32 + l] |= (quant & 15) << (row / 2 * 4);
        block[128 + half * 32 + l] |= (quant >> 4) << (row * 2);
    }
    for (part, code) in codes.iter().enumerate() {
        block[192 + part] = code.cast_unsigned();
    }
    put_f16(block, 208, unit);
}
