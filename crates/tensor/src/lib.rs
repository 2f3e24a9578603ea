//! What a tensor is made of: element types, the block formats of quantised weights, and shared bytes.

mod dtype;
pub mod quant;
mod shared_bytes;

pub use dtype::DType;
pub use shared_bytes::SharedBytes;
