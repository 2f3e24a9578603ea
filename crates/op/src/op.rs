//! The closed set of operations.

use std::ops::Range;

use crate::plan::{BufferId, WeightId};

/// Nonlinearity of a gated feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form (Hendrycks and Gimpel, 2016).
    GeluTanh,
}

/// One output of [`Op::Linear`]: `out = input * weight[row_range]^T + bias[row_range]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    /// `[out, in]`.
    pub weight: WeightId,
    /// Rows of the weight (and elements of the bias) that are used: a fused tensor is several projections of one weight.
    pub row_range: Range<usize>,
    /// `[out]`, as long as the whole weight has rows.
    pub bias: Option<WeightId>,
    /// `[rows, row_range.len()]`.
    pub out: BufferId,
}

/// A step of a plan. `x [n]` is shorthand for a buffer of width `n`.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t] = scale * table[token of t]`.
    Embed {
        /// `[vocab, n]`.
        table: WeightId,
        /// Factor on every element.
        scale: f32,
        /// `[n]`, per token.
        out: BufferId,
    },
    /// `out = x / sqrt(mean(x^2) + eps) * weight`, row by row. `out` may be `x`.
    RmsNorm {
        /// `[n]`.
        x: BufferId,
        /// `[n]`.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// `[n]`.
        out: BufferId,
    },
    /// Several matrix products that share their input.
    Linear {
        /// `[in]`; none of the outputs.
        input: BufferId,
        /// The products.
        projections: Vec<Projection>,
    },
    /// Norms (optional) and rotates `q` and `k` in place, then appends `k` and `v` to the KV of `layer`.
    RopeAppend {
        /// `[heads * head_dim]`.
        q: BufferId,
        /// `[kv_heads * head_dim]`.
        k: BufferId,
        /// `[kv_heads * head_dim]`.
        v: BufferId,
        /// `[head_dim]`: RMS norm of each head of `q` before the rotation.
        q_norm: Option<WeightId>,
        /// The same for `k`.
        k_norm: Option<WeightId>,
        /// Of the two norms.
        eps: f32,
        /// Index into [`crate::Plan::ropes`].
        rope: usize,
        /// Index into [`crate::KvLayout::layers`].
        layer: usize,
    },
    /// Causal softmax attention of `q` over the KV of `layer`; query head `h` reads KV head `h / (heads / kv_heads)`.
    Attention {
        /// `[heads * head_dim]`.
        q: BufferId,
        /// Index into [`crate::KvLayout::layers`].
        layer: usize,
        /// Factor on `q . k`.
        scale: f32,
        /// A token sees itself and the `window - 1` before it.
        window: Option<u32>,
        /// `s -> softcap * tanh(s / softcap)` on the scaled scores.
        softcap: Option<f32>,
        /// `[heads * head_dim]`, not `q`.
        out: BufferId,
    },
    /// `out = act(gate) * up`. `out` may be either.
    GatedActivation {
        /// `[n]`.
        gate: BufferId,
        /// `[n]`.
        up: BufferId,
        /// The nonlinearity.
        act: Activation,
        /// `[n]`.
        out: BufferId,
    },
    /// `out = x + y`. `out` may be either.
    Add {
        /// `[n]`.
        x: BufferId,
        /// `[n]`.
        y: BufferId,
        /// `[n]`.
        out: BufferId,
    },
    /// Keeps the rows whose logits were asked for, in the order of [`crate::Batch::outputs`].
    SelectOutputs {
        /// `[n]`, per token.
        x: BufferId,
        /// `[n]`, per output.
        out: BufferId,
    },
    /// `out = x * weight^T`, the last step.
    Logits {
        /// `[n]`, per output.
        x: BufferId,
        /// `[vocab, n]`.
        weight: WeightId,
        /// `[vocab]`, per output.
        out: BufferId,
    },
}

impl Op {
    /// Name for messages and traces.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::RmsNorm { .. } => "rms_norm",
            Self::Linear { .. } => "linear",
            Self::RopeAppend { .. } => "rope_append",
            Self::Attention { .. } => "attention",
            Self::GatedActivation { .. } => "gated_activation",
            Self::Add { .. } => "add",
            Self::SelectOutputs { .. } => "select_outputs",
            Self::Logits { .. } => "logits",
        }
    }
}
