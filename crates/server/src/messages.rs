//! Anthropic's routes: `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use lichen_api::{Encoder, Error, MessagesEncoder, parse_count_tokens, parse_messages, token_count};
use serde_json::Value;

use crate::exchange::{Exchange, unique};
use crate::extract::Body;
use crate::generation::Ask;
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
    let id = unique("msg");
    let (model, session) = (turn.model.clone(), turn.session.clone());
    let ask = Ask { node, exchange, model, session, streamed: turn.delivery.stream };
    let (refused, name) = (id.clone(), turn.model.clone().unwrap_or_default());
    let refusal = move |error: &Error| MessagesEncoder::new(refused, &name).error(error);
    let encoder = move |model: &Model| MessagesEncoder::new(id, model.id());
    Ok(ask.answered(encoder, refusal, move |model, exchange| prepare::turn(model, exchange, &turn)).await?)
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
