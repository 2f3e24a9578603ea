//! Attention over pages: query rows that share a KV head are worked on together, page by page, with the running
//! maximum and sum of online softmax (arXiv 1805.02867).
//!
//! Each row is computed by itself in the order of its pages, so its bits depend on nothing else in the batch. Pages
//! are read in the precision that they are stored in: [`floats`] for numbers and codes of 8 bits, [`quads`] for codes
//! of 4 and 5 bits.

mod floats;
mod quads;
mod tasks;

use crate::kv::codec::rotate;
use crate::kv::{GROUP, Head, HeadShape, PAGE_TOKENS};
use crate::math::{exp, exp_of_negative};
use lichen_backend::KvPrecision;
use lichen_simd::Isa;
use std::array::from_fn;

pub(crate) use tasks::{Task, share_out};

/// Query rows that share the loads of keys and values.
pub(crate) const ROWS: usize = 4;

/// One query head of one token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query<'q> {
    /// `[head_dim]`.
    pub(crate) values: &'q [f32],
    /// The first token that it sees.
    pub(crate) from: usize,
    /// One past the last token that it sees.
    pub(crate) to: usize,
}

/// What all query rows of an attention op share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scoring {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
}

/// One KV head in the pages of a sequence.
#[derive(Clone, Copy)]
pub(crate) struct HeadPages<'k> {
    /// The head in the page of this number.
    pub(crate) page: &'k dyn Fn(usize) -> Head<'k>,
    pub(crate) shape: HeadShape,
}

/// Space for the rows that are worked on together, kept by a thread.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Weighted values, `[ROWS, stride]`: the result.
    pub(crate) out: Vec<f32>,
    /// Weighted values that are still rotated, `[ROWS, stride]`.
    rotated: Vec<f32>,
    /// Queries times the steps of a page's channels, `[ROWS, stride]`.
    stepped: Vec<f32>,
    /// The same in bytes.
    codes: Vec<u8>,
    /// Weights times the scales of a page's values, `[ROWS, groups]`.
    scaled: Vec<[f32; PAGE_TOKENS]>,
}

impl Scratch {
    fn fit(&mut self, shape: HeadShape) {
        for channels in [&mut self.out, &mut self.rotated, &mut self.stepped] {
            channels.resize(ROWS * shape.stride, 0.0);
        }
        self.codes.resize(ROWS * shape.stride, 0);
        self.scaled.resize(ROWS * shape.groups(), [0.0; PAGE_TOKENS]);
    }
}

/// Softmax of some rows, as far as it has come.
struct Softmax<const N: usize> {
    largest: [f32; N],
    sum: [f32; N],
    /// Scores of one page, then its weights.
    weights: [[f32; PAGE_TOKENS]; N],
    /// What weighted values so far are to be multiplied with.
    shrink: [f32; N],
}

/// `scratch.out[row]`, `[queries.len(), stride]`, for at most [`ROWS`] rows.
#[inline(always)]
pub(crate) fn attend<I: Isa>(
    isa: I,
    queries: &[Query<'_>],
    kv: HeadPages<'_>,
    scoring: Scoring,
    scratch: &mut Scratch,
) {
    match queries {
        [a] => rows(isa, [*a], kv, scoring, scratch),
        [a, b] => rows(isa, [*a, *b], kv, scoring, scratch),
        [a, b, c] => rows(isa, [*a, *b, *c], kv, scoring, scratch),
        [a, b, c, d] => rows(isa, [*a, *b, *c, *d], kv, scoring, scratch),
        _ => {}
    }
}

#[inline(always)]
fn rows<I: Isa, const N: usize>(
    isa: I,
    queries: [Query<'_>; N],
    kv: HeadPages<'_>,
    scoring: Scoring,
    scratch: &mut Scratch,
) {
    let shape = kv.shape;
    scratch.fit(shape);
    scratch.out[..N * shape.stride].fill(0.0);
    scratch.rotated[..N * shape.stride].fill(0.0);
    let mut softmax = Softmax {
        largest: [f32::NEG_INFINITY; N],
        sum: [0.0; N],
        weights: [[0.0; PAGE_TOKENS]; N],
        shrink: [1.0; N],
    };
    let from = queries.iter().map(|query| query.from).min().unwrap_or(0);
    let to = queries.iter().map(|query| query.to).max().unwrap_or(0);
    let mut any_rotated = false;
    let pages = from / PAGE_TOKENS..to.div_ceil(PAGE_TOKENS);
    let mut pages = pages.map(|index| (index * PAGE_TOKENS, (kv.page)(index))).peekable();
    while let Some((first, page)) = pages.next() {
        let tokens = PAGE_TOKENS.min(to - first);
        if let Some((_, next)) = pages.peek() {
            // Processors don't follow a stream from one page to the next.
            for line in (0..shape.bytes(next.precision)).step_by(64) {
                isa.prefetch(next.parts.keys, line, false);
            }
        }
        score(isa, &queries, &page, shape, &mut softmax.weights, scratch);
        softmax.weigh(isa, &queries, first, tokens, scoring);
        for n in 0..N {
            if softmax.shrink[n] != 1.0 {
                for at in n * shape.stride..(n + 1) * shape.stride {
                    scratch.out[at] *= softmax.shrink[n];
                    scratch.rotated[at] *= softmax.shrink[n];
                }
            }
        }
        any_rotated |= add_values(isa, &page, shape, &softmax.weights, tokens, scratch);
    }
    for (n, row) in scratch.out.chunks_exact_mut(shape.stride).enumerate().take(N) {
        if any_rotated {
            let rotated = &mut scratch.rotated[n * shape.stride..][..shape.stride];
            rotate(&mut rotated[..shape.head_dim], shape.rotated());
            row.iter_mut().zip(rotated).for_each(|(value, rotated)| *value += *rotated);
        }
        row.iter_mut().for_each(|value| *value /= softmax.sum[n]);
    }
}

/// Products of the queries with the keys of a page.
#[inline(always)]
fn score<I: Isa, const N: usize>(
    isa: I,
    queries: &[Query<'_>; N],
    page: &Head<'_>,
    shape: HeadShape,
    scores: &mut [[f32; PAGE_TOKENS]; N],
    scratch: &mut Scratch,
) {
    let keys = page.parts.keys;
    let rows = queries.map(|query| query.values);
    match page.precision {
        KvPrecision::F32 => floats::score(isa, rows, bytemuck::cast_slice::<_, f32>(keys), scores),
        KvPrecision::F16 => floats::score(isa, rows, bytemuck::cast_slice::<_, u16>(keys), scores),
        KvPrecision::Q8 => {
            let (steps, minimums) = (page.parts.steps, page.parts.minimums);
            let constants = rows_by_steps(isa, rows, shape, steps, minimums, 128.0, &mut scratch.stepped);
            let stepped = &scratch.stepped;
            let rows = from_fn(|n| &stepped[n * shape.stride..][..shape.head_dim]);
            floats::score(isa, rows, bytemuck::cast_slice::<_, i8>(keys), scores);
            for n in 0..N {
                scores[n].iter_mut().for_each(|score| *score += constants[n]);
            }
        }
        KvPrecision::Q5 | KvPrecision::Q4 => {
            let (steps, minimums) = (page.parts.steps, page.parts.minimums);
            let constants = rows_by_steps(isa, rows, shape, steps, minimums, 0.0, &mut scratch.stepped);
            let codes = &mut scratch.codes;
            let sizes = quads::queries(isa, &scratch.stepped, codes, shape);
            match page.precision {
                KvPrecision::Q5 => {
                    quads::score::<I, N, true>(isa, codes, sizes, constants, page, shape, scores);
                }
                _ => quads::score::<I, N, false>(isa, codes, sizes, constants, page, shape, scores),
            }
        }
    }
}

/// Adds the weighted values of a page, and says whether they are rotated.
#[inline(always)]
fn add_values<I: Isa, const N: usize>(
    isa: I,
    page: &Head<'_>,
    shape: HeadShape,
    weights: &[[f32; PAGE_TOKENS]; N],
    tokens: usize,
    scratch: &mut Scratch,
) -> bool {
    let values = page.parts.values;
    let Scratch { out, rotated, scaled, .. } = scratch;
    match page.precision {
        KvPrecision::F32 => {
            let values = bytemuck::cast_slice::<_, f32>(values);
            floats::add_values::<I, _, N>(isa, values, shape, |n, _| &weights[n], tokens, out);
        }
        KvPrecision::F16 => {
            let values = bytemuck::cast_slice::<_, u16>(values);
            floats::add_values::<I, _, N>(isa, values, shape, |n, _| &weights[n], tokens, out);
        }
        KvPrecision::Q8 => {
            weights_by_scales(isa, weights, shape, page.parts.scales, scaled);
            let (values, groups) = (bytemuck::cast_slice::<_, i8>(values), shape.groups());
            let of_group = |n: usize, channel: usize| &scaled[n * groups + channel / GROUP];
            floats::add_values::<I, _, N>(isa, values, shape, of_group, tokens, out);
        }
        KvPrecision::Q5 | KvPrecision::Q4 => {
            weights_by_scales(isa, weights, shape, page.parts.scales, scaled);
            quads::add_values::<I, N>(isa, values, shape, scaled, rotated);
            return true;
        }
    }
    false
}

/// Each query times the steps of the channels, `[N, stride]`, and what the minimums, and `offset` to be added to each
/// code, make of every score.
#[inline(always)]
fn rows_by_steps<I: Isa, const N: usize>(
    isa: I,
    rows: [&[f32]; N],
    shape: HeadShape,
    steps: &[u16],
    minimums: &[u16],
    offset: f32,
    stepped: &mut [f32],
) -> [f32; N] {
    let mut constants = [0.0; N];
    for n in 0..N {
        let stepped = stepped[n * shape.stride..][..shape.stride].as_chunks_mut::<8>().0;
        let mut sums = isa.splat(0.0);
        for part in 0..shape.stride / 8 {
            let mut query = [0.0; 8];
            // The last channels may be padding.
            let row = &rows[n][(8 * part).min(rows[n].len())..];
            match row.first_chunk() {
                Some(whole) => query = *whole,
                None => query[..row.len()].copy_from_slice(row),
            }
            let query = isa.load_floats(&query);
            let product = isa.multiply(query, isa.load_halves(&steps.as_chunks().0[part]));
            sums = isa.multiply_add(sums, query, isa.load_halves(&minimums.as_chunks().0[part]));
            sums = isa.multiply_add(sums, product, isa.splat(offset));
            isa.store_floats(product, &mut stepped[part]);
        }
        let mut lanes = [0.0; 8];
        isa.store_floats(sums, &mut lanes);
        constants[n] = lanes.iter().sum();
    }
    constants
}

/// Weights times the scales of each group of values, `[N, groups]`.
#[inline(always)]
fn weights_by_scales<I: Isa, const N: usize>(
    isa: I,
    weights: &[[f32; PAGE_TOKENS]; N],
    shape: HeadShape,
    scales: &[u16],
    scaled: &mut [[f32; PAGE_TOKENS]],
) {
    for (group, scales) in scales.as_chunks::<PAGE_TOKENS>().0.iter().enumerate() {
        for (part, scales) in scales.as_chunks::<8>().0.iter().enumerate() {
            let scales = isa.load_halves(scales);
            for n in 0..N {
                let product = isa.multiply(isa.load_floats(&weights[n].as_chunks().0[part]), scales);
                let out = &mut scaled[n * shape.groups() + group];
                isa.store_floats(product, &mut out.as_chunks_mut().0[part]);
            }
        }
    }
}

impl<const N: usize> Softmax<N> {
    /// Turns scores into weights relative to the running maximum, and says what that makes of earlier ones.
    #[inline(always)]
    fn weigh<I: Isa>(
        &mut self,
        isa: I,
        queries: &[Query<'_>; N],
        first: usize,
        tokens: usize,
        scoring: Scoring,
    ) {
        for n in 0..N {
            let scores = &mut self.weights[n];
            let seen = |token: usize| (token.max(first) - first).min(tokens);
            let (from, to) = (seen(queries[n].from), seen(queries[n].to));
            for score in scores.iter_mut() {
                *score *= scoring.scale;
            }
            if let Some(cap) = scoring.softcap {
                for score in scores.iter_mut() {
                    *score = cap * (*score / cap).tanh();
                }
            }
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to.max(from)..].fill(f32::NEG_INFINITY);
            let largest = largest(isa, scores, self.largest[n]);
            self.shrink[n] = 1.0;
            if largest == f32::NEG_INFINITY {
                scores.fill(0.0);
                continue;
            }
            if self.largest[n] != largest {
                self.shrink[n] = exp(self.largest[n] - largest);
            }
            let sum = exponentials(isa, scores, largest);
            self.sum[n] = self.sum[n] * self.shrink[n] + sum;
            self.largest[n] = largest;
        }
    }
}

/// The largest score, or `least` if that is larger.
#[inline(always)]
fn largest<I: Isa>(isa: I, scores: &[f32; PAGE_TOKENS], least: f32) -> f32 {
    let mut most = isa.lanes_splat(least);
    for first in (0..PAGE_TOKENS).step_by(I::PANEL_ROWS) {
        most = isa.lanes_larger(isa.lanes_load(&scores[first..]), most);
    }
    largest_lane(isa, most)
}

/// The largest lane.
#[inline(always)]
fn largest_lane<I: Isa>(isa: I, lanes: I::Lanes) -> f32 {
    let mut values = [f32::NEG_INFINITY; 16];
    isa.lanes_store(lanes, &mut values);
    let mut half = 8;
    while half > 0 {
        for lane in 0..half {
            values[lane] =
                if values[lane] > values[lane + half] { values[lane] } else { values[lane + half] };
        }
        half /= 2;
    }
    values[0]
}

/// Turns scores into exponentials relative to `largest`, and gives their sum in eight lanes.
#[inline(always)]
fn exponentials<I: Isa>(isa: I, scores: &mut [f32; PAGE_TOKENS], largest: f32) -> f32 {
    for first in (0..PAGE_TOKENS).step_by(I::PANEL_ROWS) {
        let score = isa.lanes_add(isa.lanes_load(&scores[first..]), isa.lanes_splat(-largest));
        isa.lanes_store(exp_of_negative(isa, score), &mut scores[first..]);
    }
    let mut sums = isa.load_floats(&[0.0; 8]);
    for part in scores.as_chunks().0 {
        sums = isa.multiply_add(sums, isa.load_floats(part), isa.splat(1.0));
    }
    let mut lanes = [0.0f32; 8];
    isa.store_floats(sums, &mut lanes);
    lanes.iter().sum()
}

#[cfg(test)]
mod tests;
