//! The routes of the node contract, and those that change the script.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lichen_contract::{
    Discovery, Endpoint, Ensured, LoadRequest, ModelState, UnloadRequest, Unloading, routes,
};
use serde_json::{Value, json};

use crate::node::{Shared, lock};
use crate::{Script, Stats};

/// Counts the request, and never goes on if the node hangs.
async fn arrive(shared: &Shared) {
    lock(&shared.stats).contract_requests += 1;
    if lock(&shared.script).hang {
        std::future::pending::<()>().await;
    }
}

pub(crate) async fn models(State(shared): State<Arc<Shared>>) -> Response {
    arrive(&shared).await;
    if lock(&shared.script).mute {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    Json(shared.report()).into_response()
}

pub(crate) async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    arrive(&shared).await;
    if lock(&shared.script).draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

/// As an OpenAI-compatible server that knows no contract lists them.
pub(crate) async fn model_list(State(shared): State<Arc<Shared>>) -> Json<Value> {
    arrive(&shared).await;
    let ready = lock(&shared.models).statuses().into_iter().filter(|model| model.state == ModelState::Ready);
    let data: Vec<_> = ready
        .map(|model| json!({"id": model.id, "object": "model", "created": 0, "owned_by": "mock"}))
        .collect();
    Json(json!({"object": "list", "data": data}))
}

pub(crate) async fn load(State(shared): State<Arc<Shared>>, Json(order): Json<LoadRequest>) -> Response {
    arrive(&shared).await;
    let (takes, failure) = {
        let script = lock(&shared.script);
        (Duration::from_millis(script.load_ms), script.load_failure.clone())
    };
    let verdict = match failure {
        Some(cause) => Ensured::Failed { cause, retry_after_s: Some(5) },
        None => {
            let (verdict, gone, began) = lock(&shared.models).ensure(&order, takes);
            let mut stats = lock(&shared.stats);
            stats.unloads.extend(gone);
            if began {
                *stats.loads.entry(order.name.unwrap_or(order.model_id)).or_default() += 1;
            }
            verdict
        }
    };
    let status = StatusCode::from_u16(verdict.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(verdict)).into_response()
}

pub(crate) async fn unload(State(shared): State<Arc<Shared>>, Json(order): Json<UnloadRequest>) -> Response {
    arrive(&shared).await;
    let Some(in_flight) = lock(&shared.models).unload(&order.model_id) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    lock(&shared.stats).unloads.push(order.model_id.clone());
    Json(Unloading { model_id: order.model_id, in_flight }).into_response()
}

pub(crate) async fn endpoint(State(shared): State<Arc<Shared>>, Path(rest): Path<String>) -> Response {
    arrive(&shared).await;
    let statuses = lock(&shared.models).statuses();
    let model = routes::endpoint_model(&rest)
        .filter(|id| statuses.iter().any(|status| status.id == **id && status.state == ModelState::Ready));
    match model {
        Some(id) => Json(Endpoint { model_id: id.to_owned(), url: shared.address.clone() }).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

pub(crate) async fn discovery(State(shared): State<Arc<Shared>>) -> Json<Discovery> {
    arrive(&shared).await;
    Json(Discovery {
        node_id: shared.id.clone(),
        boot_id: shared.boot_id.clone(),
        cores: 1,
        budget_bytes: lock(&shared.models).budget,
        backend: "mock".into(),
        build: env!("CARGO_PKG_VERSION").into(),
        ..Discovery::default()
    })
}

pub(crate) async fn change(
    State(shared): State<Arc<Shared>>,
    Json(change): Json<Value>,
) -> Result<StatusCode, (StatusCode, String)> {
    let wrong = |error: serde_json::Error| (StatusCode::BAD_REQUEST, error.to_string());
    let mut script = lock(&shared.script);
    let mut value = serde_json::to_value(&*script).map_err(wrong)?;
    for (name, field) in change.as_object().into_iter().flatten() {
        value[name] = field.clone();
    }
    let output = script.output.take();
    *script = Script { output, ..serde_json::from_value(value).map_err(wrong)? };
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn stats(State(shared): State<Arc<Shared>>) -> Json<Stats> {
    Json(lock(&shared.stats).clone())
}

pub(crate) async fn kill(State(shared): State<Arc<Shared>>) -> StatusCode {
    shared.stop.notify_one();
    StatusCode::NO_CONTENT
}
