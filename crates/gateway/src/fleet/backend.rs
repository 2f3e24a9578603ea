//! Where the news about nodes comes from, and how they are told what to do.

use std::pin::Pin;
use std::sync::Arc;

use lichen_contract::{Ensured, LoadRequest};

use crate::Gateway;

/// A future that a trait object returns.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A way to hear from nodes and to tell them what to do. When it is cut off itself, it keeps the roster as it last knew
/// it: requests go on, only loads wait.
pub trait Fleet: Send + Sync {
    /// Feeds the gateway's roster until it is dropped.
    fn watch(&self, gateway: Gateway) -> Pending<'_, ()>;

    /// Asks a node to have a model. `None` if it can't be reached.
    fn ensure<'a>(
        &'a self,
        gateway: &'a Gateway,
        node: &'a Arc<str>,
        request: &'a LoadRequest,
    ) -> Pending<'a, Option<Ensured>>;

    /// Asks a node for a report now and feeds it to the roster.
    fn refresh<'a>(&'a self, gateway: &'a Gateway, node: &'a Arc<str>) -> Pending<'a, ()>;
}
