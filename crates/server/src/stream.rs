//! An answer as server-sent events (WHATWG HTML, section 9.2).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use lichen_api::Answer;

use crate::running::{Running, Step};

/// The events of one answer. One JSON text a line, since some clients read line by line.
struct Chunks {
    answer: Answer,
    running: Running,
    ready: VecDeque<String>,
    ended: bool,
}

impl Chunks {
    /// Fails inside the stream: the status is long gone, and an `error` payload is what clients raise on.
    fn advance(&mut self, step: Result<Step, lichen_api::Error>) {
        match step {
            Ok(Step::Text(text)) if text.is_empty() => {}
            Ok(Step::Embedding(_)) => {}
            Ok(Step::Text(text)) => self.ready.push_back(self.answer.text(&text).to_string()),
            Ok(Step::End(reason, usage)) => {
                self.ready.push_back(self.answer.closing(reason).to_string());
                self.ready.extend(self.answer.usage(usage).map(|chunk| chunk.to_string()));
                self.ready.push_back("[DONE]".into());
                self.ended = true;
            }
            Err(error) => {
                self.ready.push_back(error.body().to_string());
                self.ended = true;
            }
        }
    }
}

impl Stream for Chunks {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Event::default().data(data))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let step = ready!(self.running.poll_next(context));
            self.advance(step);
        }
    }
}

/// The response. Its headers and opening chunk go out at once, before the prompt is processed, and a comment follows
/// whenever `keep_alive` passes in silence.
pub(crate) fn response(answer: Answer, running: Running, keep_alive: Duration) -> Response {
    let ready = answer.opening().map(|chunk| chunk.to_string()).into_iter().collect();
    let chunks = Chunks { answer, running, ready, ended: false };
    let keep_alive = KeepAlive::new().interval(keep_alive).text("ping");
    let mut response = Sse::new(chunks).keep_alive(keep_alive).into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    // Keeps nginx and its kin from collecting the stream before passing it on.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}
