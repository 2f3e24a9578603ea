//! Streams whose model is still being loaded.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::response::Response;
use futures_core::Stream;
use lichen_api::{Error, Sse};
use tokio::time::{Instant, Interval, interval_at, timeout};

use crate::Node;
use crate::exchange::Exchange;
use crate::host::Lease;
use crate::stream;

/// A comment, which every client of server-sent events skips.
const PING: &str = ": the model is being loaded\n\n";

/// Lends a model and answers with it. A stream whose model takes longer to be loaded than streams may be silent begins
/// before the model is there: comments keep it open, and `refusal` has the events of an error, for which it is too late
/// for a status.
///
/// # Errors
/// As [`Node::lend`] and `answer`.
pub(crate) async fn with_model<F>(
    node: &Node,
    exchange: &Exchange,
    (name, streamed): (Option<&str>, bool),
    refusal: impl FnOnce(&Error) -> Vec<Sse> + Send + 'static,
    answer: impl FnOnce(Lease) -> F + Send + 'static,
) -> Result<Response, Error>
where
    F: Future<Output = Result<Response, Error>> + Send + 'static,
{
    let (lender, name) = (node.clone(), name.map(str::to_owned));
    let mut lent = Box::pin(async move { lender.lend(name.as_deref()).await });
    let silence = node.settings().keep_alive;
    if !streamed {
        return answer(lent.await?).await;
    }
    if let Ok(lent) = timeout(silence, &mut lent).await {
        return answer(lent?).await;
    }
    let exchange = exchange.clone();
    let coming = async move {
        let answered = match lent.await {
            Ok(model) => answer(model).await,
            Err(error) => Err(error),
        };
        answered.map_err(|error| {
            exchange.note_error(&error);
            refusal(&error)
        })
    };
    Ok(begun(Box::pin(coming), silence))
}

/// A response of which so far there are only comments.
fn begun(coming: Coming, silence: Duration) -> Response {
    let first = Instant::now();
    let body = Late::Coming(coming, interval_at(first, silence));
    stream::event_stream(Response::new(Body::from_stream(body)))
}

/// A response, or the events that stand for an error.
type Coming = Pin<Box<dyn Future<Output = Result<Response, Vec<Sse>>> + Send>>;

/// The body of a response that is not there yet.
enum Late {
    Coming(Coming, Interval),
    There(BodyDataStream),
    Ended,
}

impl Stream for Late {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut *self {
                Self::Coming(coming, pings) => match coming.as_mut().poll(context) {
                    Poll::Ready(Ok(response)) => *self = Self::There(response.into_body().into_data_stream()),
                    Poll::Ready(Err(events)) => {
                        *self = Self::Ended;
                        let events: String = events.iter().map(wire).collect();
                        return Poll::Ready(Some(Ok(events.into())));
                    }
                    Poll::Pending => {
                        ready!(pings.poll_tick(context));
                        return Poll::Ready(Some(Ok(Bytes::from_static(PING.as_bytes()))));
                    }
                },
                Self::There(body) => return Pin::new(body).poll_next(context),
                Self::Ended => return Poll::Ready(None),
            }
        }
    }
}

fn wire(event: &Sse) -> String {
    let name = event.event.map_or(String::new(), |name| format!("event: {name}\n"));
    format!("{name}data: {}\n\n", event.data)
}
