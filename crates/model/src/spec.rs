//! A model as data: what differs between families, and nothing else.

use lichen_format::Checkpoint;
use lichen_op::{Activation, Rope, WeightDecl};

use crate::ModelError;

/// Token embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embed {
    /// Vocabulary size.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub width: usize,
    /// Factor on the embedding (1 except for Gemma).
    pub scale: f32,
}

/// Softmax attention over a KV cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// RMS norm of each head of q and k before the rotation.
    pub qk_norm: bool,
    /// Biases on q, k and v.
    pub bias: bool,
    /// q, k and v are one tensor `attn_qkv`.
    pub fused: bool,
    /// A token sees itself and the `window - 1` before it; `None` sees all.
    pub window: Option<u32>,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Soft cap of the scores.
    pub softcap: Option<f32>,
    /// Index into [`ModelSpec::ropes`].
    pub rope: usize,
}

/// What mixes tokens in a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention.
    Attention(Attention),
}

/// Gated feed-forward block: `down(act(gate(x)) * up(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct Ffn {
    /// Elements between.
    pub width: usize,
    /// Nonlinearity.
    pub act: Activation,
    /// gate and up are one tensor, named `ffn_up`, gate rows first.
    pub fused: bool,
}

/// Where the norms of a layer sit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// `x += f(norm(x))`.
    PreNorm,
    /// `x += norm(f(norm(x)))`, as Gemma 3.
    SandwichNorm,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Token mixing.
    pub mixer: Mixer,
    /// Feed-forward block.
    pub ffn: Ffn,
    /// Norm placement.
    pub residual: Residual,
}

/// Final norm and vocabulary projection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The projection is the embedding table.
    pub tied: bool,
}

/// A model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Architecture name in GGUF.
    pub arch: String,
    /// Tokens a sequence may have: the model's limit or the cap given at import.
    pub context: u32,
    /// Added to the mean square in every RMS norm.
    pub norm_eps: f32,
    /// Token embedding.
    pub embed: Embed,
    /// Rotary embeddings, scaling folded in.
    pub ropes: Vec<Rope>,
    /// Layers, first to last.
    pub layers: Vec<LayerSpec>,
    /// Final norm and projection.
    pub head: Head,
    /// Tensors whose values went into `ropes`: part of the file, not of the plan.
    pub rope_tensors: Vec<String>,
}

impl ModelSpec {
    /// Tensors the plan reads, with GGUF names and shapes (outermost first).
    #[must_use]
    pub fn tensors(&self) -> Vec<WeightDecl> {
        self.lower().weights
    }

    /// Bytes the weights take as stored in `checkpoint`.
    ///
    /// # Errors
    /// [`ModelError::Missing`] names a tensor that is not there.
    pub fn weight_bytes(&self, checkpoint: &Checkpoint) -> Result<u64, ModelError> {
        self.tensors().into_iter().try_fold(0u64, |sum, decl| {
            let info = checkpoint.tensor(&decl.name).ok_or_else(|| ModelError::Missing(decl.name.clone()))?;
            let elements = info.shape.iter().copied().fold(1, u64::saturating_mul);
            let bytes = info.dtype.bytes_for(elements).ok_or_else(|| ModelError::Decode {
                name: decl.name,
                reason: "its size is not a whole number of blocks".to_owned(),
            })?;
            Ok(sum.saturating_add(bytes))
        })
    }

    /// Bytes of KV that one token adds, when an element takes `elem_bytes`. An upper bound where layers have windows.
    #[must_use]
    pub fn state_bytes_per_token(&self, elem_bytes: usize) -> usize {
        self.lower().kv.bytes_per_token(elem_bytes)
    }

    /// Bytes of `f32` activations for a batch of that many tokens and rows of logits.
    #[must_use]
    pub fn scratch_bytes(&self, tokens: usize, outputs: usize) -> usize {
        self.lower().scratch_bytes(tokens, outputs)
    }
}
