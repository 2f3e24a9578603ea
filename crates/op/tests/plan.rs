//! Plans by hand: what validation refuses, and that the evaluator refuses what it cannot continue.

use lichen_op::{
    Batch, Buffer, BufferId, Op, Plan, PlanError, Reference, ReferenceError, Rows, WeightDecl, WeightId,
    Weights,
};

/// The logits of token `t` are `table[t] . table[j]`.
fn plan() -> Plan {
    let (x, selected, logits) = (BufferId(0), BufferId(1), BufferId(2));
    let table = WeightId(0);
    Plan {
        buffers: vec![
            Buffer { width: 2, rows: Rows::Tokens },
            Buffer { width: 2, rows: Rows::Outputs },
            Buffer { width: 3, rows: Rows::Outputs },
        ],
        weights: vec![WeightDecl { name: "table".to_owned(), shape: vec![3, 2] }],
        steps: vec![
            Op::Embed { table, scale: 2.0, out: x },
            Op::SelectOutputs { x, out: selected },
            Op::Logits { x: selected, weight: table, out: logits },
        ],
        vocab: 3,
        ..Plan::default()
    }
}

struct Table;

impl Weights for Table {
    fn row(&self, _: WeightId, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]][row]);
    }
}

#[test]
fn the_smallest_model_runs() {
    let mut reference = Reference::new(plan(), Table).unwrap();
    let mut batch = Batch::default();
    batch.push(7, 0, &[0, 2], false);
    batch.push(8, 0, &[1], false);
    assert_eq!(reference.run(&batch).unwrap(), [2.0, 2.0, 4.0, 0.0, 2.0, 2.0]);
    assert_eq!(plan().scratch_bytes(3, 2), 4 * (2 * 3 + 2 * 2 + 3 * 2));
}

#[test]
fn a_sequence_continues_only_from_what_was_run() {
    let mut reference = Reference::new(plan(), Table).unwrap();
    let mut batch = Batch::default();
    batch.push(7, 4, &[0], false);
    assert!(matches!(reference.run(&batch), Err(ReferenceError::Past { sequence: 7, stored: 0, past: 4 })));
}

#[test]
fn inconsistent_plans_are_refused() {
    assert_eq!(plan().validate(), Ok(()));
    let mut wrong = plan();
    wrong.weights[0].shape = vec![3, 4];
    assert!(matches!(wrong.validate(), Err(PlanError::Size { step: 0, .. })));
    let mut wrong = plan();
    wrong.buffers[1].rows = Rows::Tokens;
    assert!(matches!(wrong.validate(), Err(PlanError::Invalid { step: 1, .. })));
    let mut wrong = plan();
    wrong.steps[1] = Op::SelectOutputs { x: BufferId(9), out: BufferId(1) };
    assert!(matches!(wrong.validate(), Err(PlanError::Index { index: 9, .. })));
    let mut wrong = plan();
    wrong.steps.pop();
    assert_eq!(wrong.validate(), Err(PlanError::NoLogits));
}
