//! From GGUF metadata to a spec: one small file per family.

mod check;
mod gemma3;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod reader;

use lichen_format::Checkpoint;

use crate::{ModelError, ModelSpec};
use reader::Reader;

type Importer = fn(&Reader<'_>) -> Result<ModelSpec, ModelError>;

/// Importers by `general.architecture`. Mistral's files say `llama`.
const REGISTRY: &[(&str, Importer)] = &[
    ("llama", llama::import),
    ("qwen2", qwen2::import),
    ("qwen3", qwen3::import),
    ("gemma3", gemma3::import),
    ("phi3", phi3::import),
];

/// Names of the supported architectures.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    REGISTRY.iter().map(|&(name, _)| name)
}

/// Reads the spec of a checkpoint and checks every tensor against it. `context_cap` limits the context below the model's own.
///
/// # Errors
/// The architecture or a feature is not supported, metadata is missing or absurd, or a tensor is missing, left over or of
/// the wrong shape; the message names it.
pub fn import(checkpoint: &Checkpoint, context_cap: Option<u32>) -> Result<ModelSpec, ModelError> {
    let key = "general.architecture";
    let arch = checkpoint.metadata.str(key).ok_or_else(|| ModelError::Key(key.to_owned()))?;
    let importer = REGISTRY.iter().find(|&&(name, _)| name == arch).map(|&(_, importer)| importer);
    let Some(importer) = importer else {
        let supported = architectures().collect::<Vec<_>>().join(", ");
        return Err(ModelError::Architecture { found: arch.to_owned(), supported });
    };
    check::numbers(arch, checkpoint)?;
    let spec = importer(&Reader { checkpoint, arch, context_cap })?;
    check::tensors(&spec, checkpoint)?;
    Ok(spec)
}
