//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use lichen_api::{EmbeddingRequest, Error, Prompt, embeddings};
use lichen_generate::{Event, Request, Task};
use serde_json::Value;

use crate::exchange::Exchange;
use crate::extract::Body;
use crate::reply::{Refusal, fault};
use crate::running::Running;
use crate::{Model, Node};

/// Embeds each input; the engine works on several at once.
pub(crate) async fn embed(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Json<Value>, Refusal> {
    let EmbeddingRequest { model, inputs, base64 } = EmbeddingRequest::parse(&body)?;
    let model = Arc::new(node.lend(model.as_deref()).await?);
    exchange.note_model(model.id());
    let name = model.id().to_owned();
    let prompts = {
        let model = model.clone();
        let encode = move || inputs.into_iter().map(|input| tokens(&model, input)).collect::<Vec<_>>();
        let work = tokio::task::spawn_blocking(encode);
        work.await.map_err(|_| fault("a worker broke down while it read the input", exchange.id()))?
    };
    let (mut vectors, mut prompt_tokens) = (Vec::new(), 0);
    for prompt in prompts {
        // One after another: a request of many inputs must not fill the queue that others share.
        let (vector, tokens) = one(&model, exchange.clone(), prompt).await?;
        vectors.push(vector);
        prompt_tokens += tokens;
    }
    Ok(Json(embeddings(&name, &vectors, prompt_tokens, base64)))
}

fn tokens(model: &Model, input: Prompt) -> Vec<u32> {
    match input {
        Prompt::Text(text) => model.language().encode(&text, true, true),
        Prompt::Tokens(tokens) => tokens,
    }
}

async fn one(model: &Model, exchange: Exchange, prompt: Vec<u32>) -> Result<(Vec<f32>, usize), Error> {
    let request =
        Request { task: Task::Embed(model.pooling()), prompt, key: exchange.key(), ..Request::default() };
    let mut running = Running::start(model, exchange.clone(), request)?;
    let mut vector = None;
    loop {
        match running.next().await? {
            Event::Embedding(values) => vector = Some(values),
            Event::Finished { usage, .. } => {
                let vector = vector.ok_or_else(|| fault("the engine gave no embedding", exchange.id()))?;
                return Ok((vector, usage.prompt_tokens));
            }
            _ => {}
        }
    }
}
