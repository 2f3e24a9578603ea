//! `Y = X W^T` for a few vectors, on the file's own blocks.
//!
//! A row is read eight groups at a time, each with a lane of the sums, so that scales and minimums of all eight are
//! worked with at once. A lane sums every eighth group, and at the end of the row the lanes are added from the first to
//! the last. The panels of [`crate::panel`] sum in the same order, so both give the same bits.

use crate::activation::Activation;
use crate::codec::{Codec, GROUP, LANES, MOST_BYTES, lanes_bytes};
use lichen_simd::Isa;

/// Vectors that share one unpacking of the weights.
const TILE: usize = 2;

/// Rows whose lanes are added at once.
const ROWS: usize = 8;

/// `out[vector][row]`, `weights` being whole rows one after another.
#[inline(always)]
pub(crate) fn gemv<C: Codec, I: Isa>(isa: I, weights: &[u8], x: &[Activation], out: &mut [f32]) {
    let rows = out.len() / x.len().max(1);
    let (tiles, rest) = x.as_chunks::<TILE>();
    let (tiles_out, rest_out) = out.split_at_mut(tiles.len() * TILE * rows);
    for (x, out) in tiles.iter().zip(tiles_out.chunks_exact_mut(TILE * rows)) {
        tile::<C, I, TILE>(isa, weights, x, rows, out);
    }
    for (x, out) in rest.as_chunks::<1>().0.iter().zip(rest_out.chunks_exact_mut(rows)) {
        tile::<C, I, 1>(isa, weights, x, rows, out);
    }
}

#[inline(always)]
fn tile<C: Codec, I: Isa, const N: usize>(
    isa: I,
    weights: &[u8],
    x: &[Activation; N],
    rows: usize,
    out: &mut [f32],
) {
    let row_bytes = weights.len() / rows;
    for first in (0..rows).step_by(ROWS) {
        let count = ROWS.min(rows - first);
        let mut lanes = [[isa.splat(0.0); ROWS]; N];
        for row in 0..count {
            let start = (first + row) * row_bytes;
            let sums = row_lanes::<C, I, N>(isa, &weights[start..], row_bytes, x);
            for n in 0..N {
                lanes[n][row] = sums[n];
            }
        }
        for n in 0..N {
            let mut sums = [0.0; ROWS];
            isa.store_floats(added(isa, &lanes[n]), &mut sums);
            out[n * rows + first..][..count].copy_from_slice(&sums[..count]);
        }
    }
}

/// Lane `i` is the sum of the lanes of `rows[i]`, from the first to the last.
#[inline(always)]
fn added<I: Isa>(isa: I, rows: &[I::Floats; ROWS]) -> I::Floats {
    let columns = isa.transpose(rows);
    let mut sum = isa.splat(0.0);
    for column in columns {
        sum = isa.multiply_add(sum, column, isa.splat(1.0));
    }
    sum
}

/// The sums of the row of `row_bytes` bytes that `weights` starts with, lane by lane.
#[inline(always)]
fn row_lanes<C: Codec, I: Isa, const N: usize>(
    isa: I,
    weights: &[u8],
    row_bytes: usize,
    x: &[Activation; N],
) -> [I::Floats; N] {
    let bytes = const { lanes_bytes::<C>() };
    let mut sums = [isa.splat(0.0); N];
    let whole = row_bytes / bytes;
    for chunk in 0..whole {
        add_groups::<C, I, N, LANES>(isa, &weights[chunk * bytes..][..bytes], chunk, x, &mut sums);
    }
    let rest = &weights[whole * bytes..row_bytes];
    match rest.len() * LANES / bytes {
        0 => {}
        1 | 2 => add_last::<C, I, N, 2>(isa, rest, whole, x, &mut sums),
        3 | 4 => add_last::<C, I, N, 4>(isa, rest, whole, x, &mut sums),
        _ => add_last::<C, I, N, LANES>(isa, rest, whole, x, &mut sums),
    }
    sums
}

/// [`add_groups`] of the end of a row, which may have fewer groups.
#[inline(always)]
fn add_last<C: Codec, I: Isa, const N: usize, const GROUPS: usize>(
    isa: I,
    rest: &[u8],
    chunk: usize,
    x: &[Activation; N],
    sums: &mut [I::Floats; N],
) {
    let bytes = const { lanes_bytes::<C>() * GROUPS / LANES };
    if rest.len() == bytes {
        return add_groups::<C, I, N, GROUPS>(isa, rest, chunk, x, sums);
    }
    let mut filled = [0; MOST_BYTES];
    filled[..rest.len()].copy_from_slice(rest);
    add_groups::<C, I, N, GROUPS>(isa, &filled[..bytes], chunk, x, sums);
}

/// Adds what groups of the row and of each vector give, up to eight, `chunk` times eight groups from the start.
#[inline(always)]
fn add_groups<C: Codec, I: Isa, const N: usize, const GROUPS: usize>(
    isa: I,
    weights: &[u8],
    chunk: usize,
    x: &[Activation; N],
    sums: &mut [I::Floats; N],
) {
    let (bytes, groups) = (const { C::DTYPE.block_bytes() }, const { C::DTYPE.block_len() / GROUP });
    let mut dots = [[isa.ints_splat(0); LANES]; N];
    let quants: [&[[u8; 32]]; N] = std::array::from_fn(|n| &x[n].quants[chunk * LANES..][..LANES]);
    for block in 0..const { GROUPS * GROUP / C::DTYPE.block_len() } {
        C::bytes(
            isa,
            &weights[block * bytes..][..bytes],
            #[inline(always)]
            |group, bytes| {
                let bytes = if shifted::<C, I>() { isa.flip_signs(bytes) } else { bytes };
                let group = block * groups + group;
                for n in 0..N {
                    let quants = isa.load(&quants[n][group]);
                    dots[n][group] = if C::SIGNED && !I::WIDE_UNSIGNED {
                        isa.dot_signed(bytes, quants)
                    } else {
                        isa.dot_unsigned(bytes, quants)
                    };
                }
            },
        );
    }
    let factors = C::factors::<I, GROUPS>(isa, weights);
    for n in 0..N {
        let halves = isa.half_sums(&dots[n], const { 4 * 127 * C::LARGEST as i32 });
        let scale = isa.load_floats(&x[n].scales[chunk]);
        if C::PER_HALF {
            for half in 0..2 {
                let sum = isa.load_floats(&x[n].half_sums[chunk][half]);
                let scale = isa.multiply(factors.scales[half], scale);
                sums[n] = isa.multiply_add(sums[n], isa.floats(halves[half]), scale);
                sums[n] = isa.multiply_add(sums[n], factors.minimums[half], sum);
            }
            continue;
        }
        let mut dots = isa.add_ints(halves[0], halves[1]);
        if shifted::<C, I>() {
            dots = isa.add_ints(dots, isa.load_ints(&x[n].shifts[chunk]));
        }
        sums[n] = isa.multiply_add(sums[n], isa.floats(dots), isa.multiply(factors.scales[0], scale));
        if C::HAS_MINIMUM {
            sums[n] = isa.multiply_add(sums[n], factors.minimums[0], isa.load_floats(&x[n].sums[chunk]));
        }
    }
}

/// Whether 128 is added to signed weights, and taken off their products again.
#[inline(always)]
pub(crate) const fn shifted<C: Codec, I: Isa>() -> bool {
    C::SIGNED && I::WIDE_UNSIGNED
}
