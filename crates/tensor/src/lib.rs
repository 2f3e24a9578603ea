//! What a tensor is made of: element types.

mod dtype;

pub use dtype::DType;
