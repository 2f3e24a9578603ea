//! What holds for every family: numbers that make sense, and the tensor table of a spec against the tensors of a file.

use std::collections::HashSet;

use lichen_format::{Checkpoint, Value};

use crate::{ModelError, ModelSpec};

/// Numbers under `arch.` must be finite or fit `u32`: a reader that finds none takes a default, which would hide damage.
pub(super) fn numbers(arch: &str, checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let of_arch = |key: &str| key.strip_prefix(arch).is_some_and(|rest| rest.starts_with('.'));
    for (key, value) in checkpoint.metadata.iter().filter(|(key, _)| of_arch(key)) {
        let (holds, text) = match value {
            Value::F32(number) => (number.is_finite(), number.to_string()),
            Value::F64(number) => ((*number as f32).is_finite(), number.to_string()),
            Value::Array(_) | Value::String(_) | Value::Bool(_) => continue,
            integer => {
                let number = integer.integer::<i128>().unwrap_or(-1);
                (u32::try_from(number).is_ok(), number.to_string())
            }
        };
        if !holds {
            let rule = "it must be a finite number, and a whole one must be from 0 to 2^32 - 1";
            return Err(ModelError::Value { key: key.to_owned(), value: text, rule });
        }
    }
    Ok(())
}

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
