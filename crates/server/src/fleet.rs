//! The node's side of the contract with gateways: routes of [`lichen_contract::routes`].

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lichen_api::Error;
use lichen_contract::{
    Discovery, Endpoint, Ensured, LoadRequest, ModelState, NodeReport, UnloadRequest, Unloading, routes,
};
use lichen_registry::{RegistryError, Unavailable};
use serde::de::DeserializeOwned;

use crate::Node;
use crate::exchange::Exchange;
use crate::extract::Body;
use crate::host::Missing;
use crate::order::{LoadOrder, Loader, ModelOptions};
use crate::reply::{Refusal, fault};

/// Seconds after which asking again for room makes sense.
const BUSY_RETRY_AFTER: u32 = 2;
/// The same for a node that is about to stop.
const DRAINING_RETRY_AFTER: u32 = 5;

/// `GET /models`.
pub(crate) async fn models(State(node): State<Node>) -> Json<NodeReport> {
    Json(node.report(node.settings().address.clone()))
}

/// `GET /discovery`.
pub(crate) async fn discovery(State(node): State<Node>) -> Json<Discovery> {
    Json(node.discovery())
}

/// `POST /models/load`: has a model brought in unless it is here or on its way. Answers before the load is done; the job
/// goes on whatever becomes of the connection.
pub(crate) async fn load(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request: LoadRequest = parse(&body)?;
    exchange.note("model", request.model_id.as_str());
    if node.is_draining() {
        return Ok(told(&Ensured::Busy { retry_after_s: DRAINING_RETRY_AFTER }));
    }
    let work = tokio::task::spawn_blocking(move || ensure(&node, request));
    let ensured =
        work.await.map_err(|_| fault("a worker broke down while it read the model", exchange.id()))?;
    Ok(told(&ensured))
}

/// `POST /models/unload`: requests that run end first, new ones are told that the model goes. It stays known.
pub(crate) async fn unload(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Unloading>), Refusal> {
    let UnloadRequest { model_id } = parse(&body)?;
    exchange.note("model", model_id.as_str());
    let in_flight = node.host().unload(&model_id, true)?;
    let in_flight = u32::try_from(in_flight).unwrap_or(u32::MAX);
    Ok((StatusCode::ACCEPTED, Json(Unloading { model_id, in_flight })))
}

/// `GET /models/NAME/endpoint`.
pub(crate) async fn endpoint(
    State(node): State<Node>,
    Path(rest): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Endpoint>, Refusal> {
    let Some(model) = routes::endpoint_model(&rest) else {
        return Err(Refusal(Error::RouteNotFound { path: format!("{}/{rest}", routes::MODELS) }));
    };
    let status = node.host().status(model);
    if !status.is_some_and(|status| status.state == ModelState::Ready) || node.is_draining() {
        let ready = node.host().statuses().into_iter().filter(|status| status.state == ModelState::Ready);
        let loaded = ready.map(|status| status.id).collect();
        return Err(Refusal(Error::ModelNotFound { model: model.to_owned(), loaded }));
    }
    let reached = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let url = node.settings().address.clone().or_else(|| Some(format!("http://{}", reached?)));
    let url = url.ok_or_else(|| Error::invalid("host", "is missing in the head of the request"))?;
    Ok(Json(Endpoint { model_id: model.to_owned(), url }))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal(Error::invalid("body", error.to_string())))
}

/// The answer with its status, and with the header that says when to come back.
fn told(ensured: &Ensured) -> Response {
    let status = StatusCode::from_u16(ensured.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(ensured)).into_response();
    let seconds = match ensured {
        Ensured::Busy { retry_after_s } => Some(*retry_after_s),
        Ensured::Failed { retry_after_s, .. } => *retry_after_s,
        _ => None,
    };
    if let Some(seconds) = seconds {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// What becomes of a load request. Blocks while the model's file is read.
fn ensure(node: &Node, request: LoadRequest) -> Ensured {
    let Some(loader) = node.host().loader() else {
        return never("this node serves only what it was started with");
    };
    let evict = request.evict.clone();
    let order = match order(node, &*loader, request) {
        Ok(order) => order,
        Err(cause) => return never(cause),
    };
    let name = order.name.clone();
    match node.host().bring(&loader, order, evict) {
        Ok(()) => Ensured::Ready,
        Err(missing) => ensured(node, &name, missing),
    }
}

fn never(cause: impl Into<String>) -> Ensured {
    Ensured::Failed { cause: cause.into(), retry_after_s: None }
}

/// The order that a request amounts to: a model that is known by its name is loaded as it was declared, but for what the
/// request says.
///
/// # Errors
/// What this node can't do.
fn order(node: &Node, loader: &dyn Loader, request: LoadRequest) -> Result<LoadOrder, String> {
    let LoadRequest {
        model_id, name, quant, tensor_parallel, devices, ctx_cap, ttl_s, pin, priority, ..
    } = request;
    let known = |index: &u32| node.info().machine.devices.iter().any(|device| device.index == *index);
    if let Some(missing) = devices.iter().find(|index| !known(index)) {
        return Err(format!("device {missing} isn't here; GET /discovery lists the devices of this node"));
    }
    if tensor_parallel.is_some_and(|devices| devices > 1) {
        return Err("this node computes on one device; leave tensor_parallel out".to_owned());
    }
    let declared = node.host().order(&model_id).or_else(|| node.host().order(name.as_deref()?));
    let reference = declared.as_ref().map_or(model_id.as_str(), |order| &order.reference);
    if let Some(quant) = quant.filter(|quant| !reference.to_lowercase().contains(&quant.to_lowercase())) {
        return Err(format!("{reference} names no file of {quant}; name the file itself in model_id"));
    }
    let order = declared.unwrap_or_else(|| LoadOrder {
        reference: model_id.clone(),
        name: loader.name(&model_id),
        options: ModelOptions::default(),
        ttl: None,
        pinned: false,
        priority: 0,
    });
    let asked = ModelOptions { ctx_cap, ..ModelOptions::default() };
    let order = LoadOrder {
        name: name.unwrap_or(order.name),
        options: asked.over(&order.options),
        ttl: ttl_s.map(std::time::Duration::from_secs).or(order.ttl),
        pinned: pin || order.pinned,
        priority: if priority == 0 { order.priority } else { priority },
        reference: order.reference,
    };
    match order.name.len() {
        1..=256 => Ok(order),
        _ => Err("a name must have 1 to 256 bytes".to_owned()),
    }
}

fn ensured(node: &Node, name: &str, missing: Missing) -> Ensured {
    match missing {
        Missing::Staging | Missing::Unavailable(Unavailable::Loading { .. }) => on_its_way(node, name),
        Missing::Unreadable(cause) => never(cause),
        Missing::Unavailable(Unavailable::Failed { reason, retry_in, .. }) => {
            let seconds = |pause: std::time::Duration| pause.as_secs_f32().ceil() as u32;
            Ensured::Failed { cause: reason, retry_after_s: retry_in.map(seconds) }
        }
        Missing::Unavailable(Unavailable::Refused(RegistryError::NeverFits { need, limit, .. })) => {
            Ensured::NeverFits { needs_bytes: need, has_bytes: limit }
        }
        Missing::Unavailable(Unavailable::Refused(RegistryError::Crowded { kept, .. })) => {
            Ensured::PinnedOut { by: kept }
        }
        Missing::Unavailable(Unavailable::Refused(RegistryError::ShuttingDown)) => {
            Ensured::Busy { retry_after_s: DRAINING_RETRY_AFTER }
        }
        Missing::Unavailable(_) => Ensured::Busy { retry_after_s: BUSY_RETRY_AFTER },
    }
}

/// How far a job is that runs, or was running a moment ago.
fn on_its_way(node: &Node, name: &str) -> Ensured {
    match node.host().status(name).map(|status| status.state) {
        Some(ModelState::Ready) => Ensured::Ready,
        Some(ModelState::Staging { progress, eta_s } | ModelState::Loading { progress, eta_s }) => {
            Ensured::Loading { progress, eta_s }
        }
        _ => Ensured::Loading { progress: 0.0, eta_s: None },
    }
}
