//! Conversations that are kept, and conversations as files: `/admin/sessions`.

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
use crate::model::Kept;
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

/// `GET /admin/sessions`: the sessions that have state. Names that other keys gave are not told.
pub(crate) async fn list(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Query(of): Query<Of>,
) -> Result<Json<Value>, Refusal> {
    if let Some(model) = &of.model {
        // Tells those who ask for an unknown one what there is.
        node.card(model)?;
    }
    let wanted = |model: &Arc<Model>| of.model.as_deref().is_none_or(|name| model.id() == name);
    let replicas: Vec<_> = node.host().all().into_iter().filter(|(_, model)| wanted(model)).collect();
    let key = exchange.key();
    let told = off_thread(&exchange, move || {
        let mut told = Vec::new();
        for (replica, model) in &replicas {
            for Kept { session, tokens, bytes } in model.sessions().map(|one| one.list()).unwrap_or_default()
            {
                let (idle, name) = node.session_names().get(key, session).unzip();
                let idle = idle.map(|idle| idle.as_secs_f64());
                told.push(json!({
                    "id": name.flatten(), "model": model.id(), "instance": replica.to_string(),
                    "tokens": tokens, "bytes": bytes, "idle_s": idle,
                }));
            }
        }
        told
    });
    Ok(Json(json!({"sessions": told.await?})))
}

/// `GET /admin/sessions/{id}`: the conversation that was used last, as bytes.
pub(crate) async fn export(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Path(id): Path<String>,
    Query(of): Query<Of>,
) -> Result<Response, Refusal> {
    let session = number(exchange.key(), &id);
    let replicas = replicas(&node, of.model.as_deref())?;
    let found = off_thread(&exchange, move || {
        replicas.iter().filter_map(|model| model.sessions()).find_map(|sessions| sessions.export(session))
    });
    let bytes = found.await?.ok_or(Error::SessionNotFound { session: id })?;
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
    let model = node.lend(of.model.as_deref()).await?;
    let taken = off_thread(&exchange, move || {
        let sessions = model.sessions().ok_or_else(|| without_sessions(&model))?;
        sessions.import(session, &body, of.kv.as_deref()).map_err(|reason| Error::invalid("body", reason))
    });
    let restored = taken.await??;
    node.session_names().note(exchange.key(), &id);
    let pages: Map<_, _> =
        restored.pages.iter().map(|(precision, pages)| ((*precision).to_owned(), json!(pages))).collect();
    let told =
        json!({"session": id, "restored": "full", "tokens_reused": restored.tokens, "kv_pages": pages});
    Ok(Json(told))
}

/// `DELETE /admin/sessions/{id}`: gives up the state of a session. What running answers use, and what other sessions
/// begin with too, stays.
pub(crate) async fn forget(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Path(id): Path<String>,
    Query(of): Query<Of>,
) -> Result<Json<Value>, Refusal> {
    let session = number(exchange.key(), &id);
    let replicas = replicas(&node, of.model.as_deref())?;
    let freed = off_thread(&exchange, move || {
        let sessions = replicas.iter().filter_map(|model| model.sessions());
        // Each of them, and not only until one had it.
        sessions.filter_map(|sessions| sessions.forget(session)).reduce(|sum, freed| sum + freed)
    });
    let freed = freed.await?.ok_or_else(|| Error::SessionNotFound { session: id.clone() })?;
    node.session_names().forget(session);
    Ok(Json(json!({"session": id, "deleted": true, "freed_bytes": freed})))
}

/// Asks an engine, which waits for its step.
async fn off_thread<T: Send + 'static>(
    exchange: &Exchange,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| fault("a worker broke down while it asked for sessions", exchange.id()))
}

/// The loaded replicas of a model.
fn replicas(node: &Node, model: Option<&str>) -> Result<Vec<Arc<Model>>, Error> {
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
    match loaded.iter().find(|model| model.sessions().is_none()) {
        Some(model) => Err(without_sessions(model)),
        None => Ok(loaded),
    }
}

fn without_sessions(model: &Model) -> Error {
    Error::invalid("model", format!("'{}' can't give out sessions or take them", model.id()))
}
