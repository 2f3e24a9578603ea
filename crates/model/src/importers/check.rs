//! The tensor table of a spec against the tensors of a file.

use std::collections::HashSet;

use lichen_format::Checkpoint;

use crate::{ModelError, ModelSpec};

/// Every tensor of the spec must be there with its shape, and nothing else.
pub(super) fn tensors(spec: &ModelSpec, checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let mut known: HashSet<String> = spec.rope_tensors.iter().cloned().collect();
    for decl in spec.tensors() {
        let info = checkpoint.tensor(&decl.name).ok_or_else(|| ModelError::Missing(decl.name.clone()))?;
        let expected: Vec<u64> = decl.shape.iter().map(|&n| n as u64).collect();
        if info.shape != expected {
            return Err(ModelError::Shape { name: decl.name, found: info.shape.clone(), expected });
        }
        known.insert(decl.name);
    }
    match checkpoint.tensors.iter().find(|info| !known.contains(&info.name)) {
        Some(info) => Err(ModelError::LeftOver(info.name.clone())),
        None => Ok(()),
    }
}
