//! The HTTP server of a node: OpenAI- and Anthropic-compatible routes in front of [`lichen_generate::Generate`].
//!
//! [`router`] builds the routes, [`serve`] runs them until told to stop. The composition root gives each model its
//! engine and its [`Language`].

mod admin;
mod answers;
mod changes;
mod edge;
mod embedding;
mod exchange;
mod extract;
mod fleet;
mod generation;
mod host;
mod keys;
mod language;
mod loading;
mod messages;
mod metrics;
mod model;
mod node;
mod openapi;
mod order;
mod prepare;
mod reply;
mod responses;
mod routes;
mod running;
mod serve;
mod session_names;
mod sessions;
mod stream;
mod system_messages;
mod text;

pub use changes::Changes;
pub use exchange::AccessLog;
pub use host::IdleModels;
pub use keys::ApiKeys;
pub use language::{Conversation, Language};
pub use lichen_contract::{Device, Discovery, Heartbeat, NodeReport};
pub use lichen_registry::Limits;
pub use model::{ChangeLimits, Kept, Model, Restored, Sessions};
pub use node::{Info, MemoryView, Node, Settings};
pub use order::{LoadError, LoadOrder, Loader, ModelOptions, Progress};
pub use routes::router;
pub use serve::serve;
