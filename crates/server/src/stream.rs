//! Answers as server-sent events (WHATWG HTML, section 9.2).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse as EventStream};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use lichen_api::{Encoder, Error, Sse};

use crate::answers::{Answers, Step};
use crate::generation::Started;

/// The events of one request's answers. One JSON text a line, since some clients read line by line.
struct Events {
    answers: Answers,
    encoder: Box<dyn Encoder>,
    ready: VecDeque<Sse>,
    ended: bool,
}

impl Events {
    /// Fails inside the stream: the status is long gone, and an error event is what clients raise on.
    fn advance(&mut self, step: Result<Step, Error>) {
        let events = match step {
            Ok(Step::Piece(choice, piece)) => self.encoder.piece(choice, piece),
            Ok(Step::End(choice, finish)) => self.encoder.end(choice, finish),
            Ok(Step::Finish(usage)) => {
                self.ended = true;
                self.encoder.finish(usage)
            }
            Err(error) => {
                self.ended = true;
                self.answers.exchange().note_error(&error);
                self.encoder.error(&error)
            }
        };
        self.ready.extend(events);
    }
}

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(wire(event))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let step = ready!(self.answers.poll_next(context));
            self.advance(step);
        }
    }
}

fn wire(event: Sse) -> Event {
    let wire = Event::default().data(event.data);
    match event.event {
        Some(name) => wire.event(name),
        None => wire,
    }
}

/// The response. Its headers and first events go out as soon as the request is taken, before the prompt is processed, and a ping follows
/// whenever `keep_alive` passes in silence.
pub(crate) fn response(started: Started, mut encoder: Box<dyn Encoder>, keep_alive: Duration) -> Response {
    let ready = encoder.start(started.prompt_tokens).into();
    let ping = encoder.ping().map_or_else(|| Event::default().comment("ping"), wire);
    let events = Events { answers: started.answers, encoder, ready, ended: false };
    let keep_alive = KeepAlive::new().interval(keep_alive).event(ping);
    event_stream(EventStream::new(events).keep_alive(keep_alive).into_response())
}

/// A response whose body is events.
pub(crate) fn event_stream(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    // Keeps nginx and its kin from collecting the stream before passing it on.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
