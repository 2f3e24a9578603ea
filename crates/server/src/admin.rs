//! Loading and unloading at run time: `/admin/models`.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use lichen_api::{Error, Fields, ModelCard};
use serde_json::{Value, json};

use crate::Node;
use crate::exchange::Exchange;
use crate::extract::Body;
use crate::order::{LoadOrder, ModelOptions};
use crate::reply::{Refusal, fault};

/// `GET /admin/models`: every model with its state and its replicas.
pub(crate) async fn list(State(node): State<Node>) -> Json<Value> {
    let told = |card: &ModelCard| {
        let mut told = card.json();
        told["instances"] = Value::Array(node.host().instances(&card.id));
        told
    };
    Json(json!({"models": node.cards().iter().map(told).collect::<Vec<_>>()}))
}

/// `GET /admin/memory`: limits, the ledger with its largest owners, the level and its last changes, and the models that
/// had to go last.
pub(crate) async fn memory(State(node): State<Node>) -> Result<Json<Value>, Refusal> {
    let memory = node.settings().memory.as_ref();
    let memory = memory.ok_or_else(|| Error::invalid("memory", "is not watched by this server"))?;
    let mut report = memory.report();
    report["models_unloaded"] = Value::Array(node.host().departures());
    Ok(Json(report))
}

/// `POST /admin/models/load`: starts a load, and answers before it is done. A name that is loaded already gets one
/// more replica.
pub(crate) async fn load(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let fields = Fields::parse(&body)?;
    let host = node.host().clone();
    let loader = host.loader().ok_or_else(|| {
        Error::invalid("model", "can't be loaded: this server serves only what it was started with")
    })?;
    let order = LoadOrder::read(&fields, |reference| loader.name(reference))?;
    let name = order.name.clone();
    exchange.note("model", name.as_str());
    let work = tokio::task::spawn_blocking(move || {
        let bytes = loader.estimate(&order).map_err(|reason| Error::invalid("model", reason))?;
        // Inside the runtime's thread, so that the load itself is spawned there.
        host.load(order, bytes)
    });
    work.await.map_err(|_| fault("a worker broke down while it read the model", exchange.id()))??;
    Ok((StatusCode::ACCEPTED, Json(json!({"model": name, "state": "loading"}))))
}

/// `POST /admin/models/unload`: starts to unload; requests that run end first. With the `id` of a replica only that one,
/// and the model stays known.
pub(crate) async fn unload(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Refusal> {
    let fields = Fields::parse(&body)?;
    let name = fields.text("model")?.or(fields.text("name")?).or(fields.text("model_id")?);
    if let Some(number) = fields.text("id")? {
        let name = node.host().unload_replica(number, name)?;
        exchange.note("model", name.as_str());
        let told = json!({"model": name, "id": number, "state": "draining"});
        return Ok((StatusCode::ACCEPTED, Json(told)));
    }
    let name = name.ok_or_else(|| Error::invalid("model", "is missing"))?;
    exchange.note("model", name);
    node.host().unload(name, false)?;
    Ok((StatusCode::ACCEPTED, Json(json!({"model": name, "state": "draining"}))))
}

/// `PATCH /admin/models/{id}`: new limits for a loaded model. Nothing is loaded again; requests that were taken keep
/// what they were promised.
pub(crate) async fn change(
    State(node): State<Node>,
    Path(id): Path<String>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let options = ModelOptions::read(&Fields::parse(&body)?)?;
    let models = node.host().loaded(&id);
    for model in models {
        model.change(&options)?;
    }
    Ok(Json(node.card(&id)?.json()))
}
