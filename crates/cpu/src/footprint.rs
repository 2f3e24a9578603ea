//! What an executor allocates besides pages of keys and values.

use crate::activation::{Activation, BLOCK};
use crate::codec::LANES;
use lichen_op::{Op, Plan, WeightId};
use std::collections::BTreeSet;

/// The weights that are vectors, norms and biases: an executor keeps them decoded.
pub(crate) fn vectors(plan: &Plan) -> BTreeSet<WeightId> {
    let mut vectors = BTreeSet::new();
    for step in &plan.steps {
        match step {
            Op::RmsNorm { weight, .. } => vectors.extend([*weight]),
            Op::RopeAppend { q_norm, k_norm, .. } => vectors.extend([*q_norm, *k_norm].into_iter().flatten()),
            Op::Linear { projections, .. } => vectors.extend(projections.iter().filter_map(|p| p.bias)),
            _ => {}
        }
    }
    vectors
}

/// Bytes that steps of so many tokens and rows of logits need: buffers of the plan, inputs of matrices in 8 bits, the
/// tables of the rotary embeddings, and norms and biases in single precision. What threads keep for themselves is a few
/// KiB and left out.
pub fn scratch_bytes(plan: &Plan, tokens: usize, outputs: usize) -> u64 {
    let inputs = plan.steps.iter().filter_map(|step| match step {
        Op::Linear { input, .. } => Some(plan.buffers[input.0].width),
        _ => None,
    });
    // Each row's vectors keep the size of the widest input that they have held.
    let quantised =
        size_of::<Activation>() + inputs.max().unwrap_or(0).div_ceil(BLOCK * LANES) * LANES * BLOCK_BYTES;
    let angles: usize = plan.ropes.iter().map(|rope| 2 * rope.inverse_frequencies.len()).sum();
    let row = quantised + angles * size_of::<f32>();
    let vectors: usize = vectors(plan).into_iter().map(|id| plan.weights[id.0].row_len()).sum();
    let fixed = (vectors * size_of::<f32>()) as u64;
    (plan.scratch_bytes(tokens, outputs) as u64).saturating_add(fixed + tokens as u64 * row as u64)
}

/// Bytes of 32 activations: quants, their scale, a sum of integers and three of floats.
const BLOCK_BYTES: usize = BLOCK + 4 + 4 + 12;

#[cfg(test)]
mod tests {
    use super::*;
    use lichen_op::{Buffer, BufferId, Rows};

    #[test]
    fn a_plan_without_matrices_has_its_buffers_and_a_place_for_each_row() {
        let buffers = vec![Buffer { width: 64, rows: Rows::Tokens }];
        let plan = Plan { buffers, ..Plan::default() };
        assert_eq!(scratch_bytes(&plan, 3, 1), 3 * (4 * 64 + size_of::<Activation>() as u64));
        let input = BufferId(0);
        let plan = Plan { steps: vec![Op::Linear { input, projections: Vec::new() }], ..plan };
        assert_eq!(scratch_bytes(&plan, 3, 1), 3 * (4 * 64 + 8 * 52 + size_of::<Activation>() as u64));
    }
}
