//! Qwen 3, dense: RMS norm of each head of q and k.

use lichen_op::RopeLayout;

use super::reader::Reader;
use crate::{ModelError, ModelSpec};

pub(super) fn import(reader: &Reader<'_>) -> Result<ModelSpec, ModelError> {
    let mut attention = reader.attention()?;
    attention.qk_norm = true;
    let (base, linear) = (reader.rope_base(), reader.linear_scaling()?);
    let rope = reader.rope(RopeLayout::Half, attention.head_dim, base, linear)?;
    reader.uniform(vec![rope], attention)
}
