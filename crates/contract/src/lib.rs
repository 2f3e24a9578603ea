//! What a node and a gateway say to each other. Types only: no sockets, no clock, no decision.
//!
//! The node owns the truth about its memory and its models. It says so in a [`NodeReport`], pushed to every gateway as
//! a heartbeat and answered to `GET /models`; a gateway asks for a model with a [`LoadRequest`] and is told in an
//! [`Ensured`] what becomes of it. A load job belongs to the node and goes on whatever becomes of who asked.
//!
//! Both sides ignore fields that they don't know and take a default for those that are missing, except names, so that
//! nodes and gateways of different versions work together.

mod discovery;
mod load;
mod model;
mod report;
pub mod routes;

pub use discovery::{Device, Discovery};
pub use load::{Endpoint, Ensured, LoadRequest, UnloadRequest, Unloading};
pub use model::{ModelState, ModelStatus};
pub use report::{Heartbeat, Memory, NodeReport};
