//! Passes a request on and its answer back.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use lichen_api::Error;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::Gateway;
use crate::attempt::{Answer, Job, answer};
use crate::body::{BodyError, Scanned};
use crate::dialect::Route;
use crate::gateway::InFlight;
use crate::headers;
use crate::loads::Loading;
use crate::relay::{Relay, is_stream};
use crate::reply::{event_headers, refusal, stream};

/// How much more than the limit of a body is read before it is refused. A client that is still writing when the
/// connection closes may never see the refusal.
const READ_ON: usize = 4;

/// Answers a request on one of the routes that nodes answer.
pub(crate) async fn proxy(
    gateway: Gateway,
    route: Route,
    request_id: String,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or_else(|| route.path().to_owned(), ToString::to_string);
    let job = match read(&gateway, &parts.headers, body).await.and_then(scan) {
        Ok((body, scanned)) => {
            let Some(name) = scanned.model.clone() else {
                let missing = Error::invalid("model", "is missing; give the name of a model");
                return refusal(route, &missing, &request_id);
            };
            let session = headers::session(&parts.headers).map(str::to_owned);
            let headers = headers::to_node(&parts.headers);
            Job { route, path, headers, body, scanned, name, session, request_id }
        }
        Err(error) => return refusal(route, &error, &request_id),
    };
    if job.scanned.stream { streamed(gateway, job).await } else { whole(&gateway, &job).await }
}

async fn read(gateway: &Gateway, headers: &HeaderMap, body: Body) -> Result<Bytes, Error> {
    let limit = gateway.0.config.gateway.body_limit();
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let too_large = Error::BodyTooLarge { limit };
    if told.is_some_and(|length| length > limit) {
        drain(body, limit * READ_ON).await;
        return Err(too_large);
    }
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large),
        Err(error) => Err(Error::invalid("body", format!("could not be read: {error}"))),
    }
}

/// Reads and forgets, up to a limit.
async fn drain(body: Body, limit: usize) {
    let mut body = Limited::new(body, limit);
    while let Some(Ok(_)) = body.frame().await {}
}

fn scan(body: Bytes) -> Result<(Bytes, Scanned), Error> {
    match Scanned::read(&body) {
        Ok(scanned) => Ok((body, scanned)),
        Err(error @ BodyError::Model) => Err(Error::invalid("model", error.to_string())),
        Err(error) => Err(Error::invalid("body", error.to_string())),
    }
}

async fn whole(gateway: &Gateway, job: &Job) -> Response<Body> {
    let loading = Arc::new(watch::Sender::new(false));
    match answer(gateway, job, &loading).await {
        Ok(answer) => pass_on(answer),
        Err(error) => refusal(job.route, &error, &job.request_id),
    }
}

/// The answer as it comes.
fn pass_on(answer: Answer) -> Response<Body> {
    let (mut parts, body) = answer.response.into_parts();
    headers::to_client(&mut parts.headers);
    Response::from_parts(parts, Body::new(Passed { body, in_flight: Some(answer.in_flight) }))
}

/// The body of an answer that is not streamed.
struct Passed {
    body: Incoming,
    in_flight: Option<InFlight>,
}

impl hyper::body::Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if matches!(frame, Some(Err(_)))
            && let Some(in_flight) = self.in_flight.take()
        {
            in_flight.failed();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream begins as soon as its node answers. If that takes long, or a load has begun, its head goes out before, and
/// what goes wrong from then on is an event.
async fn streamed(gateway: Gateway, job: Job) -> Response<Body> {
    let (route, request_id) = (job.route, job.request_id.clone());
    let loading: Loading = Arc::new(watch::Sender::new(false));
    let mut load_begins = loading.subscribe();
    let (working, keep_alive): (_, Duration) = (gateway.clone(), gateway.0.config.gateway.keep_alive());
    let mut work = Box::pin(async move { answer(&working, &job, &loading).await });
    let answered = tokio::select! {
        answered = &mut work => Some(answered),
        _ = load_begins.wait_for(|begun| *begun) => None,
        () = sleep(keep_alive) => None,
    };
    match answered {
        Some(Ok(answer)) if is_stream(&answer) => {
            let mut parts = answer.response.headers().clone();
            headers::to_client(&mut parts);
            parts.remove(CONTENT_LENGTH);
            let mut response =
                Response::new(Body::new(Relay::streaming(&gateway, route, &request_id, answer)));
            *response.headers_mut() = parts;
            event_headers(&mut response);
            response
        }
        Some(Ok(answer)) => pass_on(answer),
        Some(Err(error)) => refusal(route, &error, &request_id),
        None => stream(Body::new(Relay::waiting(&gateway, route, &request_id, work))),
    }
}
