//! The gateway's routes.

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lichen_api::Error;
use lichen_contract::{Heartbeat, NodeReport, routes};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::dialect::Route;
use crate::fleet::Heard;
use crate::proxy::proxy;
use crate::reply::plain_refusal;
use crate::{Gateway, models};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The name that Anthropic's clients read.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// What Anthropic's clients send with every request.
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
/// Longest request id that is taken over from the client.
const LONGEST_ID: usize = 128;

/// The routes of a gateway.
pub fn router(gateway: Gateway) -> Router {
    let mut router = Router::new();
    for route in Route::ALL {
        let pass = move |State(gateway): State<Gateway>, request: Request| async move {
            let id = request_id(request.headers());
            proxy(gateway, route, id, request).await
        };
        router = router.route(route.path(), post(pass));
    }
    router
        .route("/", get(about))
        .route("/health", get(health))
        .route("/v1/models", get(list))
        .route("/v1/models/{*id}", get(model))
        .route("/admin/fleet", get(fleet))
        .route(routes::HEARTBEAT, post(heartbeat))
        .fallback(no_route)
        .layer(middleware::from_fn(identify))
        .with_state(gateway)
}

/// Gives each exchange a name that client, gateway and node share.
async fn identify(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).filter(|id| (1..=LONGEST_ID).contains(&id.len()));
    let id = given.cloned().unwrap_or_else(|| {
        let id = format!("req_{:032x}", fastrand::u128(..));
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("req"))
    });
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id.clone());
    response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id);
    response
}

fn request_id(headers: &HeaderMap) -> String {
    headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned()
}

async fn about(State(gateway): State<Gateway>) -> Json<Value> {
    Json(json!({
        "name": gateway.0.config.gateway.name,
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": gateway.now().as_secs(),
    }))
}

async fn health(State(gateway): State<Gateway>) -> Json<Value> {
    let up = gateway.members(|now, members| members.up(now).count());
    Json(json!({"status": "ok", "live": true, "ready": true, "nodes_up": up}))
}

/// How much of the list is asked for. Anthropic's clients page; everything fits on one page.
#[derive(Deserialize)]
struct Page {
    limit: Option<usize>,
}

async fn list(State(gateway): State<Gateway>, Query(page): Query<Page>, headers: HeaderMap) -> Json<Value> {
    let mut cards = models::cards(&gateway);
    let all = cards.len();
    cards.truncate(page.limit.unwrap_or(all).max(1));
    Json(if headers.contains_key(ANTHROPIC_VERSION) {
        models::anthropic_list(&cards, all)
    } else {
        lichen_api::ModelCard::list(&cards)
    })
}

async fn model(State(gateway): State<Gateway>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let cards = models::cards(&gateway);
    match cards.iter().find(|card| card.id == id) {
        Some(card) if headers.contains_key(ANTHROPIC_VERSION) => {
            Json(models::anthropic(card)).into_response()
        }
        Some(card) => Json(card.json()).into_response(),
        None => plain_refusal(&Error::ModelNotFound { model: id, loaded: gateway.model_names() }),
    }
}

/// `GET /admin/fleet`: nodes as the gateway knows them, and loads that run.
async fn fleet(State(gateway): State<Gateway>) -> Json<Value> {
    let nodes = gateway.members(|now, members| {
        let told = |node: &crate::fleet::Node| {
            let report = node.report();
            let models = report.map(|report| report.models.as_slice()).unwrap_or_default();
            json!({
                "name": &**node.name(),
                "address": &**node.address(),
                "standing": members.standing(now, node).name(),
                "heard_s_ago": node.heard().map(|heard| now.saturating_sub(heard).as_secs_f64()),
                "boot_id": report.map(|report| &report.boot_id),
                "memory": report.map(|report| report.memory),
                "models": models.iter().map(|model| {
                    let mut told = serde_json::to_value(model).unwrap_or_default();
                    told["in_flight_here"] = node.own_open(&model.id).into();
                    told
                }).collect::<Vec<_>>(),
            })
        };
        members.iter().map(told).collect::<Vec<_>>()
    });
    let loads: Vec<Value> = gateway
        .0
        .loads
        .progress()
        .into_iter()
        .map(|(model, progress)| {
            json!({"model": model, "state": progress.state, "progress": progress.share, "eta_s": progress.eta_s})
        })
        .collect();
    Json(json!({"nodes": nodes, "loads": loads}))
}

/// A node reports.
async fn heartbeat(
    State(gateway): State<Gateway>,
    headers: HeaderMap,
    Json(report): Json<NodeReport>,
) -> Response {
    let config = &gateway.0.config.fleet;
    let given =
        headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let allowed = match (&config.join_token, given) {
        (Some(token), Some(given)) => same(token.as_bytes(), given.as_bytes()),
        _ => false,
    };
    if !allowed {
        return plain_refusal(&Error::Unauthorized {
            reason: "the join token is not the one of this gateway",
        });
    }
    let key = config.node_api_key.as_deref();
    match gateway.update(|now, members| members.pushed(now, key, report)) {
        Heard::Unreachable => {
            plain_refusal(&Error::invalid("address", "is missing; say where the node is reached"))
        }
        _ => {
            let interval_ms = u32::try_from(config.heartbeat_ms).unwrap_or(u32::MAX);
            Json(Heartbeat { gateway_id: gateway.0.config.gateway.name.clone(), interval_ms }).into_response()
        }
    }
}

/// Compares in a time that doesn't tell how much of a guess was right.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

async fn no_route(uri: Uri) -> Response<Body> {
    plain_refusal(&Error::RouteNotFound { path: uri.path().to_owned() })
}
