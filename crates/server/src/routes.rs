//! Which path does what.

use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post, put};
use axum::{Json, Router, middleware};
use lichen_api::{Error, ModelCard};
use lichen_contract::routes as contract;
use serde_json::{Value, json};

use crate::edge::edge;
use crate::embedding::embed;
use crate::generation::{chat, completion};
use crate::messages::{count_tokens, messages};
use crate::metrics::metrics;
use crate::openapi::openapi;
use crate::reply::Refusal;
use crate::responses::responses;
use crate::text::{apply_template, detokenize, tokenize};
use crate::{Node, admin, fleet, sessions};

/// The routes of a node.
pub fn router(node: Node) -> Router {
    Router::new()
        .route("/", get(about))
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completion))
        .route("/v1/embeddings", post(embed))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .route(contract::MODELS, get(fleet::models))
        .route(contract::LOAD, post(fleet::load))
        .route(contract::UNLOAD, post(fleet::unload))
        .route(contract::ENDPOINT, get(fleet::endpoint))
        .route(contract::DISCOVERY, get(fleet::discovery))
        .route("/admin/memory", get(admin::memory))
        .route("/admin/sessions", get(sessions::list))
        .route(
            "/admin/sessions/{*id}",
            get(sessions::export)
                .delete(sessions::forget)
                .merge(put(sessions::import).layer(DefaultBodyLimit::max(sessions::MOST_BYTES))),
        )
        .route("/admin/models", get(admin::list))
        .route("/admin/models/load", post(admin::load))
        .route("/admin/models/unload", post(admin::unload))
        .route("/admin/models/{*id}", patch(admin::change))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(node.settings().body_limit))
        .layer(middleware::from_fn_with_state(node.clone(), edge))
        .with_state(node)
}

async fn about(State(node): State<Node>) -> Json<Value> {
    let info = node.info();
    Json(json!({
        "name": info.name,
        "version": info.version,
        "backend": info.backend,
        "build": info.build,
        "accelerator": info.accelerator,
        "devices": info.devices,
        "level": node.settings().memory.as_ref().map_or("normal", |memory| memory.level()),
        "uptime_s": node.uptime().as_secs(),
    }))
}

/// Live always; ready unless draining, with a status that load balancers understand.
async fn health(State(node): State<Node>) -> Response {
    let ready = !node.is_draining();
    let models: Vec<_> = node
        .cards()
        .into_iter()
        .map(|card| {
            let ready = card.state == "ready";
            json!({"id": card.id, "live": card.state != "failed", "ready": ready, "state": card.state})
        })
        .collect();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let word = if ready { "ok" } else { "draining" };
    (status, Json(json!({"status": word, "live": true, "ready": ready, "models": models}))).into_response()
}

async fn models(State(node): State<Node>) -> Json<Value> {
    Json(ModelCard::list(&node.cards()))
}

async fn model(State(node): State<Node>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    Ok(Json(node.card(&id)?.json()))
}

async fn no_route(uri: Uri) -> Refusal {
    Refusal(Error::RouteNotFound { path: uri.path().to_owned() })
}

async fn no_method(method: Method, uri: Uri) -> Refusal {
    Refusal(Error::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() })
}
