//! What a step costs at least: arithmetic and memory traffic, for scheduling and for judging kernels.

use crate::batch::Batch;
use crate::op::Op;
use crate::plan::{BufferId, Plan, Rows, WeightId};

/// Lower bounds for one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating point operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes read and written if every operand moves once.
    pub bytes: f64,
}

/// How many bytes things take in a given engine.
pub struct Traffic<'a> {
    /// Bytes of one element of a weight, fractional for block formats.
    pub weight_element: &'a dyn Fn(WeightId) -> f64,
    /// Bytes of one element of the KV.
    pub kv_element: f64,
}

impl Plan {
    /// Cost of `op` on `batch`; the plan must be valid.
    #[must_use]
    pub fn cost(&self, op: &Op, batch: &Batch, traffic: &Traffic<'_>) -> Cost {
        let elements = |id: BufferId| {
            let rows = match self.buffers[id.0].rows {
                Rows::Tokens => batch.tokens.len(),
                Rows::Outputs => batch.outputs.len(),
            };
            (rows * self.buffers[id.0].width) as f64
        };
        let activations = |ids: &[BufferId]| 4.0 * ids.iter().map(|&id| elements(id)).sum::<f64>();
        let matrix = |x: BufferId, weight: WeightId, out: BufferId| {
            let width = self.buffers[x.0].width as f64;
            let read = width * self.buffers[out.0].width as f64 * (traffic.weight_element)(weight);
            Cost { flops: 2.0 * width * elements(out), bytes: read + activations(&[out]) }
        };
        match op {
            Op::Embed { table, out, .. } => {
                let read = elements(*out) * (traffic.weight_element)(*table);
                Cost { flops: elements(*out), bytes: read + activations(&[*out]) }
            }
            Op::RmsNorm { x, out, .. } => Cost { flops: 4.0 * elements(*x), bytes: activations(&[*x, *out]) },
            Op::Linear { input, projections } => {
                let start = Cost { flops: 0.0, bytes: activations(&[*input]) };
                projections.iter().fold(start, |sum, p| {
                    let one = matrix(*input, p.weight, p.out);
                    Cost { flops: sum.flops + one.flops, bytes: sum.bytes + one.bytes }
                })
            }
            Op::RopeAppend { q, k, v, .. } => {
                let stored = (elements(*k) + elements(*v)) * traffic.kv_element;
                let moved = activations(&[*q, *q, *k, *v]);
                Cost { flops: 3.0 * (elements(*q) + elements(*k)), bytes: moved + stored }
            }
            Op::Attention { q, layer, window, out, .. } => {
                let (pairs, kept) = attended(batch, *window);
                let kv = 2.0 * kept * self.kv.layers[*layer].width() as f64 * traffic.kv_element;
                let flops = 4.0 * pairs * self.buffers[q.0].width as f64;
                Cost { flops, bytes: kv + activations(&[*q, *out]) }
            }
            Op::GatedActivation { gate, up, out, .. } => {
                Cost { flops: 6.0 * elements(*out), bytes: activations(&[*gate, *up, *out]) }
            }
            Op::Add { x, y, out } => Cost { flops: elements(*out), bytes: activations(&[*x, *y, *out]) },
            Op::SelectOutputs { out, .. } => Cost { flops: 0.0, bytes: activations(&[*out, *out]) },
            Op::Logits { x, weight, out } => {
                let product = matrix(*x, *weight, *out);
                Cost { flops: product.flops, bytes: product.bytes + activations(&[*x]) }
            }
        }
    }
}

/// Query-key pairs scored, and KV tokens read when each is read once per sequence.
fn attended(batch: &Batch, window: Option<u32>) -> (f64, f64) {
    let window = window.map_or(f64::INFINITY, f64::from);
    let (mut pairs, mut kept) = (0.0, 0.0);
    for span in &batch.sequences {
        pairs += (0..span.len).map(|i| ((span.past + i + 1) as f64).min(window)).sum::<f64>();
        kept += ((span.past + span.len) as f64).min(window + span.len.saturating_sub(1) as f64);
    }
    (pairs, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_bound_what_is_attended() {
        let mut batch = Batch::default();
        batch.push(0, 10, &[0, 0], false);
        assert_eq!(attended(&batch, None), (11.0 + 12.0, 12.0));
        assert_eq!(attended(&batch, Some(4)), (8.0, 5.0));
    }
}
