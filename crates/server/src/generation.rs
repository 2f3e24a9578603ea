//! The routes that generate.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lichen_api::{
    ChatEncoder, CompletionEncoder, CompletionLogprobs, CompletionRequest, Encoder, Error, Prompt, parse_chat,
};

use crate::answers::Answers;
use crate::exchange::{Exchange, unique};
use crate::extract::Body;
use crate::host::Lease;
use crate::node::unix_time;
use crate::prepare::{self, Prepared};
use crate::reply::{Refusal, fault};
use crate::{Model, Node, stream};

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let turn = parse_chat(&body)?;
    let model = node.lend(turn.model.as_deref()).await?;
    let encoder = ChatEncoder {
        id: unique("chatcmpl"),
        created: unix_time(),
        model: model.id().to_owned(),
        choices: turn.choices,
        include_usage: turn.delivery.include_usage,
        logprobs: turn.logprobs.is_some(),
    };
    let streamed = turn.delivery.stream;
    let prepare = move |model: &Model, exchange: &Exchange| prepare::turn(model, exchange, &turn);
    let started = start(model, exchange, prepare).await?;
    Ok(answer(&node, started, encoder, streamed).await?)
}

/// `POST /v1/completions`.
pub(crate) async fn completion(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request = CompletionRequest::parse(&body)?;
    let model = node.lend(request.model.as_deref()).await?;
    let encoder = CompletionEncoder {
        id: unique("cmpl"),
        created: unix_time(),
        model: model.id().to_owned(),
        include_usage: request.delivery.include_usage,
        echo: if request.echo { echo(&model, &request) } else { Vec::new() },
        logprobs: request.logprobs.map(|_| CompletionLogprobs::default()),
    };
    let streamed = request.delivery.stream;
    let prepare = move |model: &Model, exchange: &Exchange| prepare::completion(model, exchange, &request);
    let started = start(model, exchange, prepare).await?;
    Ok(answer(&node, started, encoder, streamed).await?)
}

/// The prompt of each answer as text.
fn echo(model: &Model, request: &CompletionRequest) -> Vec<String> {
    let text = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => model.language().decode(tokens),
    };
    let each = |prompt| std::iter::repeat_n(text(prompt), request.choices);
    request.prompts.iter().flat_map(each).collect()
}

/// A request whose answers are under way.
pub(crate) struct Started {
    pub(crate) answers: Answers,
    pub(crate) prompt_tokens: usize,
}

/// Renders, tokenizes and submits off the async threads, so that long prompts do not delay `/health`.
pub(crate) async fn start(
    model: Lease,
    exchange: Exchange,
    prepare: impl FnOnce(&Model, &Exchange) -> Result<Prepared, Error> + Send + 'static,
) -> Result<Started, Error> {
    exchange.note_model(model.id());
    let for_fault = exchange.clone();
    let work = tokio::task::spawn_blocking(move || {
        let Prepared { jobs, setup, prompt_tokens } = prepare(&model, &exchange)?;
        let answers = Answers::start(model, exchange, jobs, setup.as_ref())?;
        Ok(Started { answers, prompt_tokens })
    });
    let broken = |_| Err(fault("a worker broke down while it prepared the prompt", for_fault.id()));
    work.await.unwrap_or_else(broken)
}

/// The answers in a dialect, at once or piece by piece.
pub(crate) async fn answer(
    node: &Node,
    mut started: Started,
    encoder: impl Encoder + 'static,
    streamed: bool,
) -> Result<Response, Error> {
    if streamed {
        started.answers.begun().await?;
        return Ok(stream::response(started, Box::new(encoder), node.settings().keep_alive));
    }
    let (replies, usage) = started.answers.whole().await?;
    Ok(Json(encoder.whole(&replies, usage)).into_response())
}
