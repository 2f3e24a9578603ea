//! Gemma 3, text: local and global layers, four norms per layer, scaled embeddings. GGUF norm weights hold `1 + w`.

use lichen_op::{Activation, RopeLayout};

use super::reader::Reader;
use crate::spec::{Mixer, Residual};
use crate::{ModelError, ModelSpec};

/// Every sixth layer is global where the file does not say.
const PERIOD: usize = 6;
/// Layers of the 27B model, which alone scales queries by `embedding_length / heads`.
const LAYERS_27B: usize = 62;

pub(super) fn import(reader: &Reader<'_>) -> Result<ModelSpec, ModelError> {
    if reader.f32("final_logit_softcapping").is_some_and(|cap| cap > 0.0) {
        return Err(reader.unsupported("a soft cap on the logits"));
    }
    let mut attention = reader.attention()?;
    attention.qk_norm = true;
    let local_base = reader.f32("rope.freq_base_swa").unwrap_or(10_000.0);
    let (base, linear) = (reader.rope_base(), reader.linear_scaling()?);
    let global = reader.rope(RopeLayout::Half, attention.head_dim, base, linear)?;
    let local = reader.rope(RopeLayout::Half, attention.head_dim, local_base, 1.0)?;
    let mut spec = reader.uniform(vec![global, local], attention)?;

    spec.embed.scale = (spec.embed.width as f32).sqrt();
    let window = reader.u32("attention.sliding_window").filter(|&window| window > 0);
    let pattern = "attention.sliding_window_pattern";
    let flags = reader.checkpoint.metadata.bools(&reader.key(pattern));
    let period = reader.u32(pattern).map_or(PERIOD, |period| period as usize);
    let (count, width) = (spec.layers.len(), spec.embed.width as f64);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        layer.residual = Residual::SandwichNorm;
        layer.ffn.act = Activation::GeluTanh;
        let default = period == 0 || !(index + 1).is_multiple_of(period);
        let is_local = flags.as_ref().and_then(|flags| flags.get(index).copied()).unwrap_or(default);
        let Mixer::Attention(attention) = &mut layer.mixer;
        if count == LAYERS_27B {
            attention.scale = (attention.heads as f64 / width).sqrt() as f32;
        }
        if is_local {
            attention.window = window;
            attention.rope = 1;
        }
    }
    Ok(spec)
}
