//! Scores and weighted values of pages whose numbers become floats one by one.

use crate::kv::{HeadShape, PAGE_TOKENS};
use lichen_simd::Isa;

/// A stored number.
pub(super) trait Number: Copy {
    /// The first lanes of these as floats.
    fn lanes<I: Isa>(isa: I, numbers: &[Self]) -> I::Lanes;
}

impl Number for f32 {
    #[inline(always)]
    fn lanes<I: Isa>(isa: I, numbers: &[f32]) -> I::Lanes {
        isa.lanes_load(numbers)
    }
}

/// The bits of half precision.
impl Number for u16 {
    #[inline(always)]
    fn lanes<I: Isa>(isa: I, numbers: &[u16]) -> I::Lanes {
        isa.lanes_of_halves(numbers)
    }
}

/// Codes, without their step.
impl Number for i8 {
    #[inline(always)]
    fn lanes<I: Isa>(isa: I, numbers: &[i8]) -> I::Lanes {
        isa.lanes_of_bytes(numbers)
    }
}

/// Products of rows `[head_dim]` with keys `[channel][token]`.
#[inline(always)]
pub(super) fn score<I: Isa, T: Number, const N: usize>(
    isa: I,
    rows: [&[f32]; N],
    keys: &[T],
    scores: &mut [[f32; PAGE_TOKENS]; N],
) {
    // Two vectors at a time hide what an addition takes.
    for first in (0..PAGE_TOKENS).step_by(2 * I::PANEL_ROWS) {
        let second = first + I::PANEL_ROWS;
        let mut sums = [[isa.lanes_splat(0.0); 2]; N];
        for (dim, keys) in keys.chunks_exact(PAGE_TOKENS).enumerate().take(rows[0].len()) {
            let keys = [T::lanes(isa, &keys[first..]), T::lanes(isa, &keys[second..])];
            for n in 0..N {
                let query = isa.lanes_splat(rows[n][dim]);
                sums[n][0] = isa.lanes_multiply_add(sums[n][0], keys[0], query);
                sums[n][1] = isa.lanes_multiply_add(sums[n][1], keys[1], query);
            }
        }
        for n in 0..N {
            isa.lanes_store(sums[n][0], &mut scores[n][first..]);
            isa.lanes_store(sums[n][1], &mut scores[n][second..]);
        }
    }
}

/// Adds values `[token][channel]` to `out`, `[N, stride]`, by the weights that a row and a channel have. Neighbouring
/// vectors of a group have the same weights.
#[inline(always)]
pub(super) fn add_values<'w, I: Isa, T: Number, const N: usize>(
    isa: I,
    values: &[T],
    shape: HeadShape,
    weights: impl Fn(usize, usize) -> &'w [f32; PAGE_TOKENS],
    tokens: usize,
    out: &mut [f32],
) {
    let mut channel = 0;
    while channel < shape.stride {
        let weights: [_; N] = std::array::from_fn(|n| weights(n, channel));
        if channel + 2 * I::PANEL_ROWS <= shape.stride {
            add_vectors::<I, T, N, 2>(isa, values, shape.stride, channel, weights, tokens, out);
            channel += 2 * I::PANEL_ROWS;
        } else {
            add_vectors::<I, T, N, 1>(isa, values, shape.stride, channel, weights, tokens, out);
            channel += I::PANEL_ROWS;
        }
    }
}

/// Adds `V` vectors of channels from `channel` on.
#[inline(always)]
fn add_vectors<I: Isa, T: Number, const N: usize, const V: usize>(
    isa: I,
    values: &[T],
    stride: usize,
    channel: usize,
    weights: [&[f32; PAGE_TOKENS]; N],
    tokens: usize,
    out: &mut [f32],
) {
    let mut sums = [[isa.lanes_splat(0.0); V]; N];
    for n in 0..N {
        for v in 0..V {
            sums[n][v] = isa.lanes_load(&out[n * stride + channel + v * I::PANEL_ROWS..]);
        }
    }
    for (token, values) in values.chunks_exact(stride).enumerate().take(tokens) {
        for v in 0..V {
            let values = T::lanes(isa, &values[channel + v * I::PANEL_ROWS..]);
            for n in 0..N {
                let weight = isa.lanes_splat(weights[n][token]);
                sums[n][v] = isa.lanes_multiply_add(sums[n][v], values, weight);
            }
        }
    }
    for n in 0..N {
        for v in 0..V {
            isa.lanes_store(sums[n][v], &mut out[n * stride + channel + v * I::PANEL_ROWS..]);
        }
    }
}
