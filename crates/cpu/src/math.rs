//! Elementwise functions, written so that compilers turn loops of them into vector code.

use lichen_op::{Activation, Rope, RopeLayout};
use lichen_simd::Isa;

/// Adding it leaves the rounded integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// `e^r = 1 + r + r^2 * p(r)` with the coefficients of `p` from the highest, for `r` within half of ln 2.
#[expect(clippy::excessive_precision, reason = "the published constants")]
const EXP: [f32; 6] = [
    1.987_569_150_0e-4,
    1.398_199_950_7e-3,
    8.333_451_907_3e-3,
    4.166_579_589_4e-2,
    1.666_666_545_9e-1,
    5.000_000_120_1e-1,
];
/// Minus ln 2 in two parts, the first with few bits.
#[expect(clippy::excessive_precision, reason = "the published constants")]
const MINUS_LN_2: [f32; 2] = [-0.693_359_375, 2.121_944_4e-4];

/// `e^x` to about 2 units in the last place; 0 below -87, infinite above 88.
///
/// Cody and Waite's range reduction with the polynomial of Cephes `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let clamped = x.clamp(-87.0, 88.0);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(MINUS_LN_2[0], clamped);
    let r = n.mul_add(MINUS_LN_2[1], r);
    let mut p = EXP[0];
    for coefficient in &EXP[1..] {
        p = p.mul_add(r, *coefficient);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let result = p * power;
    if x < -87.0 {
        0.0
    } else if x > 88.0 {
        f32::INFINITY
    } else {
        result
    }
}

/// [`exp`] of lanes that are at most 0, to the bit; 0 of what is no number.
#[inline(always)]
pub(crate) fn exp_of_negative<I: Isa>(isa: I, x: I::Lanes) -> I::Lanes {
    let least = isa.lanes_splat(-87.0);
    let clamped = isa.lanes_larger(x, least);
    let shifted =
        isa.lanes_multiply_add(isa.lanes_splat(ROUND), clamped, isa.lanes_splat(std::f32::consts::LOG2_E));
    let n = isa.lanes_add(shifted, isa.lanes_splat(-ROUND));
    let r = isa.lanes_multiply_add(clamped, n, isa.lanes_splat(MINUS_LN_2[0]));
    let r = isa.lanes_multiply_add(r, n, isa.lanes_splat(MINUS_LN_2[1]));
    let mut p = isa.lanes_splat(EXP[0]);
    for coefficient in &EXP[1..] {
        p = isa.lanes_multiply_add(isa.lanes_splat(*coefficient), p, r);
    }
    let p = isa.lanes_add(isa.lanes_multiply_add(r, p, isa.lanes_multiply(r, r)), isa.lanes_splat(1.0));
    // Just below -87 is 0, so that what is masked counts for nothing.
    let below = isa.lanes_splat((-87.0f32).next_down());
    isa.lanes_where_above(x, below, isa.lanes_times_power(p, shifted))
}

/// `out = act(out) * up`.
#[inline(always)]
pub(crate) fn gate(act: Activation, out: &mut [f32], up: &[f32]) {
    match act {
        Activation::Silu => {
            out.iter_mut().zip(up).for_each(|(x, up)| *x = *x / (1.0 + exp(-*x)) * up);
        }
        Activation::GeluTanh => {
            // sqrt(2 / pi)
            let root = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
            out.iter_mut().zip(up).for_each(|(x, up)| {
                let inner = root * (*x + 0.044_715 * *x * *x * *x);
                // 0.5 * (1 + tanh(y)) = 1 / (1 + e^-2y)
                *x = *x / (1.0 + exp(-2.0 * inner)) * up;
            });
        }
    }
}

/// `x = x / rms(x) * weight`, sums in eight lanes.
#[inline(always)]
pub(crate) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let mut sums = [0.0f32; 8];
    for part in x.chunks(8) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    let scale = 1.0 / (sums.iter().sum::<f32>() / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * scale * weight);
}

/// Sine and cosine of each pair at each position, times the rope's factor: `[positions, pairs, 2]`.
pub(crate) fn rope_table(rope: &Rope, positions: &[u32], table: &mut Vec<f32>) {
    table.clear();
    for &position in positions {
        for frequency in &rope.inverse_frequencies {
            let (sin, cos) = (position as f32 * frequency).sin_cos();
            table.extend([sin * rope.attn_factor, cos * rope.attn_factor]);
        }
    }
}

/// Rotates one head by a row of [`rope_table`].
#[inline(always)]
pub(crate) fn rotate(rope: &Rope, head: &mut [f32], table: &[f32]) {
    for (i, &[sin, cos]) in table.as_chunks::<2>().0.iter().enumerate() {
        let (a, b) = match rope.layout {
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            RopeLayout::Half => (i, i + rope.dims / 2),
        };
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_of_negative_lanes_is_exp() {
        let isa = lichen_simd::Scalar;
        for i in 0..200_000 {
            let x = i as f32 * -5e-4;
            let lanes =
                exp_of_negative(isa, [x, x - 1e-4, 0.0, -87.0, f32::NEG_INFINITY, -1e30, -1e-9, -88.0]);
            let wanted = [x, x - 1e-4, 0.0, -87.0, f32::NEG_INFINITY, -1e30, -1e-9, -88.0].map(exp);
            assert_eq!(lanes, wanted, "{x}");
        }
    }

    #[test]
    fn exp_is_within_three_units_in_the_last_place() {
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let want = f64::from(x).exp();
            assert!((f64::from(exp(x)) - want).abs() <= 3.6e-7 * want, "{x}: {} {want}", exp(x));
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
    }
}
