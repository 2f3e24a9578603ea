//! Scores and weighted values of pages whose codes lie in quads: dot products of bytes, four at a time, the other side
//! rounded to signed bytes. That costs less than the codes themselves, being finer than them.

use crate::activation::rounded;
use crate::attention::largest_lane;
use crate::kv::{GROUP, Head, HeadShape, PAGE_TOKENS};
use lichen_simd::Isa;
use std::array::from_fn;

/// Whole vectors as signed bytes, and the size of one.
#[inline(always)]
fn to_bytes<I: Isa>(isa: I, values: &[f32], out: &mut [u8]) -> f32 {
    let mut largest = isa.lanes_splat(0.0);
    for first in (0..values.len()).step_by(I::PANEL_ROWS) {
        let lanes = isa.lanes_load(&values[first..]);
        let negative = isa.lanes_multiply(lanes, isa.lanes_splat(-1.0));
        largest = isa.lanes_larger(isa.lanes_larger(lanes, negative), largest);
    }
    let size = largest_lane(isa, largest) / 127.0;
    let inverse = if size > 0.0 { 1.0 / size } else { 0.0 };
    for (out, value) in out.iter_mut().zip(values) {
        *out = rounded(value * inverse);
    }
    size
}

/// Queries `[N, stride]` as bytes, and what a unit of each is worth.
#[inline(always)]
pub(super) fn queries<I: Isa, const N: usize>(
    isa: I,
    stepped: &[f32],
    out: &mut [u8],
    shape: HeadShape,
) -> [f32; N] {
    let mut sizes = [0.0; N];
    for n in 0..N {
        let row = n * shape.stride..(n + 1) * shape.stride;
        sizes[n] = to_bytes(isa, &stepped[row.clone()], &mut out[row]);
    }
    sizes
}

/// Products of queries with the keys of a page, of 5 bits if `FIFTH`, else of 4.
#[inline(always)]
pub(super) fn score<I: Isa, const N: usize, const FIFTH: bool>(
    isa: I,
    queries: &[u8],
    sizes: [f32; N],
    constants: [f32; N],
    page: &Head<'_>,
    shape: HeadShape,
    scores: &mut [[f32; PAGE_TOKENS]; N],
) {
    const ROW: usize = 4 * PAGE_TOKENS;
    let queries: [&[[u8; 4]]; N] = from_fn(|n| queries[n * shape.stride..][..shape.stride].as_chunks().0);
    let pairs = shape.stride / 8;
    for first in (0..PAGE_TOKENS).step_by(I::PANEL_ROWS) {
        let mut sums = [isa.lane_ints_splat(0); N];
        for (pair, row) in page.parts.keys.chunks_exact(ROW).enumerate() {
            let [mut low, mut high] = isa.quads_nibbles(isa.quads_load(&row[4 * first..]));
            if FIFTH {
                let planes = page.parts.fifth_bits;
                let [a, b] = [pair, pairs + pair];
                low = isa.quads_fifth_bit(
                    low,
                    isa.quads_load(&planes[a / 8 * ROW + 4 * first..]),
                    (a % 8) as u8,
                );
                high = isa.quads_fifth_bit(
                    high,
                    isa.quads_load(&planes[b / 8 * ROW + 4 * first..]),
                    (b % 8) as u8,
                );
            }
            for n in 0..N {
                sums[n] = isa.quads_dot(sums[n], low, &queries[n][pair]);
                sums[n] = isa.quads_dot(sums[n], high, &queries[n][pairs + pair]);
            }
        }
        for n in 0..N {
            let (constant, size) = (isa.lanes_splat(constants[n]), isa.lanes_splat(sizes[n]));
            let score = isa.lanes_multiply_add(constant, isa.lanes_from_ints(sums[n]), size);
            isa.lanes_store(score, &mut scores[n][first..]);
        }
    }
}

/// Adds the values of a page to `out`, `[N, stride]`, by weights `[N, groups]`.
#[inline(always)]
pub(super) fn add_values<I: Isa, const N: usize>(
    isa: I,
    values: &[u8],
    shape: HeadShape,
    weights: &[[f32; PAGE_TOKENS]],
    out: &mut [f32],
) {
    const PAIRS: usize = PAGE_TOKENS / 8;
    let stride = shape.stride;
    for group in 0..shape.groups() {
        let mut bytes = [[0; PAGE_TOKENS]; N];
        let (mut sizes, mut offsets) = ([0.0; N], [0; N]);
        for n in 0..N {
            sizes[n] = to_bytes(isa, &weights[n * shape.groups() + group], &mut bytes[n]);
            for byte in bytes[n] {
                // A code stands for 8 less.
                offsets[n] -= 8 * i32::from(byte as i8);
            }
        }
        for channel in (group * GROUP..stride.min((group + 1) * GROUP)).step_by(I::PANEL_ROWS) {
            let mut sums = [isa.lane_ints_splat(0); N];
            for n in 0..N {
                sums[n] = isa.lane_ints_splat(offsets[n]);
            }
            for (pair, row) in values.chunks_exact(4 * stride).enumerate().take(PAIRS) {
                let [low, high] = isa.quads_nibbles(isa.quads_load(&row[4 * channel..]));
                for n in 0..N {
                    let quads = bytes[n].as_chunks().0;
                    sums[n] = isa.quads_dot(sums[n], low, &quads[pair]);
                    sums[n] = isa.quads_dot(sums[n], high, &quads[PAIRS + pair]);
                }
            }
            for n in 0..N {
                let out = &mut out[n * stride + channel..];
                let (ints, size) = (isa.lanes_from_ints(sums[n]), isa.lanes_splat(sizes[n]));
                isa.lanes_store(isa.lanes_multiply_add(isa.lanes_load(out), ints, size), out);
            }
        }
    }
}
