//! The routes on text alone: tokens and templates, as in llama.cpp's server.

use axum::extract::State;
use axum::{Extension, Json};
use lichen_api::{Error, Fields, check_messages};
use serde_json::{Map, Value, json};

use crate::exchange::Exchange;
use crate::extract::Body;
use crate::reply::{Refusal, fault};
use crate::{Conversation, Model, Node, system_messages};

/// `POST /tokenize`: `content`, `add_special`, `parse_special`, `with_pieces`.
pub(crate) async fn tokenize(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let fields = Fields::parse(&body)?;
    let text = fields.text("content")?.ok_or_else(|| Error::invalid("content", "is missing"))?.to_owned();
    let add_special = fields.flag("add_special")?.unwrap_or(false);
    let parse_special = fields.flag("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    off_thread(&node, &fields, &exchange, move |model| {
        let tokens = model.language().encode(&text, add_special, parse_special);
        if !with_pieces {
            return Ok(json!({"tokens": tokens}));
        }
        let piece = |token: &u32| json!({"id": token, "piece": model.language().decode(&[*token])});
        Ok(json!({"tokens": tokens.iter().map(piece).collect::<Vec<_>>()}))
    })
    .await
}

/// `POST /detokenize`: `tokens`.
pub(crate) async fn detokenize(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let fields = Fields::parse(&body)?;
    let tokens: Option<Vec<u32>> = fields.get("tokens").and_then(Value::as_array).and_then(|tokens| {
        tokens.iter().map(|token| token.as_u64().and_then(|token| u32::try_from(token).ok())).collect()
    });
    let tokens = tokens.ok_or_else(|| Error::invalid("tokens", "must be an array of token ids"))?;
    off_thread(&node, &fields, &exchange, move |model| {
        Ok(json!({"content": model.language().decode(&tokens)}))
    })
    .await
}

/// `POST /apply-template`: `messages`, `tools`, `add_generation_prompt`.
pub(crate) async fn apply_template(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let mut fields = Fields::parse(&body)?;
    let messages = check_messages(fields.take("messages"))?;
    let tools = fields.take("tools");
    let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
    off_thread(&node, &fields, &exchange, move |model| {
        let conversation = Conversation {
            messages: &messages,
            tools: tools.as_ref(),
            add_generation_prompt,
            variables: &Map::new(),
        };
        let prompt = system_messages::apply_template(model.language(), conversation).map_err(|reason| {
            Error::invalid("messages", format!("the chat template refuses them: {reason}"))
        })?;
        Ok(json!({"prompt": prompt}))
    })
    .await
}

async fn off_thread(
    node: &Node,
    fields: &Fields,
    exchange: &Exchange,
    work: impl FnOnce(&Model) -> Result<Value, Error> + Send + 'static,
) -> Result<Json<Value>, Refusal> {
    let model = node.lend(fields.text("model")?).await?;
    match tokio::task::spawn_blocking(move || work(&model)).await {
        Ok(result) => Ok(Json(result?)),
        Err(_) => Err(Refusal(fault("a worker broke down", exchange.id()))),
    }
}
