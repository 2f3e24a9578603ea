//! Phi 3, 3.5 and 4 mini: fused qkv and gate/up, LongRoPE (Ding et al., 2024).

use lichen_op::RopeLayout;

use super::reader::Reader;
use crate::{ModelError, ModelSpec};

const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

pub(super) fn import(reader: &Reader<'_>) -> Result<ModelSpec, ModelError> {
    let mut attention = reader.attention()?;
    attention.fused = true;
    attention.window = reader.u32("attention.sliding_window").filter(|&window| window > 0);
    let (base, linear) = (reader.rope_base(), reader.linear_scaling()?);
    let mut rope = reader.rope(RopeLayout::Half, attention.head_dim, base, linear)?;
    let longrope = reader.has(LONG);
    if longrope {
        let original = reader.size("rope.scaling.original_context_length", u32::MAX)?;
        // Keys are cached rotated, so a sequence cannot change factors as it grows: the context in use decides.
        reader.divide(&mut rope, if reader.context()? > original { LONG } else { SHORT })?;
        rope.attn_factor = reader.f32("rope.scaling.attn_factor").unwrap_or(1.0);
    }
    let mut spec = reader.uniform(vec![rope], attention)?;
    spec.layers.iter_mut().for_each(|layer| layer.ffn.fused = true);
    if longrope {
        spec.rope_tensors.extend([LONG, SHORT].map(str::to_owned));
    }
    Ok(spec)
}
