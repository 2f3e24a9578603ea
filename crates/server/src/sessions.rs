//! Conversations as files: `/admin/sessions/{id}`.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use lichen_api::Error;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::exchange::Exchange;
use crate::model::Sessions;
use crate::reply::{Refusal, fault};
use crate::{Model, Node};

/// Largest conversation that is taken, in bytes.
pub(crate) const MOST_BYTES: usize = 1 << 30;

/// Which model it is about; the only one if not given.
#[derive(Debug, Deserialize)]
pub(crate) struct Of {
    model: Option<String>,
    /// What keys and values come to that are finer, when a conversation is put in.
    kv: Option<String>,
}

/// The number under which the engine knows a session. Sessions of different keys don't meet.
pub(crate) fn number(key: u64, session: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, session).hash(&mut hasher);
    hasher.finish()
}

/// `GET /admin/sessions/{id}`: the conversation that was used last, as bytes.
pub(crate) async fn export(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Path(id): Path<String>,
    Query(of): Query<Of>,
) -> Result<Response, Refusal> {
    let session = number(exchange.key(), &id);
    let replicas = sessions(&node, of.model.as_deref())?;
    let work = tokio::task::spawn_blocking(move || replicas.iter().find_map(|model| model.export(session)));
    let found =
        work.await.map_err(|_| fault("a worker broke down while it wrote a session", exchange.id()))?;
    let bytes = found.ok_or_else(|| {
        Error::invalid(
            "session",
            format!("'{id}' has no state here: it was never used, or has been given up"),
        )
    })?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// `PUT /admin/sessions/{id}?kv=q8`: keeps a conversation. Keys and values that are coarser than asked stay as they are,
/// and the answer says how many pages have which precision.
pub(crate) async fn import(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Path(id): Path<String>,
    Query(of): Query<Of>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let session = number(exchange.key(), &id);
    let replicas = sessions(&node, of.model.as_deref())?;
    let work = tokio::task::spawn_blocking(move || replicas[0].import(session, &body, of.kv.as_deref()));
    let taken =
        work.await.map_err(|_| fault("a worker broke down while it read a session", exchange.id()))?;
    let restored = taken.map_err(|reason| Error::invalid("body", reason))?;
    let pages: Map<_, _> =
        restored.pages.iter().map(|(precision, pages)| ((*precision).to_owned(), json!(pages))).collect();
    let told =
        json!({"session": id, "restored": "full", "tokens_reused": restored.tokens, "kv_pages": pages});
    Ok(Json(told))
}

/// The replicas of a model that can do this; at least one.
fn sessions(node: &Node, model: Option<&str>) -> Result<Vec<Arc<dyn Sessions>>, Error> {
    let name = match model {
        Some(name) => name.to_owned(),
        None => match node.cards().as_slice() {
            [only] => only.id.clone(),
            _ => return Err(Error::invalid("model", "must be given, since there is not exactly one")),
        },
    };
    // Tells those who ask for an unknown one what there is.
    node.card(&name)?;
    let loaded = node.host().loaded(&name);
    let replicas: Vec<_> = loaded.iter().filter_map(|model: &Arc<Model>| model.sessions().cloned()).collect();
    if replicas.is_empty() {
        return Err(Error::invalid(
            "model",
            format!("'{name}' can't give out sessions, or isn't loaded now"),
        ));
    }
    Ok(replicas)
}
