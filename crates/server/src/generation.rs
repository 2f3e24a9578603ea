//! The routes that generate.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lichen_api::{
    ChatEncoder, CompletionEncoder, CompletionLogprobs, CompletionRequest, Encoder, Error, Prompt, Sse,
    parse_chat,
};

use crate::answers::Answers;
use crate::exchange::{Exchange, unique};
use crate::extract::Body;
use crate::host::Lease;
use crate::loading::with_model;
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
    let (model, session) = (turn.model.clone(), turn.session.clone());
    let ask = Ask { node, exchange, model, session, streamed: turn.delivery.stream };
    let (choices, include_usage, logprobs) =
        (turn.choices, turn.delivery.include_usage, turn.logprobs.is_some());
    let encoder = move |model: &Model| ChatEncoder {
        id: unique("chatcmpl"),
        created: unix_time(),
        model: model.id().to_owned(),
        choices,
        include_usage,
        logprobs,
    };
    Ok(ask
        .answered(encoder, openai_refusal, move |model, exchange| prepare::turn(model, exchange, &turn))
        .await?)
}

/// An error in a stream of OpenAI's.
fn openai_refusal(error: &Error) -> Vec<Sse> {
    vec![Sse::data(&error.body())]
}

/// `POST /v1/completions`.
pub(crate) async fn completion(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request = Arc::new(CompletionRequest::parse(&body)?);
    let (model, session) = (request.model.clone(), request.session.clone());
    let ask = Ask { node, exchange, model, session, streamed: request.delivery.stream };
    let asked = request.clone();
    let encoder = move |model: &Model| CompletionEncoder {
        id: unique("cmpl"),
        created: unix_time(),
        model: model.id().to_owned(),
        include_usage: asked.delivery.include_usage,
        echo: if asked.echo { echo(model, &asked) } else { Vec::new() },
        logprobs: asked.logprobs.map(|_| CompletionLogprobs::default()),
    };
    let prepare = move |model: &Model, exchange: &Exchange| prepare::completion(model, exchange, &request);
    Ok(ask.answered(encoder, openai_refusal, prepare).await?)
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

/// Who asks which model in which session, and how the answer is to come.
pub(crate) struct Ask {
    pub(crate) node: Node,
    pub(crate) exchange: Exchange,
    pub(crate) model: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) streamed: bool,
}

impl Ask {
    /// The answer in a dialect, at once or piece by piece. Errors of a stream that begins before its model is there are
    /// told by `refusal`.
    ///
    /// # Errors
    /// As [`Node::lend`] and `prepare`, and what the engine refuses.
    pub(crate) async fn answered<E: Encoder + 'static>(
        self,
        encoder: impl FnOnce(&Model) -> E + Send + 'static,
        refusal: impl FnOnce(&Error) -> Vec<Sse> + Send + 'static,
        prepare: impl FnOnce(&Model, &Exchange) -> Result<Prepared, Error> + Send + 'static,
    ) -> Result<Response, Error> {
        let Self { node, exchange, model: name, session, streamed } = self;
        if let Some(session) = session {
            node.session_names().note(exchange.key(), &session);
        }
        let (asker, keep_alive) = (exchange.clone(), node.settings().keep_alive);
        let answer = move |model: Lease| async move {
            let encoder = encoder(&model);
            let mut started = start(model, asker, prepare).await?;
            if streamed {
                started.answers.begun().await?;
                return Ok(stream::response(started, Box::new(encoder), keep_alive));
            }
            let (replies, usage) = started.answers.whole().await?;
            Ok(Json(encoder.whole(&replies, usage)).into_response())
        };
        with_model(&node, &exchange, (name.as_deref(), streamed), refusal, answer).await
    }
}

/// A request whose answers are under way.
pub(crate) struct Started {
    pub(crate) answers: Answers,
    pub(crate) prompt_tokens: usize,
}

/// Renders, tokenizes and submits off the async threads, so that long prompts do not delay `/health`.
async fn start(
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
