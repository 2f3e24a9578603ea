//! Shape checks, so that evaluators may rely on a plan.

use thiserror::Error;

use crate::op::{Op, Projection};
use crate::plan::{BufferId, Plan, Rows, WeightId};

/// Why a plan is not consistent.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// An index outside its table.
    #[error("step {step} ({op}) refers to {what} {index}, which the plan does not have")]
    Index {
        /// Which step.
        step: usize,
        /// Name of the operation.
        op: &'static str,
        /// Kind of thing referred to.
        what: &'static str,
        /// The index.
        index: usize,
    },
    /// Sizes that do not fit together.
    #[error("step {step} ({op}): {what} is {found}, expected {expected}")]
    Size {
        /// Which step.
        step: usize,
        /// Name of the operation.
        op: &'static str,
        /// What has the wrong size.
        what: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An output that is also an input where that is not allowed, or a rope table of the wrong length.
    #[error("step {step} ({op}): {what}")]
    Invalid {
        /// Which step.
        step: usize,
        /// Name of the operation.
        op: &'static str,
        /// What is wrong.
        what: &'static str,
    },
    /// The plan does not end in logits.
    #[error("the last step must be logits")]
    NoLogits,
}

struct Check<'a> {
    plan: &'a Plan,
    step: usize,
    op: &'static str,
}

impl Check<'_> {
    fn index(&self, what: &'static str, index: usize, len: usize) -> Result<(), PlanError> {
        let found = index < len;
        found.then_some(()).ok_or(PlanError::Index { step: self.step, op: self.op, what, index })
    }

    fn size(&self, what: &str, found: &impl ToString, expected: &impl ToString) -> Result<(), PlanError> {
        let (found, expected) = (found.to_string(), expected.to_string());
        if found == expected {
            return Ok(());
        }
        Err(PlanError::Size { step: self.step, op: self.op, what: what.to_owned(), found, expected })
    }

    fn require(&self, holds: bool, what: &'static str) -> Result<(), PlanError> {
        holds.then_some(()).ok_or(PlanError::Invalid { step: self.step, op: self.op, what })
    }

    fn width(&self, id: BufferId, rows: Option<Rows>) -> Result<usize, PlanError> {
        self.index("buffer", id.0, self.plan.buffers.len())?;
        let buffer = &self.plan.buffers[id.0];
        self.require(rows.is_none_or(|rows| rows == buffer.rows), "a buffer has the wrong kind of rows")?;
        self.require(buffer.width > 0, "a buffer has no elements")?;
        Ok(buffer.width)
    }

    fn same(&self, ids: &[BufferId]) -> Result<usize, PlanError> {
        let width = self.width(ids[0], None)?;
        let rows = self.plan.buffers[ids[0].0].rows;
        for &id in &ids[1..] {
            self.size("buffer width", &self.width(id, Some(rows))?, &width)?;
        }
        Ok(width)
    }

    fn weight(&self, id: WeightId, shape: &[usize]) -> Result<(), PlanError> {
        self.index("weight", id.0, self.plan.weights.len())?;
        let decl = &self.plan.weights[id.0];
        self.size(&format!("shape of {}", decl.name), &format!("{:?}", decl.shape), &format!("{shape:?}"))
    }

    fn projection(&self, input: BufferId, projection: &Projection) -> Result<(), PlanError> {
        let width = self.width(input, None)?;
        let rows = self.plan.buffers[input.0].rows;
        self.index("weight", projection.weight.0, self.plan.weights.len())?;
        let total = self.plan.weights[projection.weight.0].rows();
        self.weight(projection.weight, &[total, width])?;
        let range = &projection.row_range;
        self.require(range.start <= range.end && range.end <= total, "a row range exceeds its weight")?;
        self.size("output width", &self.width(projection.out, Some(rows))?, &range.len())?;
        self.require(projection.out != input, "an output is also the input")?;
        projection.bias.map_or(Ok(()), |bias| self.weight(bias, &[total]))
    }

    /// Checks a query buffer against a KV layer and returns the head size.
    fn heads(&self, q: BufferId, layer: usize) -> Result<usize, PlanError> {
        self.index("KV layer", layer, self.plan.kv.layers.len())?;
        let kv = &self.plan.kv.layers[layer];
        let width = self.width(q, Some(Rows::Tokens))?;
        let fits = kv.width() > 0 && width > 0 && width.is_multiple_of(kv.width());
        self.require(fits, "the query heads are not a multiple of the KV heads")?;
        Ok(kv.head_dim)
    }

    fn rope(&self, index: usize, head_dim: usize) -> Result<(), PlanError> {
        self.index("rope", index, self.plan.ropes.len())?;
        let rope = &self.plan.ropes[index];
        let fits = rope.dims.is_multiple_of(2) && rope.dims <= head_dim;
        self.require(fits, "rope dimensions must be even and at most the head size")?;
        self.size("number of rope frequencies", &rope.inverse_frequencies.len(), &(rope.dims / 2))
    }

    fn step(&self, op: &Op) -> Result<(), PlanError> {
        let vocab = self.plan.vocab;
        match op {
            Op::Embed { table, out, .. } => {
                self.weight(*table, &[vocab, self.width(*out, Some(Rows::Tokens))?])
            }
            Op::RmsNorm { x, weight, out, .. } => self.weight(*weight, &[self.same(&[*x, *out])?]),
            Op::Linear { input, projections } => {
                projections.iter().try_for_each(|p| self.projection(*input, p))
            }
            Op::RopeAppend { q, k, v, q_norm, k_norm, rope, layer, .. } => {
                let head_dim = self.heads(*q, *layer)?;
                let width = self.plan.kv.layers[*layer].width();
                self.size("key width", &self.width(*k, Some(Rows::Tokens))?, &width)?;
                self.size("value width", &self.width(*v, Some(Rows::Tokens))?, &width)?;
                self.require(q != k && q != v && k != v, "q, k and v must be different buffers")?;
                self.rope(*rope, head_dim)?;
                [q_norm, k_norm].into_iter().flatten().try_for_each(|&norm| self.weight(norm, &[head_dim]))
            }
            Op::Attention { q, layer, window, out, .. } => {
                self.heads(*q, *layer)?;
                self.require(q != out, "the output is also the query")?;
                self.require(*window != Some(0), "a window of 0 sees nothing")?;
                self.same(&[*q, *out]).map(|_| ())
            }
            Op::GatedActivation { gate, up, out, .. } => self.same(&[*gate, *up, *out]).map(|_| ()),
            Op::Add { x, y, out } => self.same(&[*x, *y, *out]).map(|_| ()),
            Op::SelectOutputs { x, out } => {
                let width = self.width(*x, Some(Rows::Tokens))?;
                self.size("output width", &self.width(*out, Some(Rows::Outputs))?, &width)
            }
            Op::Logits { x, weight, out } => {
                self.weight(*weight, &[vocab, self.width(*x, Some(Rows::Outputs))?])?;
                self.require(x != out, "the output is also the input")?;
                self.size("output width", &self.width(*out, Some(Rows::Outputs))?, &vocab)
            }
        }
    }
}

impl Plan {
    /// Checks every index, width, shape and aliasing rule of the steps.
    ///
    /// # Errors
    /// The first step that breaks one.
    pub fn validate(&self) -> Result<(), PlanError> {
        for (step, op) in self.steps.iter().enumerate() {
            Check { plan: self, step, op: op.name() }.step(op)?;
        }
        matches!(self.steps.last(), Some(Op::Logits { .. })).then_some(()).ok_or(PlanError::NoLogits)
    }
}
