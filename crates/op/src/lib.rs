//! The operations a model is lowered to, and what runs them slowly and obviously.
//!
//! A [`Plan`] is a straight list of coarse [`Op`]s over named buffers and weights. It says nothing about devices, threads
//! or quantisation: a backend picks kernels, [`Reference`] evaluates it in plain `f32`.

mod batch;
mod cost;
mod op;
mod plan;
mod reference;
mod validate;

pub use batch::{Batch, BatchError, Span};
pub use cost::{Cost, Traffic};
pub use op::{Activation, Op, Projection};
pub use plan::{Buffer, BufferId, KvLayer, KvLayout, Plan, Rope, RopeLayout, Rows, WeightDecl, WeightId};
pub use reference::{Reference, ReferenceError, Weights};
pub use validate::PlanError;
