//! What a model is lowered to: buffers, weights, KV layout and the steps over them.

use crate::op::Op;

/// Index of a buffer in [`Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub usize);

/// Index of a weight in [`Plan::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// What one row of a buffer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One row per token of the batch.
    Tokens,
    /// One row per token whose logits were asked for.
    Outputs,
}

/// An activation buffer: `[rows, width]`, row major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Elements per row.
    pub width: usize,
    /// How many rows it has in a batch.
    pub rows: Rows,
}

/// A weight the plan reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Name in the checkpoint (GGUF naming).
    pub name: String,
    /// Shape, outermost dimension first: `[out, in]` for a matrix, `[n]` for a vector.
    pub shape: Vec<usize>,
}

impl WeightDecl {
    /// Number of rows; a vector is one row.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Elements in a row: the innermost dimension.
    #[must_use]
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }
}

/// Which elements of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeLayout {
    /// Adjacent pairs `(2i, 2i + 1)`, as GGUF's `llama` files.
    Interleaved,
    /// Pairs `(i, i + dims / 2)`, called NEOX in llama.cpp.
    Half,
}

/// Rotary position embedding (Su et al., 2021), all scaling already folded in.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Leading elements of each head that rotate; even, the rest pass through.
    pub dims: usize,
    /// How elements pair up.
    pub layout: RopeLayout,
    /// Radians per position for each of the `dims / 2` pairs.
    pub inverse_frequencies: Vec<f32>,
    /// Factor on sine and cosine (1 except for LongRoPE and YaRN).
    pub attn_factor: f32,
}

/// Keys and values of one attention layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Heads of keys, and of values.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// A token sees itself and the `window - 1` before it; `None` sees all.
    pub window: Option<u32>,
}

impl KvLayer {
    /// Elements of the key (or of the value) of one token.
    #[must_use]
    pub fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// What a sequence keeps between batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvLayout {
    /// One entry per attention layer, in order.
    pub layers: Vec<KvLayer>,
}

impl KvLayout {
    /// Bytes one token adds over all layers, when an element takes `elem_bytes`. Ignores that windows bound some layers.
    #[must_use]
    pub fn bytes_per_token(&self, elem_bytes: usize) -> usize {
        self.layers.iter().map(|layer| 2 * layer.width() * elem_bytes).sum()
    }
}

/// A model as straight-line steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Activation buffers; contents are undefined before the first write of a run.
    pub buffers: Vec<Buffer>,
    /// Weights, each name once.
    pub weights: Vec<WeightDecl>,
    /// Rotary embeddings that [`Op::RopeAppend`] refers to.
    pub ropes: Vec<Rope>,
    /// The steps, in order. The last writes the logits.
    pub steps: Vec<Op>,
    /// State of a sequence.
    pub kv: KvLayout,
    /// Vocabulary size: rows of the embedding, width of the logits.
    pub vocab: usize,
}

impl Plan {
    /// Bytes of `f32` activations for a batch of that many tokens and output rows.
    #[must_use]
    pub fn scratch_bytes(&self, tokens: usize, outputs: usize) -> usize {
        let bytes = |buffer: &Buffer| {
            let rows = match buffer.rows {
                Rows::Tokens => tokens,
                Rows::Outputs => outputs,
            };
            buffer.width.saturating_mul(rows).saturating_mul(size_of::<f32>())
        };
        self.buffers.iter().map(bytes).fold(0, usize::saturating_add)
    }
}
