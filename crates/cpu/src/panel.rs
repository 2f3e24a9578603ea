//! `Y = X W^T` for many vectors: some rows of weights are interleaved once, then multiplied with every vector.
//!
//! In a panel one lane of a vector register belongs to one row, so sums need no reduction across lanes, and each
//! output is summed in the order of the row whatever else is in the batch.

use crate::activation::Activation;
use crate::codec::{Codec, Sub};
use lichen_simd::Isa;
use std::array::from_fn;

/// Vectors that share one load of a panel's weights.
const TILE: usize = 8;

/// Rows of quantised weights, interleaved.
#[derive(Debug, Default)]
pub(crate) struct IntPanel {
    /// `[sub-block of 32][quad of 4 values][row][4]`.
    quads: Vec<u8>,
    /// `[sub-block][half, if the format has one scale per 16][row]`.
    scales: Vec<f32>,
    minimums: Vec<f32>,
    subs: usize,
    halves: usize,
    signed: bool,
    has_minimum: bool,
}

/// Interleaves up to [`Isa::PANEL_ROWS`] rows, given one after another; missing ones are zeros.
#[inline(always)]
pub(crate) fn pack<C: Codec, I: Isa>(isa: I, rows: &[u8], row_bytes: usize, panel: &mut IntPanel) {
    let (lanes, subs) = (I::PANEL_ROWS, row_bytes / C::DTYPE.block_bytes() * C::DTYPE.block_len() / 32);
    panel.subs = subs;
    panel.halves = if C::PER_HALF { 2 } else { 1 };
    panel.signed = C::SIGNED && !I::WIDE_UNSIGNED;
    let shifted = C::SIGNED && I::WIDE_UNSIGNED;
    panel.has_minimum = C::HAS_MINIMUM || shifted;
    // Rows that are missing keep scale and minimum zero, so what their quads hold doesn't matter.
    panel.quads.resize(subs * 32 * lanes, 0);
    for values in [&mut panel.scales, &mut panel.minimums] {
        values.clear();
        values.resize(subs * panel.halves * lanes, 0.0);
    }
    for (lane, row) in rows.chunks_exact(row_bytes).enumerate().take(lanes) {
        let mut sub = 0;
        for block in row.chunks_exact(C::DTYPE.block_bytes()) {
            C::unpack(
                isa,
                block,
                #[inline(always)]
                |weights| {
                    place(isa, panel, &weights, sub, lane, shifted);
                    sub += 1;
                },
            );
        }
    }
}

#[inline(always)]
fn place<I: Isa>(isa: I, panel: &mut IntPanel, weights: &Sub<I>, sub: usize, lane: usize, shifted: bool) {
    let lanes = I::PANEL_ROWS;
    let flip: u32 = if shifted { 0x8080_8080 } else { 0 };
    let bytes = isa.store(weights.bytes);
    let quads = &mut panel.quads[sub * 32 * lanes..][..32 * lanes];
    for (place, quad) in quads.chunks_exact_mut(4 * lanes).zip(bytes.as_chunks::<4>().0) {
        let quad = u32::from_ne_bytes(*quad) ^ flip;
        place[4 * lane..][..4].copy_from_slice(&quad.to_ne_bytes());
    }
    for half in 0..panel.halves {
        let at = (sub * panel.halves + half) * lanes + lane;
        panel.scales[at] = weights.scale[half];
        let shift = if shifted { 128.0 * weights.scale[half] } else { 0.0 };
        panel.minimums[at] = weights.minimum[half] - shift;
    }
}

/// `out[vector][row]`, `[x.len(), PANEL_ROWS]`, from a panel of quantised weights.
#[inline(always)]
pub(crate) fn multiply_ints<I: Isa>(isa: I, panel: &IntPanel, x: &[Activation], out: &mut [f32]) {
    let (tiles, rest) = x.as_chunks::<TILE>();
    let (out, out_rest) = out.split_at_mut(tiles.len() * TILE * I::PANEL_ROWS);
    for (x, out) in tiles.iter().zip(out.chunks_exact_mut(TILE * I::PANEL_ROWS)) {
        tile_of_ints(isa, panel, x, out);
    }
    for (x, out) in rest.as_chunks::<1>().0.iter().zip(out_rest.chunks_exact_mut(I::PANEL_ROWS)) {
        tile_of_ints(isa, panel, x, out);
    }
}

#[inline(always)]
fn tile_of_ints<I: Isa, const N: usize>(isa: I, panel: &IntPanel, x: &[Activation; N], out: &mut [f32]) {
    match (panel.halves, panel.signed, panel.has_minimum) {
        (1, false, true) => ints::<I, N, 1, false, true>(isa, panel, x, out),
        (1, false, false) => ints::<I, N, 1, false, false>(isa, panel, x, out),
        (1, true, _) => ints::<I, N, 1, true, false>(isa, panel, x, out),
        _ => ints::<I, N, 2, false, true>(isa, panel, x, out),
    }
}

#[inline(always)]
fn ints<I: Isa, const N: usize, const HALVES: usize, const SIGNED: bool, const MINIMUM: bool>(
    isa: I,
    panel: &IntPanel,
    x: &[Activation; N],
    out: &mut [f32],
) {
    let lanes = I::PANEL_ROWS;
    let mut sums: [I::Lanes; N] = [isa.lanes_splat(0.0); N];
    let quads = panel.quads.chunks_exact(32 * lanes);
    let scales = panel.scales.chunks_exact(HALVES * lanes).zip(panel.minimums.chunks_exact(HALVES * lanes));
    for (sub, (quads, (scales, minimums))) in quads.zip(scales).enumerate().take(panel.subs) {
        let bytes: [&[u8; 32]; N] = from_fn(|n| &x[n].quants[sub]);
        for half in 0..HALVES {
            let mut dots = [isa.lane_ints_zero(); N];
            let (from, count) = (half * 8 / HALVES, 8 / HALVES);
            for quad in from..from + count {
                let weights = &quads[quad * 4 * lanes..][..4 * lanes];
                for n in 0..N {
                    let other: &[u8; 4] = bytes[n][4 * quad..].first_chunk().expect("eight quads");
                    dots[n] = if SIGNED {
                        isa.quad_dot_signed(dots[n], weights, other)
                    } else {
                        isa.quad_dot(dots[n], weights, other)
                    };
                }
            }
            let scale = isa.lanes_load(&scales[half * lanes..][..lanes]);
            for n in 0..N {
                let scale = isa.lanes_multiply(scale, isa.lanes_splat(x[n].scales[sub]));
                sums[n] = isa.lanes_multiply_add(sums[n], isa.lanes_from_ints(dots[n]), scale);
            }
            if MINIMUM {
                let minimum = isa.lanes_load(&minimums[half * lanes..][..lanes]);
                for n in 0..N {
                    let [low, high] = x[n].sums[sub];
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
