//! Answers in every dialect, at the pace of the script.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use lichen_api::{
    ChatEncoder, CompletionEncoder, Encoder, Finish, MessagesEncoder, Piece, Reply, ResponseEnvelope,
    ResponsesEncoder, Sse, Usage,
};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use crate::node::{Shared, lock};
use crate::{Output, Script, Seen};

/// Requests that are remembered.
const SEEN: usize = 64;
/// Between the last token and a break.
const BEFORE_BREAK: Duration = Duration::from_millis(50);
/// Characters that count as a token of a prompt.
const TOKEN: usize = 4;

/// A request that is being answered. Whoever drops it before the end has given it up.
struct Running {
    shared: Arc<Shared>,
    model: String,
    /// Counted by its model.
    held: bool,
    completed: bool,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Running {
    /// It has been answered to the end.
    fn complete(mut self) {
        self.completed = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut stats = lock(&self.shared.stats);
        stats.in_flight -= 1;
        if self.completed {
            stats.completed += 1;
        } else {
            stats.canceled += 1;
        }
        drop(stats);
        if self.held {
            lock(&self.shared.models).end(&self.model);
        }
    }
}

type Make = fn(String) -> Box<dyn Encoder>;

pub(crate) async fn chat(node: State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    answer(node.0, uri, headers, body, |model| {
        Box::new(ChatEncoder {
            id: "chatcmpl-mock".into(),
            created: 0,
            model,
            choices: 1,
            include_usage: false,
            logprobs: false,
        })
    })
    .await
}

pub(crate) async fn completion(
    node: State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(node.0, uri, headers, body, |model| {
        Box::new(CompletionEncoder {
            id: "cmpl-mock".into(),
            created: 0,
            model,
            include_usage: false,
            echo: Vec::new(),
            logprobs: None,
        })
    })
    .await
}

pub(crate) async fn responses(
    node: State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(node.0, uri, headers, body, |model| {
        let echo = serde_json::Map::new();
        Box::new(ResponsesEncoder::new(ResponseEnvelope { id: "resp_mock".into(), created: 0, model, echo }))
    })
    .await
}

pub(crate) async fn messages(
    node: State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    answer(node.0, uri, headers, body, |model| Box::new(MessagesEncoder::new("msg_mock", model))).await
}

pub(crate) async fn count_tokens(
    node: State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match begin(&node.0, &uri, &headers, &body).await {
        Ok((mut running, _, _)) => {
            running.completed = true;
            Json(json!({"input_tokens": body.len() / TOKEN})).into_response()
        }
        Err(refused) => refused,
    }
}

pub(crate) async fn embeddings(
    node: State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match begin(&node.0, &uri, &headers, &body).await {
        Ok((mut running, script, _)) => {
            sleep(Duration::from_millis(script.first_token_ms)).await;
            running.completed = true;
            Json(lichen_api::embeddings(&running.model, &[vec![0.5, 0.5]], body.len() / TOKEN, false))
                .into_response()
        }
        Err(refused) => refused,
    }
}

async fn answer(shared: Arc<Shared>, uri: Uri, headers: HeaderMap, body: Bytes, make: Make) -> Response {
    let (running, script, streamed) = match begin(&shared, &uri, &headers, &body).await {
        Ok(begun) => begun,
        Err(refused) => return refused,
    };
    let encoder = make(running.model.clone());
    let prompt = body.len() / TOKEN;
    if streamed {
        stream(running, script, encoder, prompt).await
    } else {
        whole(running, script, encoder, prompt).await
    }
}

/// Takes a request in: counts and remembers it, and waits for a slot.
async fn begin(
    shared: &Arc<Shared>,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(Running, Script, bool), Response> {
    let fields: Value = serde_json::from_slice(body).unwrap_or_default();
    let model = fields["model"].as_str().unwrap_or_default().to_owned();
    remember(shared, uri, headers, body);
    let held = lock(&shared.models).begin(&model);
    let mut running = Running { shared: shared.clone(), model, held, completed: false, _slot: None };
    let (script, failure) = {
        let mut script = lock(&shared.script);
        let failure = script.take_failure();
        (script.clone(), failure)
    };
    if script.hang {
        std::future::pending::<()>().await;
    }
    if let Some(status) = failure {
        running.completed = true;
        return Err(refusal(status, script.retry_after));
    }
    if !held {
        running.completed = true;
        return Err(refusal(404, None));
    }
    running._slot = shared.slots.clone().acquire_owned().await.ok();
    Ok((running, script, fields["stream"] == true))
}

fn remember(shared: &Shared, uri: &Uri, headers: &HeaderMap, body: &Bytes) {
    let text = |value: &header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let seen = Seen {
        path: uri.to_string(),
        headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: String::from_utf8_lossy(body).into_owned(),
    };
    let mut stats = lock(&shared.stats);
    stats.requests += 1;
    stats.in_flight += 1;
    if stats.seen.len() == SEEN {
        stats.seen.remove(0);
    }
    stats.seen.push(seen);
}

fn refusal(status: u16, retry_after: Option<u64>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body =
        json!({"error": {"message": "as the script says", "type": "mock", "code": "mock", "param": null}});
    let mut response = (status, Json(body)).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// What an answer consists of, piece by piece.
fn pieces(script: &Script) -> Vec<Piece> {
    let word = |index| Piece::Text { text: format!("t{index} "), logprobs: Vec::new() };
    match script.output() {
        Output::Tokens(tokens) => (0..tokens).map(word).collect(),
        Output::Pieces(pieces) => pieces,
        Output::Raw(_) => Vec::new(),
    }
}

fn finish(pieces: &[Piece]) -> Finish {
    let calls = pieces.iter().any(|piece| matches!(piece, Piece::ToolStart { .. }));
    if calls { Finish::ToolCalls } else { Finish::Stop }
}

fn usage(prompt: usize, pieces: &[Piece]) -> Usage {
    Usage { prompt, completion: pieces.len(), ..Usage::default() }
}

/// How long a token takes beside the others that run.
fn pace(shared: &Shared, script: &Script) -> Duration {
    let others = lock(&shared.stats).in_flight.min(script.slots).saturating_sub(1) as f32;
    Duration::from_millis(script.token_ms).mul_f32(1.0 + script.slowdown * others)
}

async fn whole(mut running: Running, script: Script, encoder: Box<dyn Encoder>, prompt: usize) -> Response {
    sleep(Duration::from_millis(script.first_token_ms)).await;
    let pieces = pieces(&script);
    for _ in &pieces {
        let pace = pace(&running.shared, &script);
        if !pace.is_zero() {
            sleep(pace).await;
        }
    }
    running.completed = true;
    if let Output::Raw(parts) = script.output() {
        return ([(header::CONTENT_TYPE, "application/json")], parts.concat()).into_response();
    }
    let mut reply = Reply { finish: Some(finish(&pieces)), ..Reply::default() };
    let usage = usage(prompt, &pieces);
    pieces.into_iter().for_each(|piece| reply.push(piece));
    Json(encoder.whole(&[reply], usage)).into_response()
}

/// What is written to a stream: bytes, and whether they are a token that takes its time.
struct Write {
    bytes: String,
    token: bool,
}

fn writes(script: &Script, encoder: &mut dyn Encoder, prompt: usize) -> Vec<Write> {
    if let Output::Raw(parts) = script.output() {
        return parts.into_iter().map(|bytes| Write { bytes, token: true }).collect();
    }
    let pieces = pieces(script);
    let plain = |events: Vec<Sse>| Write { bytes: events.iter().map(wire).collect(), token: false };
    let mut writes = vec![plain(encoder.start(prompt))];
    for piece in &pieces {
        let bytes = encoder.piece(0, piece.clone()).iter().map(wire).collect();
        writes.push(Write { bytes, token: true });
    }
    let mut end = encoder.end(0, finish(&pieces));
    end.extend(encoder.finish(usage(prompt, &pieces)));
    writes.push(plain(end));
    writes
}

fn wire(event: &Sse) -> String {
    let name = event.event.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {}\n\n", event.data)
}

async fn stream(running: Running, script: Script, mut encoder: Box<dyn Encoder>, prompt: usize) -> Response {
    let first = Duration::from_millis(script.first_token_ms);
    if script.late_head {
        sleep(first).await;
    }
    let waits = if script.late_head { Duration::ZERO } else { first };
    let writes = writes(&script, encoder.as_mut(), prompt).into_iter();
    let state = (running, script, writes, waits, 0_usize);
    let body = stream::unfold(
        state,
        |(running, script, mut writes, waits, tokens): (Running, _, _, _, _)| async move {
            let Some(write) = writes.next() else {
                running.complete();
                return None;
            };
            let mut waits = waits;
            if write.token {
                if script.break_after == Some(tokens) {
                    // What was written before is to arrive.
                    sleep(BEFORE_BREAK).await;
                    let broken = Err(io::Error::from(io::ErrorKind::ConnectionReset));
                    return Some((broken, (running, script, writes, waits, tokens)));
                }
                sleep(std::mem::take(&mut waits) + pace(&running.shared, &script)).await;
            }
            let tokens = tokens + usize::from(write.token);
            Some((Ok::<_, io::Error>(Bytes::from(write.bytes)), (running, script, writes, waits, tokens)))
        },
    );
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(body)).into_response()
}
