//! Heads of pages from one precision to another, through single precision.
//!
//! Keys have outlying channels that hardly change within a page, above all where the projection has a bias: a minimum
//! and a step per channel cost them nothing (KIVI, arXiv 2402.02750). Values have no such channels; the Hadamard
//! transform spreads what outliers there are (QuaRot, arXiv 2404.00456), and a refitted scale rounds with the least
//! squared error.

use crate::activation::{largest, rounded};
use crate::kv::layout::{GROUP, Head, HeadShape, PAGE_TOKENS, Parts, split_mut};
use half::f16;
use lichen_backend::KvPrecision;

/// The largest finite number in half precision.
const LARGEST_HALF: f32 = 65504.0;

/// The numbers of a head.
struct Numbers {
    /// `[channel][token]`.
    keys: Vec<f32>,
    /// `[token][channel]`.
    values: Vec<f32>,
}

/// Writes a head in another precision. Values that keep their form are copied, so that Q5 becomes Q4 without rounding
/// them a second time.
#[inline(always)]
pub(crate) fn convert(head: &Head<'_>, shape: HeadShape, precision: KvPrecision, out: &mut [u8]) {
    let numbers = decode(head, shape);
    let out = split_mut(precision, shape, out);
    encode_keys(precision, &numbers.keys, out.keys, out.fifth_bits, out.steps, out.minimums);
    match (head.precision, precision) {
        (KvPrecision::Q5, KvPrecision::Q4) => {
            out.values.copy_from_slice(head.parts.values);
            out.scales.copy_from_slice(head.parts.scales);
        }
        _ => encode_values(precision, shape, numbers.values, out.values, out.scales),
    }
}

/// The quad of channel or token `index` of `len`, its place in the quad, and the shift of its nibble.
#[inline(always)]
fn quad_place(index: usize, len: usize) -> (usize, usize, u8) {
    let (quad, pairs) = (index / 4, len / 8);
    (quad % pairs, index % 4, if quad < pairs { 0 } else { 4 })
}

#[inline(always)]
fn encode_keys(
    precision: KvPrecision,
    numbers: &[f32],
    codes: &mut [u8],
    fifth_bits: &mut [u8],
    steps: &mut [u16],
    minimums: &mut [u16],
) {
    match precision {
        KvPrecision::F32 => return bytemuck::cast_slice_mut(codes).copy_from_slice(numbers),
        KvPrecision::F16 => return to_halves(numbers, bytemuck::cast_slice_mut(codes)),
        KvPrecision::Q8 | KvPrecision::Q5 | KvPrecision::Q4 => {}
    }
    codes.fill(0);
    fifth_bits.fill(0);
    let stride = numbers.len() / PAGE_TOKENS;
    for (channel, tokens) in numbers.as_chunks::<PAGE_TOKENS>().0.iter().enumerate() {
        let levels = match precision {
            KvPrecision::Q8 => 255.0,
            KvPrecision::Q5 => 31.0,
            _ => 15.0,
        };
        let (coded, step, minimum) = encode_channel(tokens, levels);
        (steps[channel], minimums[channel]) = (step.to_bits(), minimum.to_bits());
        if precision == KvPrecision::Q8 {
            codes[channel * PAGE_TOKENS..][..PAGE_TOKENS].copy_from_slice(&coded);
            codes[channel * PAGE_TOKENS..][..PAGE_TOKENS].iter_mut().for_each(|code| *code ^= 0x80);
            continue;
        }
        let (row, place, shift) = quad_place(channel, stride);
        let quads = codes[row * PAGE_TOKENS * 4..].as_chunks_mut::<4>().0;
        for (quad, code) in quads.iter_mut().zip(coded) {
            quad[place] |= (code & 15) << shift;
        }
        if precision == KvPrecision::Q5 {
            let (row, bit) = (channel / 4 / 8, channel / 4 % 8);
            let quads = fifth_bits[row * PAGE_TOKENS * 4..].as_chunks_mut::<4>().0;
            for (quad, code) in quads.iter_mut().zip(coded) {
                quad[place] |= (code >> 4 & 1) << bit;
            }
        }
    }
}

/// Codes from 0 to `levels`, the step between them and the minimum: `value ~ minimum + step * code`.
///
/// The minimum is rounded down and the step up, so that no value lies outside.
#[inline(always)]
fn encode_channel(values: &[f32; PAGE_TOKENS], levels: f32) -> ([u8; PAGE_TOKENS], f16, f16) {
    let values = finite(values);
    let (mut least, mut most) = ([LARGEST_HALF; 8], [-LARGEST_HALF; 8]);
    for part in values.as_chunks::<8>().0 {
        for lane in 0..8 {
            least[lane] = least[lane].min(part[lane]);
            most[lane] = most[lane].max(part[lane]);
        }
    }
    let (least, most) =
        (least.into_iter().fold(LARGEST_HALF, f32::min), most.into_iter().fold(-LARGEST_HALF, f32::max));
    let minimum = at_most(least);
    let step = at_least((most - minimum.to_f32()) / levels);
    let (offset, size) = (minimum.to_f32(), step.to_f32());
    let inverse = if size > 0.0 { 1.0 / size } else { 0.0 };
    let mut codes = [0; PAGE_TOKENS];
    for (code, value) in codes.iter_mut().zip(&values) {
        *code = rounded(((value - offset) * inverse).clamp(0.0, levels));
    }
    (codes, step, minimum)
}

/// The values within the range of half precision.
#[inline(always)]
fn finite<const N: usize>(values: &[f32; N]) -> [f32; N] {
    let mut within = *values;
    for value in &mut within {
        *value = value.clamp(-LARGEST_HALF, LARGEST_HALF);
    }
    within
}

/// The largest number in half precision that is not above `value`, which is within its range.
fn at_most(value: f32) -> f16 {
    let near = f16::from_f32(value);
    match near.to_f32() <= value {
        true => near,
        false if near.to_f32() > 0.0 => f16::from_bits(near.to_bits() - 1),
        // Away from zero; below either zero lies the smallest negative number.
        false => f16::from_bits((near.to_bits() | 0x8000) + 1),
    }
}

/// The smallest number in half precision that is not below `value`, which is within its range.
fn at_least(value: f32) -> f16 {
    -at_most(-value)
}

#[inline(always)]
fn encode_values(
    precision: KvPrecision,
    shape: HeadShape,
    mut numbers: Vec<f32>,
    codes: &mut [u8],
    scales: &mut [u16],
) {
    match precision {
        KvPrecision::F32 => return bytemuck::cast_slice_mut(codes).copy_from_slice(&numbers),
        KvPrecision::F16 => return to_halves(&numbers, bytemuck::cast_slice_mut(codes)),
        KvPrecision::Q8 | KvPrecision::Q5 | KvPrecision::Q4 => {}
    }
    let stride = shape.stride;
    codes.fill(0);
    for (token, values) in numbers.chunks_exact_mut(stride).enumerate() {
        if precision != KvPrecision::Q8 {
            rotate(&mut values[..shape.head_dim], shape.rotated());
        }
        let (row, place, shift) = quad_place(token, PAGE_TOKENS);
        for (group, values) in values.chunks(GROUP).enumerate() {
            // The last group may be short.
            let mut padded = [0.0; GROUP];
            padded[..values.len()].copy_from_slice(values);
            let (coded, scale) = match precision {
                KvPrecision::Q8 => encode_eight_bits(&padded),
                _ => encode_four_bits(&padded),
            };
            scales[group * PAGE_TOKENS + token] = scale.to_bits();
            for (i, code) in coded.into_iter().enumerate().take(values.len()) {
                let channel = group * GROUP + i;
                match precision {
                    KvPrecision::Q8 => codes[token * stride + channel] = code,
                    _ => codes[(row * stride + channel) * 4 + place] |= code << shift,
                }
            }
        }
    }
}

/// Signed codes and a scale.
#[inline(always)]
fn encode_eight_bits(values: &[f32; GROUP]) -> ([u8; GROUP], f16) {
    let values = finite(values);
    let largest = largest(&values);
    let scale = at_least(largest / 127.0);
    let inverse = if largest > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let mut codes = [0; GROUP];
    for (code, value) in codes.iter_mut().zip(&values) {
        *code = rounded((value * inverse).clamp(-127.0, 127.0));
    }
    (codes, scale)
}

/// Codes from 0 to 15 that stand for -8 to 7, and the scale with the least squared error among some.
#[inline(always)]
fn encode_four_bits(values: &[f32; GROUP]) -> ([u8; GROUP], f16) {
    /// What the value of the largest magnitude may become.
    const PEAKS: [f32; 5] = [-8.5, -8.0, -7.5, -7.0, -6.5];
    let values = finite(values);
    let largest = largest(&values);
    // The sign of the value of the largest magnitude; the positive one if there are both.
    let peak = if values.contains(&largest) { largest } else { -largest };
    let mut best = ([0.0; GROUP], f16::ZERO, 0.0);
    for wanted in PEAKS {
        let inverse = if peak == 0.0 { 0.0 } else { wanted / peak };
        let mut codes = [0.0; GROUP];
        let (mut products, mut squares) = ([0.0f32; 8], [0.0f32; 8]);
        for (values, codes) in values.as_chunks::<8>().0.iter().zip(codes.as_chunks_mut::<8>().0) {
            for lane in 0..8 {
                codes[lane] = nearest(values[lane] * inverse).clamp(-8.0, 7.0);
                products[lane] += values[lane] * codes[lane];
                squares[lane] += codes[lane] * codes[lane];
            }
        }
        let (products, squares) = (products.iter().sum::<f32>(), squares.iter().sum::<f32>());
        // What the best scale for these codes takes off the squared error.
        let gain = if squares > 0.0 { products / squares * products } else { 0.0 };
        if gain > best.2 {
            let scale = (products / squares).clamp(-LARGEST_HALF, LARGEST_HALF);
            best = (codes, f16::from_f32(scale), gain);
        }
    }
    let mut codes = [0; GROUP];
    for (code, value) in codes.iter_mut().zip(best.0) {
        *code = rounded(value + 8.0);
    }
    (codes, best.1)
}

/// A small number rounded to the nearest integer, ties to even; see [`rounded`].
#[inline(always)]
fn nearest(value: f32) -> f32 {
    (value + 12_582_912.0) - 12_582_912.0
}

#[inline(always)]
fn to_halves(numbers: &[f32], out: &mut [u16]) {
    for (out, number) in out.iter_mut().zip(numbers) {
        *out = f16::from_f32(*number).to_bits();
    }
}

fn from_halves(halves: &[u16]) -> Vec<f32> {
    halves.iter().map(|&bits| f16::from_bits(bits).to_f32()).collect()
}

#[inline(always)]
fn decode(head: &Head<'_>, shape: HeadShape) -> Numbers {
    match head.precision {
        KvPrecision::F32 => Numbers {
            keys: bytemuck::cast_slice(head.parts.keys).to_vec(),
            values: bytemuck::cast_slice(head.parts.values).to_vec(),
        },
        KvPrecision::F16 => Numbers {
            keys: from_halves(bytemuck::cast_slice(head.parts.keys)),
            values: from_halves(bytemuck::cast_slice(head.parts.values)),
        },
        KvPrecision::Q8 | KvPrecision::Q5 | KvPrecision::Q4 => {
            Numbers { keys: decode_keys(head, shape), values: decode_values(head, shape) }
        }
    }
}

#[inline(always)]
fn decode_keys(head: &Head<'_>, shape: HeadShape) -> Vec<f32> {
    let Parts { keys, fifth_bits, steps, minimums, .. } = head.parts;
    let (steps, minimums) = (from_halves(steps), from_halves(minimums));
    let mut numbers = vec![0.0; shape.stride * PAGE_TOKENS];
    for (channel, tokens) in numbers.chunks_exact_mut(PAGE_TOKENS).enumerate() {
        let (row, place, shift) = quad_place(channel, shape.stride);
        let (fifth_row, bit) = (channel / 4 / 8, channel / 4 % 8);
        for (token, number) in tokens.iter_mut().enumerate() {
            let nibble = || keys[(row * PAGE_TOKENS + token) * 4 + place] >> shift & 15;
            let code = match head.precision {
                KvPrecision::Q8 => keys[channel * PAGE_TOKENS + token] ^ 0x80,
                KvPrecision::Q5 => {
                    let fifth = fifth_bits[(fifth_row * PAGE_TOKENS + token) * 4 + place] >> bit & 1;
                    nibble() | fifth << 4
                }
                _ => nibble(),
            };
            *number = steps[channel].mul_add(f32::from(code), minimums[channel]);
        }
    }
    numbers
}

#[inline(always)]
fn decode_values(head: &Head<'_>, shape: HeadShape) -> Vec<f32> {
    let scales = from_halves(head.parts.scales);
    let codes = head.parts.values;
    let mut numbers = vec![0.0; shape.stride * PAGE_TOKENS];
    for (token, values) in numbers.chunks_exact_mut(shape.stride).enumerate() {
        let (row, place, shift) = quad_place(token, PAGE_TOKENS);
        for (channel, number) in values.iter_mut().enumerate() {
            let code = match head.precision {
                KvPrecision::Q8 => codes[token * shape.stride + channel] as i8,
                _ => (codes[(row * shape.stride + channel) * 4 + place] >> shift & 15) as i8 - 8,
            };
            *number = f32::from(code) * scales[channel / GROUP * PAGE_TOKENS + token];
        }
        if head.precision != KvPrecision::Q8 {
            rotate(&mut values[..shape.head_dim], shape.rotated());
        }
    }
    numbers
}

/// The Hadamard transform of each `size` values, scaled so that doing it again undoes it. `size` is a power of two.
#[inline(always)]
pub(crate) fn rotate(values: &mut [f32], size: usize) {
    let scale = 1.0 / (size as f32).sqrt();
    for block in values.chunks_exact_mut(size) {
        let mut half = size / 2;
        while half > 0 {
            for pair in block.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half /= 2;
        }
        block.iter_mut().for_each(|value| *value *= scale);
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
