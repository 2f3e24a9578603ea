//! Attention in every precision on every instruction set, against its definition.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;
use crate::kv::codec::convert;
use crate::table::{self, Kernels};

/// A generator of numbers around 0 (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// One head in pages of one precision.
struct Stored {
    precision: KvPrecision,
    shape: HeadShape,
    pages: Vec<Vec<u64>>,
}

impl Stored {
    /// Keys with offsets per channel, as projections with biases make them.
    fn new(shape: HeadShape, pages: usize) -> Self {
        let mut random = Random(7);
        let offsets: Vec<f32> = (0..shape.head_dim).map(|_| 4.0 * random.next()).collect();
        let page = |_| {
            let mut numbers = vec![0.0; 2 * shape.stride * PAGE_TOKENS];
            let (keys, values) = numbers.split_at_mut(shape.stride * PAGE_TOKENS);
            for dim in 0..shape.head_dim {
                for token in 0..PAGE_TOKENS {
                    keys[dim * PAGE_TOKENS + token] = offsets[dim] + random.next();
                    values[token * shape.stride + dim] = random.next();
                }
            }
            bytemuck::cast_slice(&numbers).to_vec()
        };
        Self { precision: KvPrecision::F32, shape, pages: (0..pages).map(page).collect() }
    }

    fn heads(&self) -> Vec<Head<'_>> {
        let bytes = self.shape.bytes(self.precision);
        let pages = self.pages.iter().map(|page| &bytemuck::cast_slice(page)[..bytes]);
        pages.map(|page| Head::new(self.precision, self.shape, page)).collect()
    }

    fn to(&self, precision: KvPrecision) -> Self {
        let page = |head: &Head<'_>| {
            let mut out = vec![0u64; self.shape.bytes(precision).div_ceil(8)];
            let bytes = &mut bytemuck::cast_slice_mut(&mut out)[..self.shape.bytes(precision)];
            convert(head, self.shape, precision, bytes);
            out
        };
        Self { precision, shape: self.shape, pages: self.heads().iter().map(page).collect() }
    }
}

struct Row {
    values: Vec<f32>,
    from: usize,
    to: usize,
}

/// Rows that see everything, a part, only the newest token, and a window.
fn rows(shape: HeadShape, tokens: usize) -> Vec<Row> {
    let mut random = Random(3);
    let ranges = [(0, tokens), (0, tokens - 30), (tokens - 1, tokens), (tokens - 70, tokens - 3)];
    let row = |(from, to)| Row { values: (0..shape.head_dim).map(|_| random.next()).collect(), from, to };
    ranges.into_iter().map(row).collect()
}

fn attend_with(kernels: &Kernels, stored: &Stored, rows: &[Row], softcap: Option<f32>) -> Vec<Vec<f32>> {
    let heads = stored.heads();
    let kv = HeadPages { page: &|index| heads[index], shape: stored.shape };
    let queries: Vec<Query<'_>> =
        rows.iter().map(|row| Query { values: &row.values, from: row.from, to: row.to }).collect();
    let mut scratch = Scratch::default();
    (kernels.attend)(&queries, kv, Scoring { scale: 0.4, softcap }, &mut scratch);
    let out = scratch.out.chunks_exact(stored.shape.stride).take(rows.len());
    out.map(|row| row[..stored.shape.head_dim].to_vec()).collect()
}

/// The definition, in double precision on decoded pages.
fn definition(stored: &Stored, row: &Row, softcap: Option<f32>) -> Vec<f64> {
    let (decoded, stride) = (stored.to(KvPrecision::F32), stored.shape.stride);
    let pages = decoded.heads();
    let keys: Vec<&[f32]> = pages.iter().map(|page| bytemuck::cast_slice(page.parts.keys)).collect();
    let values: Vec<&[f32]> = pages.iter().map(|page| bytemuck::cast_slice(page.parts.values)).collect();
    let score = |token: usize| {
        let (page, at) = (token / PAGE_TOKENS, token % PAGE_TOKENS);
        let key = |dim: usize| f64::from(keys[page][dim * PAGE_TOKENS + at]);
        let dot: f64 = row.values.iter().enumerate().map(|(dim, q)| f64::from(*q) * key(dim)).sum();
        let cap = softcap.map(f64::from);
        cap.map_or(dot * 0.4, |cap| cap * (dot * 0.4 / cap).tanh())
    };
    let scores: Vec<f64> = (row.from..row.to).map(score).collect();
    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let value =
        |token: usize, dim: usize| f64::from(values[token / PAGE_TOKENS][token % PAGE_TOKENS * stride + dim]);
    let weighted = |dim: usize| {
        let tokens = (row.from..row.to).zip(&weights);
        tokens.map(|(token, weight)| weight * value(token, dim)).sum::<f64>() / sum
    };
    (0..stored.shape.head_dim).map(weighted).collect()
}

const HEAD_DIMS: [usize; 7] = [8, 24, 64, 80, 96, 128, 256];

#[test]
fn attention_is_that_of_the_decoded_pages() {
    for head_dim in HEAD_DIMS {
        let single = Stored::new(HeadShape::new(head_dim), 4);
        let rows = rows(single.shape, 4 * PAGE_TOKENS);
        for precision in KvPrecision::ALL {
            // Queries and weights are rounded to bytes where keys and values have 4 or 5 bits.
            let tolerance = if precision < KvPrecision::Q8 { 0.02 } else { 2e-5 };
            let stored = single.to(precision);
            for softcap in [None, Some(5.0)] {
                let found = attend_with(table::kernels("scalar").unwrap(), &stored, &rows, softcap);
                for (row, found) in rows.iter().zip(found) {
                    for (wanted, found) in definition(&stored, row, softcap).into_iter().zip(found) {
                        let off = (wanted - f64::from(found)).abs();
                        assert!(off <= tolerance, "{precision} {head_dim}: {found} instead of {wanted}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_scalar_one() {
    for head_dim in HEAD_DIMS {
        let single = Stored::new(HeadShape::new(head_dim), 3);
        let rows = rows(single.shape, 3 * PAGE_TOKENS);
        for precision in KvPrecision::ALL {
            let stored = single.to(precision);
            let wanted = attend_with(table::kernels("scalar").unwrap(), &stored, &rows, None);
            for isa in table::instruction_sets() {
                let kernels = table::kernels(isa).unwrap();
                assert_eq!(
                    attend_with(kernels, &stored, &rows, None),
                    wanted,
                    "{precision} {head_dim} {isa}"
                );
                for (source, target) in single.heads().iter().zip(&stored.pages) {
                    let mut out = vec![0u64; target.len()];
                    let len = stored.shape.bytes(precision);
                    (kernels.convert)(
                        source,
                        stored.shape,
                        precision,
                        &mut bytemuck::cast_slice_mut(&mut out)[..len],
                    );
                    assert!(out == *target, "{precision} {head_dim} {isa}: another page");
                }
            }
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let single = Stored::new(HeadShape::new(64), 3);
    let rows = rows(single.shape, 3 * PAGE_TOKENS);
    for isa in table::instruction_sets() {
        let kernels = table::kernels(isa).unwrap();
        for precision in KvPrecision::ALL {
            let stored = single.to(precision);
            let together = attend_with(kernels, &stored, &rows, None);
            for (row, together) in rows.iter().zip(together) {
                assert_eq!(attend_with(kernels, &stored, std::slice::from_ref(row), None), [together]);
            }
        }
    }
}
