//! Llama, Llama 3 and Mistral: GGUF architecture `llama`.

use lichen_op::RopeLayout;

use super::reader::Reader;
use crate::{ModelError, ModelSpec};

/// Divisors of the rope frequencies: the Llama 3 scaling, worked out by the converter.
const ROPE_FREQS: &str = "rope_freqs.weight";

pub(super) fn import(reader: &Reader<'_>) -> Result<ModelSpec, ModelError> {
    let mut attention = reader.attention()?;
    attention.bias = reader.has("blk.0.attn_q.bias");
    // The converter permutes the rows of q and k of this architecture only.
    let (base, linear) = (reader.rope_base(), reader.linear_scaling()?);
    let mut rope = reader.rope(RopeLayout::Interleaved, attention.head_dim, base, linear)?;
    let scaled = reader.has(ROPE_FREQS);
    if scaled {
        reader.divide(&mut rope, ROPE_FREQS)?;
    }
    let mut spec = reader.uniform(vec![rope], attention)?;
    spec.rope_tensors.extend(scaled.then(|| ROPE_FREQS.to_owned()));
    Ok(spec)
}
