//! The body of a streamed answer: waits for the node, passes its events on read by read, gives signs of life while it is
//! silent, and says in the client's dialect when it breaks off.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use lichen_api::Error;
use tokio::time::{Instant, Sleep, sleep};

use crate::Gateway;
use crate::attempt::Answer;
use crate::dialect::Route;
use crate::events::Events;
use crate::gateway::InFlight;
use crate::upstream::cause;

/// Largest refusal of a node that is passed on in a stream.
const LARGEST_REFUSAL: usize = 64 << 10;

/// What a request that waits ends with.
type Work = Pin<Box<dyn Future<Output = Result<Answer, Error>> + Send>>;

enum State {
    /// For the head of a node's answer. The client has its own head already.
    Waiting(Work),
    /// For the body of what the node answered instead of a stream.
    Refused(Pin<Box<dyn Future<Output = String> + Send>>),
    /// The node answers.
    Streaming(Incoming, InFlight),
    Ended,
}

/// A streamed answer.
pub(crate) struct Relay {
    gateway: Gateway,
    route: Route,
    request_id: String,
    state: State,
    events: Events,
    /// Something of the node's answer has gone out.
    begun: bool,
    keep_alive: Duration,
    last: Instant,
    timer: Pin<Box<Sleep>>,
    /// A sign of life is due at once.
    due: bool,
}

impl Relay {
    /// An answer that has begun.
    pub(crate) fn streaming(gateway: &Gateway, route: Route, request_id: &str, answer: Answer) -> Self {
        let state = State::Streaming(answer.response.into_body(), answer.in_flight);
        Self::new(gateway, route, request_id, state, false)
    }

    /// An answer that is waited for. A sign of life goes out first.
    pub(crate) fn waiting(gateway: &Gateway, route: Route, request_id: &str, work: Work) -> Self {
        Self::new(gateway, route, request_id, State::Waiting(work), true)
    }

    fn new(gateway: &Gateway, route: Route, request_id: &str, state: State, due: bool) -> Self {
        let keep_alive = gateway.0.config.gateway.keep_alive();
        Self {
            gateway: gateway.clone(),
            route,
            request_id: request_id.to_owned(),
            state,
            events: Events::default(),
            begun: false,
            keep_alive,
            last: Instant::now(),
            timer: Box::pin(sleep(keep_alive)),
            due,
        }
    }

    fn arrived(&mut self, answer: Result<Answer, Error>) -> Option<Bytes> {
        match answer {
            Ok(answer) if is_stream(&answer) => {
                self.state = State::Streaming(answer.response.into_body(), answer.in_flight);
                None
            }
            Ok(answer) => {
                self.state = State::Refused(Box::pin(refusal(answer)));
                None
            }
            Err(error) => Some(self.fail(&error)),
        }
    }

    fn fail(&mut self, error: &Error) -> Bytes {
        self.state = State::Ended;
        self.route.error_events(error, &self.request_id).into()
    }

    fn broke(&mut self, reason: String) -> Bytes {
        if let State::Streaming(_, in_flight) = std::mem::replace(&mut self.state, State::Ended) {
            in_flight.failed();
        }
        self.fail(&Error::NodeLost { reason })
    }

    /// The node's stream has ended by itself.
    fn ended(&mut self) -> Bytes {
        let rest = self.events.rest();
        let complete = self.route.end_mark().is_none_or(|mark| self.events.ends_with(mark));
        if complete {
            self.state = State::Ended;
            return rest;
        }
        let error = self.fail(&Error::NodeLost { reason: "its stream has ended before the answer".into() });
        [rest, error].concat().into()
    }

    /// What the node has, or what became of it. Empty bytes are nothing to be sent.
    fn poll_node(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            match &mut self.state {
                State::Ended => return Poll::Ready(Bytes::new()),
                State::Waiting(work) => {
                    let answer = std::task::ready!(work.as_mut().poll(context));
                    if let Some(bytes) = self.arrived(answer) {
                        return Poll::Ready(bytes);
                    }
                }
                State::Refused(body) => {
                    let body = std::task::ready!(body.as_mut().poll(context));
                    self.state = State::Ended;
                    return Poll::Ready(self.route.answer_as_event(&body).into());
                }
                State::Streaming(body, _) => match std::task::ready!(Pin::new(body).poll_frame(context)) {
                    Some(Ok(frame)) => {
                        let out = frame.into_data().map(|read| self.events.push(read)).unwrap_or_default();
                        if !out.is_empty() {
                            self.begun = true;
                            return Poll::Ready(out);
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(self.broke(cause(&error))),
                    None => return Poll::Ready(self.ended()),
                },
            }
        }
    }

    /// A sign of life, once nothing has gone out for long enough.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            let quiet = self.last.elapsed();
            if self.due || quiet >= self.keep_alive {
                self.due = false;
                self.timer.as_mut().reset(Instant::now() + self.keep_alive);
                return Poll::Ready(self.sign());
            }
            // The timer runs on while events go out, so that they cost nothing; it is set anew when it ends.
            std::task::ready!(self.timer.as_mut().poll(context));
            let next = self.last + self.keep_alive;
            self.timer.as_mut().reset(next);
        }
    }

    fn sign(&mut self) -> Bytes {
        if let State::Streaming(_, in_flight) = &self.state
            && self.gateway.is_silent(&in_flight.node())
        {
            return self.broke("it has fallen silent".into());
        }
        if self.events.between() { self.route.ping(self.begun).into() } else { Bytes::new() }
    }
}

/// Whether a node's answer is a stream of events.
pub(crate) fn is_stream(answer: &Answer) -> bool {
    let kind = answer.response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    answer.response.status().is_success() && kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
}

async fn refusal(answer: Answer) -> String {
    let _in_flight = answer.in_flight;
    let body = Limited::new(answer.response.into_body(), LARGEST_REFUSAL).collect().await;
    body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default()
}

impl Body for Relay {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        loop {
            let out = match self.poll_node(context) {
                Poll::Ready(out) => out,
                Poll::Pending => std::task::ready!(self.poll_silence(context)),
            };
            self.last = Instant::now();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out))));
            }
            if matches!(self.state, State::Ended) {
                return Poll::Ready(None);
            }
        }
    }
}
