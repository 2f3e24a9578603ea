//! The routes that generate: chat and text completions.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lichen_api::{Answer, ChatRequest, CompletionRequest, Error, Prompt, Shape, StreamOptions};
use lichen_generate::{Request, Sampling};

use crate::edge::{RequestId, unique};
use crate::extract::Body;
use crate::node::unix_time;
use crate::reply::{Refusal, fault};
use crate::running::{Running, Step};
use crate::{Model, Node, stream};

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(
    State(node): State<Node>,
    Extension(id): Extension<RequestId>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request = ChatRequest::parse(&body)?;
    let model = node.ready_model(request.model.as_deref())?;
    let delivery = request.delivery;
    let prompt = move |model: &Model| {
        let language = model.language();
        let text = language.apply_template(&request.messages, None, true).map_err(|reason| {
            Error::invalid("messages", format!("the chat template refuses them: {reason}"))
        })?;
        // The template writes the special tokens itself.
        Ok(to_request(language.encode(&text, false, true), &request.sampling, model.defaults()))
    };
    generate(&node, model, id, Shape::Chat, delivery, prompt).await
}

/// `POST /v1/completions`.
pub(crate) async fn completion(
    State(node): State<Node>,
    Extension(id): Extension<RequestId>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request = CompletionRequest::parse(&body)?;
    let model = node.ready_model(request.model.as_deref())?;
    let delivery = request.delivery;
    let prompt = move |model: &Model| {
        let tokens = match request.prompt {
            Prompt::Text(text) => model.language().encode(&text, true, true),
            Prompt::Tokens(tokens) => tokens,
        };
        if tokens.is_empty() {
            return Err(Error::invalid("prompt", "is empty; this model needs at least one token"));
        }
        Ok(to_request(tokens, &request.sampling, model.defaults()))
    };
    generate(&node, model, id, Shape::Text, delivery, prompt).await
}

async fn generate(
    node: &Node,
    model: Arc<Model>,
    id: RequestId,
    shape: Shape,
    delivery: StreamOptions,
    prompt: impl FnOnce(&Model) -> Result<Request, Error> + Send + 'static,
) -> Result<Response, Refusal> {
    let answer = Answer {
        shape,
        id: unique(if shape == Shape::Chat { "chatcmpl" } else { "cmpl" }),
        created: unix_time(),
        model: model.id().to_owned(),
        include_usage: delivery.include_usage,
    };
    let running = start(model, id, prompt).await?;
    if delivery.stream {
        Ok(stream::response(answer, running, node.settings().keep_alive))
    } else {
        whole(answer, running).await
    }
}

/// Renders, tokenizes and submits off the async threads, so that long prompts do not delay `/health`.
async fn start(
    model: Arc<Model>,
    id: RequestId,
    prompt: impl FnOnce(&Model) -> Result<Request, Error> + Send + 'static,
) -> Result<Running, Error> {
    let for_fault = id.clone();
    let work = tokio::task::spawn_blocking(move || {
        let request = prompt(&model)?;
        Running::start(&model, id, request)
    });
    work.await.unwrap_or_else(|_| Err(fault("a worker broke down while it prepared the prompt", &for_fault)))
}

async fn whole(answer: Answer, mut running: Running) -> Result<Response, Refusal> {
    let mut text = String::new();
    loop {
        match running.next().await? {
            Step::Text(more) => text.push_str(&more),
            Step::Embedding(_) => {}
            Step::End(reason, usage) => return Ok(Json(answer.whole(&text, reason, usage)).into_response()),
        }
    }
}

/// The engine's request: what the client said, else the model's defaults.
fn to_request(prompt: Vec<u32>, asked: &lichen_api::Sampling, defaults: &Sampling) -> Request {
    Request {
        prompt,
        max_tokens: asked.max_tokens,
        stop: asked.stop.clone(),
        sampling: Sampling {
            temperature: asked.temperature.unwrap_or(defaults.temperature),
            top_k: asked.top_k.unwrap_or(defaults.top_k),
            top_p: asked.top_p.unwrap_or(defaults.top_p),
            min_p: asked.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: asked.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            penalty_window: defaults.penalty_window,
            presence_penalty: asked.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: asked.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: asked.logit_bias.clone(),
            seed: asked.seed.or(defaults.seed),
        },
        ignore_end: asked.ignore_end,
        ..Request::default()
    }
}
