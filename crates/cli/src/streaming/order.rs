//! Where a forward pass reads its weights, in order.

use lichen_format::Checkpoint;
use lichen_memory::WeightRange;
use lichen_op::{Op, Plan, WeightId};

/// The weights of a plan as bytes of the model file, in the order in which a pass reads them; empty if the file is not
/// mapped. A table of which only single rows are read is not among them.
pub(crate) fn reading_order(plan: &Plan, checkpoint: &Checkpoint) -> Vec<WeightRange> {
    let tables: Vec<WeightId> = plan.steps.iter().filter_map(table).collect();
    let range = |weight: WeightId| {
        let tensor = checkpoint.tensor(&plan.weights[weight.0].name)?;
        let bytes = checkpoint.mapping()?.range_of(&checkpoint.data(tensor))?;
        Some(WeightRange { bytes: bytes.start as u64..bytes.end as u64, rows: tables.contains(&weight) })
    };
    plan.steps.iter().flat_map(weights).filter_map(range).collect()
}

fn table(op: &Op) -> Option<WeightId> {
    if let Op::Embed { table, .. } = op { Some(*table) } else { None }
}

/// The weights that a step reads in full.
fn weights(op: &Op) -> Vec<WeightId> {
    match op {
        Op::RmsNorm { weight, .. } | Op::Logits { weight, .. } => vec![*weight],
        Op::Linear { projections, .. } => {
            projections.iter().flat_map(|part| [Some(part.weight), part.bias]).flatten().collect()
        }
        Op::RopeAppend { q_norm, k_norm, .. } => [*q_norm, *k_norm].into_iter().flatten().collect(),
        Op::Embed { .. }
        | Op::Attention { .. }
        | Op::GatedActivation { .. }
        | Op::Add { .. }
        | Op::SelectOutputs { .. } => Vec::new(),
    }
}
