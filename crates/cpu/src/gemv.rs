//! `Y = X W^T` for a few vectors, on the file's own blocks.
//!
//! Eight rows of weights are read side by side and each has a lane of the sums, so that scales and minimums of all
//! eight are worked with at once, and each output is summed in the order of the panels of [`crate::panel`]: group by
//! group along the row. Both give the same bits.

use crate::activation::Activation;
use crate::codec::{Codec, GROUP, MOST_GROUPS, ROWS};
use lichen_simd::Isa;

/// Vectors that share one unpacking of the weights.
const TILE: usize = 2;

/// Two groups of rows up to this size share the first-level cache with the vector.
const NEAR_BYTES: usize = 24 << 10;

/// A cache line.
const LINE: usize = 64;

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
    let mut sums = [[0.0; ROWS]; N];
    for first in (0..rows).step_by(ROWS) {
        let count = ROWS.min(rows - first);
        let mut group = [weights; ROWS];
        for row in 0..ROWS {
            // Lanes without a row of their own repeat the last.
            group[row] = &weights[(first + row.min(count - 1)) * row_bytes..][..row_bytes];
        }
        eight_rows::<C, I, N>(isa, &group, x, &mut sums);
        for n in 0..N {
            out[n * rows + first..][..count].copy_from_slice(&sums[n][..count]);
        }
    }
}

/// `out[vector][row]` for eight rows.
#[inline(always)]
fn eight_rows<C: Codec, I: Isa, const N: usize>(
    isa: I,
    rows: &[&[u8]; ROWS],
    x: &[Activation; N],
    out: &mut [[f32; ROWS]; N],
) {
    let (bytes, groups) = (const { C::DTYPE.block_bytes() }, const { C::DTYPE.block_len() / GROUP });
    let mut sums = [isa.splat(0.0); N];
    for index in 0..rows[0].len() / bytes {
        let mut blocks = [rows[0]; ROWS];
        for row in 0..ROWS {
            blocks[row] = &rows[row][index * bytes..][..bytes];
        }
        prefetch::<C, I>(isa, rows[0], rows[0].len(), index);
        let mut dots = [[[isa.ints_splat(0); ROWS]; MOST_GROUPS]; N];
        for row in 0..ROWS {
            C::bytes(
                isa,
                blocks[row],
                #[inline(always)]
                |group, bytes| {
                    let bytes = if shifted::<C, I>() { isa.flip_signs(bytes) } else { bytes };
                    for n in 0..N {
                        let quants = isa.load(&x[n].quants[index * groups + group]);
                        dots[n][group][row] = if C::SIGNED && !I::WIDE_UNSIGNED {
                            isa.dot_signed(bytes, quants)
                        } else {
                            isa.dot_unsigned(bytes, quants)
                        };
                    }
                },
            );
        }
        let factors = C::factors(isa, &blocks);
        for group in 0..groups {
            for n in 0..N {
                let dots = isa.half_sums(&dots[n][group]);
                let at = index * groups + group;
                let factors = (&factors.scales[group], &factors.minimums[group]);
                sums[n] = add_group::<C, I>(isa, sums[n], dots, factors, &x[n], at);
            }
        }
    }
    for n in 0..N {
        isa.store_floats(sums[n], &mut out[n]);
    }
}

/// Asks for what lies eight rows after block `index` of the first of eight rows of `row_bytes`. The eight rows are
/// eight streams, but the eight after them are one: it is asked for from start to end.
#[inline(always)]
pub(crate) fn prefetch<C: Codec, I: Isa>(isa: I, first: &[u8], row_bytes: usize, index: usize) {
    let bytes = const { C::DTYPE.block_bytes() };
    let near = 2 * ROWS * row_bytes <= NEAR_BYTES;
    let next = ROWS * (row_bytes + index * bytes);
    for line in 0..(ROWS * bytes).div_ceil(LINE) {
        isa.prefetch(first, next + line * LINE, near);
    }
}

/// Whether 128 is added to signed weights, and taken off their products again.
#[inline(always)]
pub(crate) const fn shifted<C: Codec, I: Isa>() -> bool {
    C::SIGNED && I::WIDE_UNSIGNED
}

/// Adds what group `at` of the vector and the rows give.
#[inline(always)]
fn add_group<C: Codec, I: Isa>(
    isa: I,
    sum: I::Floats,
    dots: [I::Ints; 2],
    (scales, minimums): (&[I::Floats; 2], &[I::Floats; 2]),
    x: &Activation,
    at: usize,
) -> I::Floats {
    let scale = isa.splat(x.scales[at]);
    let [low, high] = x.sums[at];
    let mut sum = sum;
    if C::PER_HALF {
        let sums = [low, high];
        for half in 0..2 {
            let scale = isa.multiply(scales[half], scale);
            sum = isa.multiply_add(sum, isa.floats(dots[half]), scale);
            sum = isa.multiply_add(sum, minimums[half], isa.splat(sums[half]));
        }
        return sum;
    }
    let mut dots = isa.add_ints(dots[0], dots[1]);
    if shifted::<C, I>() {
        let [low, high] = x.quant_sums[at];
        dots = isa.add_ints(dots, isa.ints_splat(-128 * (low + high)));
    }
    sum = isa.multiply_add(sum, isa.floats(dots), isa.multiply(scales[0], scale));
    if C::HAS_MINIMUM {
        sum = isa.multiply_add(sum, minimums[0], isa.splat(low + high));
    }
    sum
}
