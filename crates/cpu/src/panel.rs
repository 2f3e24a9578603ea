//! `Y = X W^T` for many vectors: some rows of weights are interleaved once, then multiplied with every vector.
//!
//! In a panel one lane of a vector register belongs to one row, so sums need no reduction across lanes, and each
//! output is summed in the order of the row whatever else is in the batch.

use crate::activation::Activation;
use crate::codec::{Codec, GROUP, MOST_GROUPS, ROWS};
use crate::gemv::{prefetch, shifted};
use lichen_simd::Isa;
use std::array::from_fn;

/// Vectors that share one load of a panel's weights.
const TILE: usize = 8;

/// How the bytes of a panel are to be multiplied.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Unsigned bytes.
    #[default]
    Unsigned,
    /// Signed bytes.
    Signed,
    /// Signed bytes with 128 added, which is taken off their products again.
    Shifted,
}

/// Rows of quantised weights, interleaved.
#[derive(Debug, Default)]
pub(crate) struct IntPanel {
    /// `[group of 32][quad of 4 values][row][4]`.
    quads: Vec<u8>,
    /// `[group][half, if the format has one scale per 16][row]`.
    scales: Vec<f32>,
    minimums: Vec<f32>,
    groups: usize,
    halves: usize,
    form: Form,
    has_minimum: bool,
}

/// Interleaves up to [`Isa::PANEL_ROWS`] rows, given one after another; missing ones repeat the last.
#[inline(always)]
pub(crate) fn pack<C: Codec, I: Isa>(isa: I, rows: &[u8], row_bytes: usize, panel: &mut IntPanel) {
    let (bytes, groups) = (const { C::DTYPE.block_bytes() }, const { C::DTYPE.block_len() / GROUP });
    panel.groups = row_bytes / bytes * groups;
    panel.halves = if C::PER_HALF { 2 } else { 1 };
    panel.form = match (C::SIGNED, I::WIDE_UNSIGNED) {
        (false, _) => Form::Unsigned,
        (true, false) => Form::Signed,
        (true, true) => Form::Shifted,
    };
    panel.has_minimum = C::HAS_MINIMUM;
    panel.quads.resize(panel.groups * GROUP * I::PANEL_ROWS, 0);
    panel.scales.resize(panel.groups * panel.halves * I::PANEL_ROWS, 0.0);
    panel.minimums.resize(panel.groups * panel.halves * I::PANEL_ROWS, 0.0);
    let last = rows.len() / row_bytes - 1;
    for first in (0..I::PANEL_ROWS).step_by(ROWS) {
        for index in 0..row_bytes / bytes {
            prefetch::<C, I>(isa, &rows[first.min(last) * row_bytes..], row_bytes, index);
            let mut blocks = [rows; ROWS];
            for row in 0..ROWS {
                blocks[row] = &rows[(first + row).min(last) * row_bytes + index * bytes..][..bytes];
            }
            place_bytes::<C, I>(isa, panel, &blocks, index * groups, first);
            place_factors::<C, I>(isa, panel, &blocks, index * groups, first);
        }
    }
}

/// Writes the bytes of one block of eight rows to lanes `lane..lane + 8`, from group `at` on.
#[inline(always)]
fn place_bytes<C: Codec, I: Isa>(
    isa: I,
    panel: &mut IntPanel,
    blocks: &[&[u8]; ROWS],
    at: usize,
    lane: usize,
) {
    let width = 4 * I::PANEL_ROWS;
    let mut groups = [[isa.load(&[0; GROUP]); ROWS]; MOST_GROUPS];
    for row in 0..ROWS {
        C::bytes(
            isa,
            blocks[row],
            #[inline(always)]
            |group, bytes| groups[group][row] = bytes,
        );
    }
    let places = panel.quads[at * 8 * width..].chunks_exact_mut(8 * width);
    for (rows, places) in groups.iter().zip(places).take(const { C::DTYPE.block_len() / GROUP }) {
        for (quads, place) in isa.transpose_quads(rows).into_iter().zip(places.chunks_exact_mut(width)) {
            let quads = if shifted::<C, I>() { isa.flip_signs(quads) } else { quads };
            place[4 * lane..][..GROUP].copy_from_slice(&isa.store(quads));
        }
    }
}

/// Writes the factors of one block of eight rows to lanes `lane..lane + 8`, from group `at` on.
#[inline(always)]
fn place_factors<C: Codec, I: Isa>(
    isa: I,
    panel: &mut IntPanel,
    blocks: &[&[u8]; ROWS],
    at: usize,
    lane: usize,
) {
    let factors = C::factors(isa, blocks);
    for group in 0..const { C::DTYPE.block_len() / GROUP } {
        for half in 0..panel.halves {
            let place = ((at + group) * panel.halves + half) * I::PANEL_ROWS + lane;
            let eight = |values: &mut Vec<f32>, factors: I::Floats| {
                let out = values[place..].first_chunk_mut().expect("the panel has room for all groups");
                isa.store_floats(factors, out);
            };
            eight(&mut panel.scales, factors.scales[group][half]);
            if C::HAS_MINIMUM {
                eight(&mut panel.minimums, factors.minimums[group][half]);
            }
        }
    }
}

/// `out[vector][row]`, `[x.len(), PANEL_ROWS]`, from a panel of quantised weights.
#[inline(always)]
pub(crate) fn multiply_ints<I: Isa>(isa: I, panel: &IntPanel, x: &[Activation], out: &mut [f32]) {
    let (x, out) = tiles_of_ints::<I, TILE>(isa, panel, x, out);
    let (x, out) = tiles_of_ints::<I, 4>(isa, panel, x, out);
    let (x, out) = tiles_of_ints::<I, 2>(isa, panel, x, out);
    tiles_of_ints::<I, 1>(isa, panel, x, out);
}

/// Multiplies as many whole tiles of vectors as there are, and returns what is left.
#[inline(always)]
fn tiles_of_ints<'x, 'o, I: Isa, const N: usize>(
    isa: I,
    panel: &IntPanel,
    x: &'x [Activation],
    out: &'o mut [f32],
) -> (&'x [Activation], &'o mut [f32]) {
    let (tiles, rest) = x.as_chunks::<N>();
    let (out, out_rest) = out.split_at_mut(tiles.len() * N * I::PANEL_ROWS);
    for (x, out) in tiles.iter().zip(out.chunks_exact_mut(N * I::PANEL_ROWS)) {
        tile_of_ints(isa, panel, x, out);
    }
    (rest, out_rest)
}

#[inline(always)]
fn tile_of_ints<I: Isa, const N: usize>(isa: I, panel: &IntPanel, x: &[Activation; N], out: &mut [f32]) {
    use Form::{Shifted, Signed, Unsigned};
    match (panel.halves, panel.form, panel.has_minimum) {
        (1, Unsigned, true) => ints::<I, N, 1, UNSIGNED, true>(isa, panel, x, out),
        (1, Unsigned, false) => ints::<I, N, 1, UNSIGNED, false>(isa, panel, x, out),
        (1, Signed, _) => ints::<I, N, 1, SIGNED, false>(isa, panel, x, out),
        (1, Shifted, _) => ints::<I, N, 1, SHIFTED, false>(isa, panel, x, out),
        _ => ints::<I, N, 2, UNSIGNED, true>(isa, panel, x, out),
    }
}

const UNSIGNED: u8 = Form::Unsigned as u8;
const SIGNED: u8 = Form::Signed as u8;
const SHIFTED: u8 = Form::Shifted as u8;

#[inline(always)]
fn ints<I: Isa, const N: usize, const HALVES: usize, const FORM: u8, const MINIMUM: bool>(
    isa: I,
    panel: &IntPanel,
    x: &[Activation; N],
    out: &mut [f32],
) {
    let lanes = I::PANEL_ROWS;
    let mut sums: [I::Lanes; N] = [isa.lanes_splat(0.0); N];
    let quads = panel.quads.chunks_exact(GROUP * lanes);
    let scales = panel.scales.chunks_exact(HALVES * lanes).zip(panel.minimums.chunks_exact(HALVES * lanes));
    for (group, (quads, (scales, minimums))) in quads.zip(scales).enumerate().take(panel.groups) {
        let bytes: [&[u8; 32]; N] = from_fn(|n| &x[n].quants[group]);
        for half in 0..HALVES {
            let mut dots = [isa.lane_ints_splat(0); N];
            if FORM == SHIFTED {
                for n in 0..N {
                    let [low, high] = x[n].quant_sums[group];
                    dots[n] = isa.lane_ints_splat(-128 * (low + high));
                }
            }
            let (from, count) = (half * 8 / HALVES, 8 / HALVES);
            let quads = &quads[from * 4 * lanes..][..count * 4 * lanes];
            isa.quads_dots(&mut dots, quads, &bytes, from, FORM == SIGNED);
            let scale = isa.lanes_load(&scales[half * lanes..][..lanes]);
            for n in 0..N {
                let scale = isa.lanes_multiply(scale, isa.lanes_splat(x[n].scales[group]));
                sums[n] = isa.lanes_multiply_add(sums[n], isa.lanes_from_ints(dots[n]), scale);
            }
            if MINIMUM {
                let minimum = isa.lanes_load(&minimums[half * lanes..][..lanes]);
                for n in 0..N {
                    let [low, high] = x[n].sums[group];
                    let sum = if HALVES == 1 {
                        low + high
                    } else if half == 0 {
                        low
                    } else {
                        high
                    };
                    sums[n] = isa.lanes_multiply_add(sums[n], minimum, isa.lanes_splat(sum));
                }
            }
        }
    }
    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(lanes)) {
        isa.lanes_store(sum, out);
    }
}

/// `out[vector][row]` from a panel of floats `[value][row]`; `x` holds vectors of `width` values.
#[inline(always)]
pub(crate) fn multiply_floats<I: Isa>(isa: I, panel: &[f32], x: &[f32], width: usize, out: &mut [f32]) {
    let whole = x.len() / width / TILE * TILE;
    let (tiles, rest) = x.split_at(whole * width);
    let (out, out_rest) = out.split_at_mut(whole * I::PANEL_ROWS);
    for (x, out) in tiles.chunks_exact(TILE * width).zip(out.chunks_exact_mut(TILE * I::PANEL_ROWS)) {
        floats::<I, TILE>(isa, panel, x, width, out);
    }
    for (x, out) in rest.chunks_exact(width).zip(out_rest.chunks_exact_mut(I::PANEL_ROWS)) {
        floats::<I, 1>(isa, panel, x, width, out);
    }
}

#[inline(always)]
fn floats<I: Isa, const N: usize>(isa: I, panel: &[f32], x: &[f32], width: usize, out: &mut [f32]) {
    let mut sums: [I::Lanes; N] = [isa.lanes_splat(0.0); N];
    let rows: [&[f32]; N] = from_fn(|n| &x[n * width..][..width]);
    for (i, weights) in panel.chunks_exact(I::PANEL_ROWS).enumerate().take(width) {
        let weights = isa.lanes_load(weights);
        for n in 0..N {
            sums[n] = isa.lanes_multiply_add(sums[n], weights, isa.lanes_splat(rows[n][i]));
        }
    }
    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(I::PANEL_ROWS)) {
        isa.lanes_store(sum, out);
    }
}
