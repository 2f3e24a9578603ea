//! Searches for the scale and the quants with the least weighted error.
//!
//! Each sum runs in the order of ggml's searches (`make_*_quants` in `ggml-quants.c`), in `f32`: another order
//! rounds otherwise, and now and then picks another block.

use super::extreme;

/// Values of lesser magnitude count as zeros (`GROUP_MAX_EPS` in ggml).
pub(super) const ZERO: f32 = 1e-15;

/// How often [`descend`] goes over the values at most.
const DESCENTS: usize = 5;

/// Rounds to the nearest integer, halves to the even one. Saturates; not-a-number gives 0.
pub(super) fn nearest_int(value: f32) -> i32 {
    /// At this magnitude neighbouring floats are 1 apart, so that the addition rounds.
    const UNITS: f32 = 12_582_912.0;
    ((value + UNITS) - UNITS) as i32
}

/// The sum of squares, first value first.
pub(super) fn sum_of_squares(values: &[f32]) -> f32 {
    let mut sum = 0.0;
    for value in values {
        sum += value * value;
    }
    sum
}

/// The sum, first value first.
pub(super) fn sum(values: &[f32]) -> f32 {
    let mut sum = 0.0;
    for value in values {
        sum += value;
    }
    sum
}

/// What the errors of values count: the importance, times a magnitude that doesn't vanish for small values.
pub(super) fn error_weights<const N: usize>(
    values: &[f32; N],
    importance: &[f32; N],
    mean_square: f32,
) -> [f32; N] {
    std::array::from_fn(|j| importance[j] * (mean_square + values[j] * values[j]).sqrt())
}

/// Weighted sums of value times quant and of quant squared.
fn weighted_sums<const N: usize>(values: &[f32; N], weights: &[f32; N], quants: &[i32; N]) -> (f32, f32) {
    let (mut xq, mut qq) = (0.0, 0.0);
    for j in 0..N {
        let quant = quants[j] as f32;
        xq += weights[j] * values[j] * quant;
        qq += weights[j] * quant * quant;
    }
    (xq, qq)
}

/// Scale and quants, `half` added, of `value = scale * (quant - half)` with quants in `0..2 * half`.
///
/// Tries scales around the one that maps the extreme value to `-half`. Zeros give scale 0 and quants 0.
pub(super) fn symmetric<const N: usize>(values: &[f32; N], weights: &[f32; N], half: u8) -> (f32, [u8; N]) {
    let max = extreme(values);
    if max.abs() < ZERO {
        return (0.0, [0; N]);
    }
    let mut quants = round_symmetric(values, -f32::from(half) / max, half);
    let (xq, qq) = weighted_sums(values, weights, &quants);
    let mut scale = if qq == 0.0 { 0.0 } else { xq / qq };
    let mut best = scale * xq;
    for step in (-9_i8..=9).filter(|&step| step != 0) {
        let inverse = -(f32::from(half) + 0.1 * f32::from(step)) / max;
        let trial = round_symmetric(values, inverse, half);
        let (xq, qq) = weighted_sums(values, weights, &trial);
        if qq > 0.0 && xq * xq > best * qq {
            quants = trial;
            scale = xq / qq;
            best = scale * xq;
        }
    }
    (scale, quants.map(|quant| (quant + i32::from(half)) as u8))
}

/// As [`symmetric`] with squared values as weights, but starts at one scale and improves quant by quant.
pub(super) fn symmetric_by_descent<const N: usize>(values: &[f32; N], half: u8) -> (f32, [u8; N]) {
    let max = extreme(values);
    if max.abs() < ZERO {
        return (0.0, [0; N]);
    }
    let weights = values.map(|value| value * value);
    let mut quants = round_symmetric(values, -f32::from(half) / max, half);
    let half = i32::from(half);
    let scale = descend(values, &weights, &mut quants, (-half, half - 1), true);
    (scale, quants.map(|quant| (quant + half) as u8))
}

fn round_symmetric<const N: usize>(values: &[f32; N], inverse: f32, half: u8) -> [i32; N] {
    let half = i32::from(half);
    values.map(|value| nearest_int(inverse * value).clamp(-half, half - 1))
}

/// Scale and quants of `value = scale * quant` with quants in `0..=top`, for values that aren't negative.
pub(super) fn unsigned<const N: usize>(values: &[f32; N], weights: &[f32; N], top: u8) -> (f32, [u8; N]) {
    let max = values.iter().fold(0.0_f32, |max, &value| if max > value { max } else { value });
    if max < ZERO {
        return (0.0, [0; N]);
    }
    let round = |inverse: f32| values.map(|value| nearest_int(inverse * value).clamp(0, i32::from(top)));
    let error = |inverse: f32| {
        let (scale, quants) = (1.0 / inverse, round(inverse));
        let mut error = 0.0;
        for j in 0..N {
            let difference = values[j] - scale * quants[j] as f32;
            error += weights[j] * difference * difference;
        }
        error
    };
    let mut inverse = f32::from(top) / max;
    let mut least = error(inverse);
    for step in (-4_i8..=4).filter(|&step| step != 0) {
        let trial = (0.1 * f32::from(step) + f32::from(top)) / max;
        let error = error(trial);
        if error < least {
            least = error;
            inverse = trial;
        }
    }
    let mut quants = round(inverse);
    let scale = descend(values, weights, &mut quants, (0, i32::from(top)), false);
    (scale, quants.map(|quant| quant as u8))
}

/// Moves quants one at a time to where the least-squares scale of the others wants them, as long as the fit
/// improves, and returns the scale. `lone` tells whether a quant may move when all others are 0.
fn descend<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    quants: &mut [i32; N],
    (low, high): (i32, i32),
    lone: bool,
) -> f32 {
    let (mut xq, mut qq) = weighted_sums(values, weights, quants);
    for _ in 0..DESCENTS {
        let mut changed = false;
        for j in 0..N {
            let (value, weight, quant) = (values[j], weights[j], quants[j] as f32);
            let mut others_xq = xq - weight * value * quant;
            let mut others_qq = qq - weight * quant * quant;
            if others_xq <= 0.0 || (!lone && others_qq <= 0.0) {
                continue;
            }
            let moved = nearest_int(value * others_qq / others_xq).clamp(low, high);
            if moved == quants[j] {
                continue;
            }
            let quant = moved as f32;
            others_xq += weight * value * quant;
            others_qq += weight * quant * quant;
            if others_qq > 0.0 && others_xq * others_xq * qq > xq * xq * others_qq {
                (quants[j], xq, qq) = (moved, others_xq, others_qq);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    if qq > 0.0 { xq / qq } else { 0.0 }
}

/// A fit `value = scale * quant - lowering`.
pub(super) struct Affine<const N: usize> {
    pub(super) scale: f32,
    /// Not negative.
    pub(super) lowering: f32,
    pub(super) quants: [u8; N],
}

/// Which scales [`affine`] tries: those that spread the range over `top + first`, `top + first + step` and so
/// on to `top + first + last * step` quants.
pub(super) struct Trials {
    pub(super) first: f32,
    pub(super) step: f32,
    pub(super) last: u8,
    pub(super) penalty: Penalty,
}

/// What a difference counts.
#[derive(Clone, Copy)]
pub(super) enum Penalty {
    Absolute,
    Squared,
}

/// The trials of all types when there are importance weights.
pub(super) const WEIGHTED_TRIALS: Trials =
    Trials { first: -0.9, step: 0.05, last: 36, penalty: Penalty::Squared };

/// Scale, minimum and quants in `0..=top`. The range always takes in 0.
pub(super) fn affine<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    top: u8,
    trials: &Trials,
) -> Affine<N> {
    let (mut min, max) = range(values);
    if max <= min {
        return Affine { scale: 0.0, lowering: -min, quants: [0; N] };
    }
    let (sum_w, sum_x) = sums(values, weights);
    let inverse = f32::from(top) / (max - min);
    let mut scale = 1.0 / inverse;
    let mut quants = round_affine(values, inverse, min, top);
    let mut least = affine_error(values, weights, &quants, (scale, min), trials.penalty);
    for trial in 0..=trials.last {
        // The minimum is the best one so far, as in ggml, and not that of the values.
        let quants_in_range = trials.first + trials.step * f32::from(trial) + f32::from(top);
        let candidate = round_affine(values, quants_in_range / (max - min), min, top);
        let Some(line) = least_squares(values, weights, &candidate, (sum_w, sum_x)) else { continue };
        let error = affine_error(values, weights, &candidate, line, trials.penalty);
        if error < least {
            least = error;
            quants = candidate;
            (scale, min) = line;
        }
    }
    Affine { scale, lowering: -min, quants }
}

/// Least value, but at most 0, and greatest value.
fn range(values: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (values[0], values[0]);
    for &value in &values[1..] {
        min = if value < min { value } else { min };
        max = if value > max { value } else { max };
    }
    (if min > 0.0 { 0.0 } else { min }, max)
}

/// Sum of the weights, and of the weighted values.
fn sums<const N: usize>(values: &[f32; N], weights: &[f32; N]) -> (f32, f32) {
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * values[0]);
    for j in 1..N {
        sum_w += weights[j];
        sum_x += weights[j] * values[j];
    }
    (sum_w, sum_x)
}

fn round_affine<const N: usize>(values: &[f32; N], inverse: f32, min: f32, top: u8) -> [u8; N] {
    values.map(|value| nearest_int(inverse * (value - min)).clamp(0, i32::from(top)) as u8)
}

/// The scale and the minimum, at most 0, with the least squared error for these quants.
fn least_squares<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    quants: &[u8; N],
    (sum_w, sum_x): (f32, f32),
) -> Option<(f32, f32)> {
    let (mut sum_q, mut sum_qq, mut sum_xq) = (0.0, 0.0, 0.0);
    for j in 0..N {
        let quant = f32::from(quants[j]);
        sum_q += weights[j] * quant;
        sum_qq += weights[j] * quant * quant;
        sum_xq += weights[j] * quant * values[j];
    }
    let determinant = sum_w * sum_qq - sum_q * sum_q;
    if determinant <= 0.0 {
        return None;
    }
    let min = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
    if min > 0.0 {
        return Some((sum_xq / sum_qq, 0.0));
    }
    Some(((sum_w * sum_xq - sum_x * sum_q) / determinant, min))
}

fn affine_error<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    quants: &[u8; N],
    (scale, min): (f32, f32),
    penalty: Penalty,
) -> f32 {
    let mut error = 0.0;
    for j in 0..N {
        let difference = scale * f32::from(quants[j]) + min - values[j];
        error += weights[j]
            * match penalty {
                Penalty::Absolute => difference.abs(),
                Penalty::Squared => difference * difference,
            };
    }
    error
}
