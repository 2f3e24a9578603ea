//! Attention over pages: query rows that share a KV head are worked on together, page by page, with the running
//! maximum and sum of online softmax (arXiv 1805.02867).
//!
//! Each row is computed by itself in the order of its pages, so its bits depend on nothing else in the batch.

use crate::kv::{LayerPlace, Numbers, PAGE_TOKENS, Page};
use crate::math::exp;
use lichen_simd::Isa;
use std::array::from_fn;
use std::sync::Arc;

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

/// The pages of one KV head.
#[derive(Clone, Copy)]
pub(crate) struct HeadPages<'k> {
    pub(crate) pages: &'k [Arc<Page>],
    pub(crate) place: LayerPlace,
    pub(crate) head: usize,
}

struct State<const N: usize> {
    largest: [f32; N],
    sum: [f32; N],
    scores: [[f32; PAGE_TOKENS]; N],
}

/// `out[row]`, `[queries.len(), stride]`, for at most [`ROWS`] rows.
#[inline(always)]
pub(crate) fn attend<I: Isa>(
    isa: I,
    queries: &[Query<'_>],
    kv: HeadPages<'_>,
    scoring: Scoring,
    out: &mut [f32],
) {
    match queries {
        [a] => rows(isa, [*a], kv, scoring, out),
        [a, b] => rows(isa, [*a, *b], kv, scoring, out),
        [a, b, c] => rows(isa, [*a, *b, *c], kv, scoring, out),
        [a, b, c, d] => rows(isa, [*a, *b, *c, *d], kv, scoring, out),
        _ => {}
    }
}

#[inline(always)]
fn rows<I: Isa, const N: usize>(
    isa: I,
    queries: [Query<'_>; N],
    kv: HeadPages<'_>,
    scoring: Scoring,
    out: &mut [f32],
) {
    let stride = kv.place.stride;
    out[..N * stride].fill(0.0);
    let mut state = State { largest: [f32::NEG_INFINITY; N], sum: [0.0; N], scores: [[0.0; PAGE_TOKENS]; N] };
    let from = queries.iter().map(|query| query.from).min().unwrap_or(0);
    let to = queries.iter().map(|query| query.to).max().unwrap_or(0);
    for page in from / PAGE_TOKENS..to.div_ceil(PAGE_TOKENS) {
        let first = page * PAGE_TOKENS;
        let tokens = PAGE_TOKENS.min(to - first);
        let (keys, values) = (kv.place.keys(kv.head), kv.place.values(kv.head));
        let numbers = stride * PAGE_TOKENS;
        match &kv.pages[page].numbers {
            Numbers::F16(page) => {
                score(isa, &queries, &mut state, page[keys..][..numbers].as_chunks().0, I::load_halves);
                weigh(&queries, &mut state, first, tokens, scoring, out, stride);
                add_values(isa, &state, page[values..][..numbers].as_chunks().0, I::load_halves, tokens, out);
            }
            Numbers::F32(page) => {
                score(isa, &queries, &mut state, page[keys..][..numbers].as_chunks().0, I::load_floats);
                weigh(&queries, &mut state, first, tokens, scoring, out, stride);
                add_values(isa, &state, page[values..][..numbers].as_chunks().0, I::load_floats, tokens, out);
            }
        }
    }
    for (row, sum) in out.chunks_exact_mut(stride).zip(state.sum) {
        row.iter_mut().for_each(|value| *value /= sum);
    }
}

/// Products of the queries with the keys of a page; `keys` is `[dimension][token / 8][8]`.
#[inline(always)]
fn score<I: Isa, T, const N: usize>(
    isa: I,
    queries: &[Query<'_>; N],
    state: &mut State<N>,
    keys: &[[T; 8]],
    load: impl Fn(I, &[T; 8]) -> I::Floats,
) {
    const VECTORS: usize = PAGE_TOKENS / 8;
    for vector in 0..VECTORS {
        let mut sums = [isa.splat(0.0); N];
        for (dim, keys) in keys.chunks_exact(VECTORS).enumerate().take(queries[0].values.len()) {
            let keys = load(isa, &keys[vector]);
            for n in 0..N {
                sums[n] = isa.multiply_add(sums[n], keys, isa.splat(queries[n].values[dim]));
            }
        }
        for n in 0..N {
            isa.store_floats(sums[n], &mut state.scores[n].as_chunks_mut().0[vector]);
        }
    }
}

/// Turns products into softmax weights relative to the running maximum, and brings earlier output to it.
#[inline(always)]
fn weigh<const N: usize>(
    queries: &[Query<'_>; N],
    state: &mut State<N>,
    first: usize,
    tokens: usize,
    scoring: Scoring,
    out: &mut [f32],
    stride: usize,
) {
    for n in 0..N {
        let scores = &mut state.scores[n];
        let (from, to) = (queries[n].from.max(first) - first, queries[n].to.max(first) - first);
        let (from, to) = (from.min(tokens), to.min(tokens));
        scores[..from].fill(f32::NEG_INFINITY);
        scores[to.max(from)..].fill(f32::NEG_INFINITY);
        for score in &mut scores[from..to.max(from)] {
            *score *= scoring.scale;
            if let Some(cap) = scoring.softcap {
                *score = cap * (*score / cap).tanh();
            }
        }
        let largest = scores.iter().copied().fold(state.largest[n], f32::max);
        if largest == f32::NEG_INFINITY {
            scores.fill(0.0);
            continue;
        }
        let shrink = if state.largest[n] == largest { 1.0 } else { exp(state.largest[n] - largest) };
        scores.iter_mut().for_each(|score| *score = exp(*score - largest));
        let mut sums = [0.0f32; 8];
        for part in scores.as_chunks::<8>().0 {
            sums = from_fn(|lane| sums[lane] + part[lane]);
        }
        state.sum[n] = state.sum[n] * shrink + sums.iter().sum::<f32>();
        state.largest[n] = largest;
        if shrink != 1.0 {
            out[n * stride..][..stride].iter_mut().for_each(|value| *value *= shrink);
        }
    }
}

/// Adds weighted values; `values` is `[token][dimension / 8][8]`.
#[inline(always)]
fn add_values<I: Isa, T, const N: usize>(
    isa: I,
    state: &State<N>,
    values: &[[T; 8]],
    load: impl Fn(I, &[T; 8]) -> I::Floats,
    tokens: usize,
    out: &mut [f32],
) {
    let vectors = values.len() / PAGE_TOKENS;
    for vector in 0..vectors {
        let mut sums: [I::Floats; N] = from_fn(|n| isa.load_floats(&out.as_chunks().0[n * vectors + vector]));
        for (token, values) in values.chunks_exact(vectors).enumerate().take(tokens) {
            let values = load(isa, &values[vector]);
            for n in 0..N {
                sums[n] = isa.multiply_add(sums[n], values, isa.splat(state.scores[n][token]));
            }
        }
        for n in 0..N {
            isa.store_floats(sums[n], &mut out.as_chunks_mut().0[n * vectors + vector]);
        }
    }
}
