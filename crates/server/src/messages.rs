//! Anthropic's routes: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use lichen_api::{Error, MessagesEncoder, parse_count_tokens, parse_messages, token_count};
use serde_json::Value;

use crate::exchange::{Exchange, unique};
use crate::extract::Body;
use crate::generation::{answer, start};
use crate::prepare;
use crate::reply::{Refusal, fault};
use crate::{Model, Node};

/// Names the conversation of an agent, on every request.
const SESSION: &str = "x-claude-code-session-id";

/// The next message of a conversation.
pub(crate) async fn messages(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let mut turn = parse_messages(&body)?;
    if turn.session.is_none() {
        turn.session = headers.get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
    }
    let model = node.lend(turn.model.as_deref()).await?;
    let encoder = MessagesEncoder::new(unique("msg"), model.id());
    let streamed = turn.delivery.stream;
    let prepare = move |model: &Model, exchange: &Exchange| prepare::turn(model, exchange, &turn);
    let started = start(model, exchange, prepare).await?;
    Ok(answer(&node, started, encoder, streamed).await?)
}

/// The tokens of a conversation, without an answer.
pub(crate) async fn count_tokens(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let turn = parse_count_tokens(&body)?;
    let model = node.lend(turn.model.as_deref()).await?;
    let count = move || -> Result<usize, Error> {
        let prompt = prepare::render(&model, &turn)?;
        Ok(model.language().encode(&prompt, false, true).len())
    };
    let counted = tokio::task::spawn_blocking(count).await;
    let tokens = counted.map_err(|_| fault("a worker broke down", exchange.id()))??;
    Ok(Json(token_count(tokens)))
}
