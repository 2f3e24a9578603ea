//! A generation in progress, seen from the async side.

use std::task::{Context, Poll};

use lichen_api::{Error, Usage};
use lichen_generate::{Event, FinishReason, GenerateError, Request, Ticket};
use tokio::sync::mpsc;

use crate::Model;
use crate::exchange::Exchange;
use crate::reply::{fault, from_engine};

/// Dropping it cancels the generation: that is how a client's hang-up reaches the engine.
#[derive(Debug)]
pub(crate) struct Running {
    exchange: Exchange,
    events: mpsc::UnboundedReceiver<Event>,
    /// An event that came before anybody asked.
    first: Option<Event>,
    _ticket: Ticket,
}

impl Running {
    /// Submits a request.
    ///
    /// # Errors
    /// What the engine refuses at once.
    pub(crate) fn start(model: &Model, exchange: Exchange, request: Request) -> Result<Self, Error> {
        // Unbounded, since the engine must not block; the context cap bounds what can pile up.
        let (sender, events) = mpsc::unbounded_channel();
        let mut begun = false;
        let sink = move |event| {
            // The first one tells that it has begun.
            if !matches!(event, Event::Prefill { .. }) || !std::mem::replace(&mut begun, true) {
                // Nobody listens any more: the ticket is gone too, and the engine will notice that.
                let _ = sender.send(event);
            }
        };
        match model.generate().submit(request, Box::new(sink)) {
            Ok(ticket) => Ok(Self { exchange, events, first: None, _ticket: ticket }),
            Err(error) => Err(from_engine(error, exchange.id())),
        }
    }

    /// Waits until it has begun, or waits for others to end.
    ///
    /// # Errors
    /// It was refused instead.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        let event = self.next().await?;
        if !matches!(event, Event::Prefill { .. } | Event::Waiting) {
            self.first = Some(event);
        }
        Ok(())
    }

    /// The next event, or why there is none.
    pub(crate) async fn next(&mut self) -> Result<Event, Error> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Running::next`], for streams.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        if let Some(event) = self.first.take() {
            return Poll::Ready(Ok(event));
        }
        self.events.poll_recv(context).map(|event| self.read(event))
    }

    fn read(&self, event: Option<Event>) -> Result<Event, Error> {
        let id = self.exchange.id();
        match event {
            Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {
                Err(fault("the engine stopped before the answer was complete", id))
            }
            Some(Event::Failed(error)) => Err(from_engine(error, id)),
            Some(event) => Ok(event),
            None => {
                let gone = "the engine went away in the middle of the answer".into();
                Err(from_engine(GenerateError::Engine(gone), id))
            }
        }
    }
}

/// The usage of a request in the terms of the API.
pub(crate) fn usage(usage: &lichen_generate::Usage) -> Usage {
    Usage {
        prompt: usage.prompt_tokens,
        cached: usage.cached_tokens,
        completion: usage.completion_tokens,
        reasoning: usage.thinking_tokens,
        reduced_kv: usage.reduced_kv,
    }
}
