//! Why a checkpoint cannot become a model.

use thiserror::Error;

/// Why a checkpoint was refused.
#[derive(Debug, Error)]
pub enum ModelError {
    /// No importer.
    #[error("architecture {found:?} is not supported; supported are {supported}")]
    Architecture {
        /// Value of `general.architecture`.
        found: String,
        /// Names that would do.
        supported: String,
    },
    /// Metadata that must be there is not, or has another type.
    #[error(
        "metadata key {0} is missing or has the wrong type; convert the model again with a current converter"
    )]
    Key(String),
    /// Metadata whose value makes no sense.
    #[error("metadata key {key} is {value}, but {rule}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What would be right.
        rule: &'static str,
    },
    /// Something of the family that is not implemented.
    #[error("{arch} models with {feature} are not supported")]
    Feature {
        /// The architecture.
        arch: String,
        /// What is missing here.
        feature: String,
    },
    /// A tensor is not in the checkpoint.
    #[error("tensor {0} is missing; the file is incomplete or the architecture is wrong")]
    Missing(String),
    /// Tensors that nothing reads, so the result would be wrong.
    #[error(
        "tensor {0} is not used by this architecture; the file needs something this importer does not know"
    )]
    LeftOver(String),
    /// A tensor of another shape.
    #[error("tensor {name} has shape {found:?} (outermost first), expected {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape the metadata asks for.
        expected: Vec<u64>,
    },
    /// Data that could not be decoded.
    #[error("tensor {name} cannot be decoded: {reason}")]
    Decode {
        /// The tensor.
        name: String,
        /// What the decoder said.
        reason: String,
    },
}
