//! Where models come from: references, the catalogue, the cache and the downloads that fill it.
//!
//! [`Hub::pull`] turns a [`Reference`] into the path of a verified local file. Everything is synchronous.

mod cache;
mod catalogue;
mod config;
mod digest;
mod download;
mod error;
mod hf;
mod hf_cache;
mod http;
mod hub;
mod part;
mod pip;
mod progress;
mod reference;

pub use cache::CachedModel;
pub use catalogue::{Catalogue, CatalogueEntry};
pub use config::{HubConfig, Token};
pub use error::HubError;
pub use hub::{Hub, Pulled};
pub use progress::{Progress, ProgressBar, Silent};
pub use reference::Reference;

/// Result of everything in this crate.
pub type Result<T> = std::result::Result<T, HubError>;
