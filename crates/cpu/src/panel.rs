//! `Y = X W^T` for many vectors: some rows of weights are interleaved once, then multiplied with every vector.
//!
//! In a panel one lane of a vector register belongs to one row, so sums need no reduction across lanes, and each
//! output is summed in the order of the row whatever else is in the batch.

use crate::codec::{Codec, Factors, GROUP, LANES, MOST_BYTES, lanes_bytes};
use crate::gemv::shifted;
use crate::tile::{QUADS, TILE, Tile, groups_of_lane, place_of};
use lichen_simd::Isa;
use std::array::from_fn;

/// Rows that are interleaved at once.
const ROWS: usize = 8;

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
    /// `[group of 32][quad of 4 values][row][4]`, groups in the order in which they are summed.
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
        let row = |row: usize| &rows[(first + row).min(last) * row_bytes..][..row_bytes];
        let rows: [&[u8]; ROWS] = from_fn(row);
        for index in 0..row_bytes / bytes {
            let blocks = rows.map(|row| &row[index * bytes..][..bytes]);
            place_bytes::<C, I>(isa, panel, &blocks, index * groups, first);
        }
        place_factors::<C, I>(isa, panel, &rows, first);
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
    let mut groups = [[isa.load(&[0; GROUP]); ROWS]; LANES];
    for row in 0..ROWS {
        C::bytes(
            isa,
            blocks[row],
            #[inline(always)]
            |group, bytes| groups[group][row] = bytes,
        );
    }
    for group in 0..const { C::DTYPE.block_len() / GROUP } {
        let place = place_of(at + group, panel.groups);
        let places = panel.quads[place * QUADS * width..][..QUADS * width].chunks_exact_mut(width);
        for (quads, place) in isa.transpose_quads(&groups[group]).into_iter().zip(places) {
            let quads = if shifted::<C, I>() { isa.flip_signs(quads) } else { quads };
            place[4 * lane..][..GROUP].copy_from_slice(&isa.store(quads));
        }
    }
}

/// Writes the factors of eight rows to lanes `lane..lane + 8`.
#[inline(always)]
fn place_factors<C: Codec, I: Isa>(isa: I, panel: &mut IntPanel, rows: &[&[u8]; ROWS], lane: usize) {
    let bytes = const { lanes_bytes::<C>() };
    let mut filled = [0; MOST_BYTES];
    for first in (0..panel.groups).step_by(LANES) {
        let start = first / LANES * bytes;
        let zeros = [[isa.splat(0.0); ROWS]; 2];
        let (mut scales, mut minimums) = (zeros, zeros);
        for row in 0..ROWS {
            let rest = &rows[row][start..];
            let Factors { scales: scale, minimums: minimum } = match rest.get(..bytes) {
                Some(chunk) => C::factors::<I, LANES>(isa, chunk),
                None => {
                    filled[..rest.len()].copy_from_slice(rest);
                    C::factors::<I, LANES>(isa, &filled[..bytes])
                }
            };
            for half in 0..2 {
                (scales[half][row], minimums[half][row]) = (scale[half], minimum[half]);
            }
        }
        for half in 0..if C::PER_HALF { 2 } else { 1 } {
            let places: [usize; LANES] = from_fn(|group| {
                let place = place_of((first + group).min(panel.groups - 1), panel.groups);
                (place * panel.halves + half) * I::PANEL_ROWS + lane
            });
            let places = &places[..LANES.min(panel.groups - first)];
            store_columns(isa, &scales[half], &mut panel.scales, places);
            if C::HAS_MINIMUM {
                store_columns(isa, &minimums[half], &mut panel.minimums, places);
            }
        }
    }
}

/// Writes the same lane of eight rows together, to the place of the lane.
#[inline(always)]
fn store_columns<I: Isa>(isa: I, rows: &[I::Floats; ROWS], out: &mut [f32], places: &[usize]) {
    for (column, &place) in isa.transpose(rows).into_iter().zip(places) {
        let out = out[place..].first_chunk_mut().expect("the panel has room for all groups");
        isa.store_floats(column, out);
    }
}

/// `out[vector][row]`, `[vectors of the tile, PANEL_ROWS]`, from a panel of quantised weights.
#[inline(always)]
pub(crate) fn multiply_ints<I: Isa>(isa: I, panel: &IntPanel, tile: &Tile, out: &mut [f32]) {
    match tile.vectors {
        TILE => tile_of_ints::<I, TILE>(isa, panel, tile, out),
        4 => tile_of_ints::<I, 4>(isa, panel, tile, out),
        2 => tile_of_ints::<I, 2>(isa, panel, tile, out),
        _ => tile_of_ints::<I, 1>(isa, panel, tile, out),
    }
}

#[inline(always)]
fn tile_of_ints<I: Isa, const N: usize>(isa: I, panel: &IntPanel, x: &Tile, out: &mut [f32]) {
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
    x: &Tile,
    out: &mut [f32],
) {
    let lanes = I::PANEL_ROWS;
    // Group by group, both sides one after another; for each half group, if that has a scale of its own.
    // A number that the compiler doesn't know: it would unroll the loop over quads into a block so long that it no
    // longer finds that each vector's quad can be read by the instruction that multiplies.
    let count = std::hint::black_box(QUADS / HALVES);
    let mut quads = panel.quads.chunks_exact(4 * lanes * count);
    let mut scales = panel.scales.chunks_exact(lanes);
    let mut minimums = panel.minimums.chunks_exact(lanes);
    let mut x_quads = x.quads.chunks_exact(N * count);
    let mut x_scales = x.scales.as_chunks::<N>().0.iter();
    let mut x_shifts = x.shifts.as_chunks::<N>().0.iter();
    let sums = if HALVES == 1 { &x.sums } else { &x.half_sums };
    let mut x_sums = sums.as_chunks::<N>().0.iter();
    let mut sums: [I::Lanes; N] = [isa.lanes_splat(0.0); N];
    for lane in 0..LANES {
        let mut lane_sums: [I::Lanes; N] = [isa.lanes_splat(0.0); N];
        for _ in 0..groups_of_lane(panel.groups, lane) {
            let x_scale = x_scales.next().expect(SHORT);
            let x_shift = x_shifts.next().expect(SHORT);
            for _ in 0..HALVES {
                let mut dots = [isa.lane_ints_splat(0); N];
                if FORM == SHIFTED {
                    for n in 0..N {
                        dots[n] = isa.lane_ints_splat(x_shift[n]);
                    }
                }
                let (quads, x_quads) = (quads.next().expect(SHORT), x_quads.next().expect(SHORT));
                isa.quads_dots(&mut dots, quads, x_quads.as_chunks::<N>().0, FORM == SIGNED);
                let scale = isa.lanes_load(scales.next().expect(SHORT));
                for n in 0..N {
                    let scale = isa.lanes_multiply(scale, isa.lanes_splat(x_scale[n]));
                    lane_sums[n] = isa.lanes_multiply_add(lane_sums[n], isa.lanes_from_ints(dots[n]), scale);
                }
                if MINIMUM {
                    let minimum = isa.lanes_load(minimums.next().expect(SHORT));
                    let x_sum = x_sums.next().expect(SHORT);
                    for n in 0..N {
                        lane_sums[n] =
                            isa.lanes_multiply_add(lane_sums[n], minimum, isa.lanes_splat(x_sum[n]));
                    }
                }
            }
        }
        for n in 0..N {
            sums[n] = isa.lanes_add(sums[n], lane_sums[n]);
        }
    }
    for (sum, out) in sums.into_iter().zip(out.chunks_exact_mut(lanes)) {
        isa.lanes_store(sum, out);
    }
}

/// What panel and tile were made for.
const SHORT: &str = "a panel and a tile of rows of one length";

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
