//! The HTTP server of a node: OpenAI-compatible routes in front of [`lichen_generate::Generate`].
//!
//! [`router`] builds the routes, [`serve`] runs them until told to stop. The composition root gives each model its
//! engine and its [`Language`].

mod edge;
mod embedding;
mod extract;
mod generation;
mod language;
mod metrics;
mod node;
mod reply;
mod routes;
mod running;
mod serve;
mod stream;
mod text;

pub use language::Language;
pub use node::{Info, Model, Node, Settings};
pub use routes::router;
pub use serve::serve;
