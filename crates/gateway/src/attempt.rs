//! One request on its way: to a node, to another one if that fails before its first byte, and into a wait if nobody has
//! the model.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use lichen_api::Error;
use tokio::time::Instant;

use crate::Gateway;
use crate::body::Scanned;
use crate::cold_start::Outcome;
use crate::dialect::Route;
use crate::gateway::{InFlight, Wanted};
use crate::loads::{Loading, NotLoaded, deadline, retry_after, wait_for};
use crate::route::{Ask, Target};
use crate::upstream::{CallError, SharedBody, credential, uri};

/// Seconds after which a fleet without a node for the model is worth another try.
const NODE_RETRY: u64 = 2;
/// The wait that is named for a node that is overloaded and doesn't say for how long. Some clients retry at once without
/// one.
const OVERLOADED_RETRY: u64 = 1;

/// A request, read and ready to be sent.
pub(crate) struct Job {
    pub(crate) route: Route,
    /// Path and query as they came.
    pub(crate) path: String,
    /// What nodes may see of the headers.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) scanned: Scanned,
    /// What the client calls the model.
    pub(crate) name: String,
    pub(crate) session: Option<String>,
    pub(crate) request_id: String,
}

/// A node's answer, of which nothing has been passed on.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) in_flight: InFlight,
}

/// What has been tried.
#[derive(Default)]
struct Tried {
    nodes: Vec<Arc<str>>,
    /// The last answer that said to come back later.
    refused: Option<Answer>,
    /// The longest `Retry-After` of those.
    retry_after: Option<u64>,
    /// What happened to the last node that could not be reached.
    broken: Option<String>,
}

impl Tried {
    fn refusal(&mut self) -> Option<Answer> {
        let mut answer = self.refused.take()?;
        let seconds = self.retry_after.unwrap_or(OVERLOADED_RETRY);
        answer.response.headers_mut().insert(RETRY_AFTER, seconds.into());
        Some(answer)
    }
}

/// Gets an answer. Dropping the future gives the request up wherever it is.
pub(crate) async fn answer(gateway: &Gateway, job: &Job, loading: &Loading) -> Result<Answer, Error> {
    gateway.earn_retries();
    let until = deadline(gateway.0.config.gateway.wait_budget());
    let wanted = gateway
        .find_model(&job.name)
        .ok_or_else(|| Error::ModelNotFound { model: job.name.clone(), loaded: gateway.model_names() })?;
    let body = body_for(job, wanted.model.name());
    let mut tried = Tried::default();
    loop {
        if let Some(answer) = try_nodes(gateway, job, &wanted, &body, &mut tried).await {
            return Ok(answer);
        }
        if tried.nodes.len() >= gateway.0.config.gateway.max_attempts {
            let reason = tried.broken.unwrap_or_else(|| "all that were tried have failed".into());
            return Err(unavailable(job, reason));
        }
        wait(gateway, job, &wanted, until, loading, &tried).await?;
        // Who has come up since may be one that was tried.
        tried.nodes.clear();
    }
}

/// Sends the request to one node after another. `None` if no node is left that has the model.
async fn try_nodes(
    gateway: &Gateway,
    job: &Job,
    wanted: &Wanted,
    body: &SharedBody,
    tried: &mut Tried,
) -> Option<Answer> {
    let model = wanted.model.name();
    let prefix = job.scanned.prefix_for(model);
    let session = job.session.as_deref().or(job.scanned.session.as_deref());
    let ask = Ask { model, prefix: &prefix, session, lichen_only: !job.route.is_openai() };
    while tried.nodes.len() < gateway.0.config.gateway.max_attempts {
        let Some((target, in_flight)) = gateway.dispatch(ask, &tried.nodes) else { break };
        let node = in_flight.node();
        tried.nodes.push(node.clone());
        let sent = tokio::select! {
            sent = send(gateway, job, &target, body) => sent,
            () = gateway.silence_of(&node) => Err(CallError::Broken("it has fallen silent".into())),
        };
        match sent {
            Ok(response) if asks_to_come_back(response.status()) => {
                let after =
                    response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                tried.retry_after = tried.retry_after.max(after);
                tried.refused = Some(Answer { response, in_flight });
                if !gateway.may_retry() {
                    break;
                }
            }
            Ok(response) => return Some(Answer { response, in_flight }),
            Err(error) => {
                tried.broken = Some(format!("{node}: {error}"));
                in_flight.failed();
            }
        }
    }
    tried.refusal()
}

/// Answers that another node may better. A 500 is the fault of one node, too; what is wrong with the request itself is
/// wrong everywhere.
fn asks_to_come_back(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    ) || status.as_u16() == OVERLOADED
}

/// Anthropic's status for an overloaded server.
const OVERLOADED: u16 = 529;

async fn send(
    gateway: &Gateway,
    job: &Job,
    target: &Target,
    body: &SharedBody,
) -> Result<Response<Incoming>, CallError> {
    let mut request = Request::new(body.clone());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri(target, &job.path)?;
    *request.headers_mut() = job.headers.clone();
    if let Some(key) = credential(target) {
        request.headers_mut().insert(AUTHORIZATION, key);
    }
    gateway.0.upstream.send(request).await
}

/// The body with the name that nodes know the model by.
fn body_for(job: &Job, model: &str) -> SharedBody {
    if job.name == model {
        return SharedBody::new(job.body.clone());
    }
    let name = serde_json::Value::from(model).to_string();
    SharedBody::spliced(&job.body, job.scanned.model_at.clone(), name.into())
}

/// Waits for the model to be loaded somewhere.
async fn wait(
    gateway: &Gateway,
    job: &Job,
    wanted: &Wanted,
    until: Instant,
    loading: &Loading,
    tried: &Tried,
) -> Result<(), Error> {
    match wait_for(gateway, wanted, until, loading).await {
        Ok(()) if Instant::now() >= until => Err(unavailable(job, "it is never ready for long".into())),
        Ok(()) => Ok(()),
        Err(NotLoaded::WaitedOut(progress)) => Err(Error::ModelNotReady {
            state: progress.state,
            progress: progress.share,
            retry_after: retry_after(progress),
        }),
        Err(NotLoaded::Ended(outcome)) => Err(refusal(job, outcome, tried)),
    }
}

fn refusal(job: &Job, outcome: Outcome, tried: &Tried) -> Error {
    let model = job.name.clone();
    match outcome {
        Outcome::NeverFits { needs, has } => Error::MemoryImpossible {
            message: format!(
                "the model '{model}' needs {needs} bytes and the largest node that may hold it has {has}; \
                 choose a smaller model or quantisation"
            ),
            need_bytes: needs,
            limit_bytes: has,
        },
        Outcome::PinnedOut { by } => Error::ModelPinnedOut { model, by },
        Outcome::Failed { cause, retry_after } => {
            Error::ModelFailed { model, reason: cause, retry_after: retry_after.into() }
        }
        Outcome::Ready(_) | Outcome::NoNode | Outcome::Abandoned => {
            let reason = tried.broken.clone().unwrap_or_else(|| "none that may hold it is up".into());
            unavailable(job, reason)
        }
    }
}

fn unavailable(job: &Job, reason: String) -> Error {
    Error::NodeUnavailable { model: job.name.clone(), reason, retry_after: NODE_RETRY }
}
