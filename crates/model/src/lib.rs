//! Model families: what a checkpoint's metadata says ([`import`]), as data ([`ModelSpec`]), and how it is computed
//! ([`ModelSpec::lower`]). One spec has many readers: tensor table, memory estimates, plan.

mod error;
mod importers;
mod lower;
mod spec;

pub use error::ModelError;
pub use importers::{architectures, import};
pub use spec::{Attention, Embed, Ffn, Head, LayerSpec, Mixer, ModelSpec, Residual};
