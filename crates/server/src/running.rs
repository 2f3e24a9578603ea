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
        let sink = move |event| {
            if !matches!(event, Event::Prefill { .. }) {
                // Nobody listens any more: the ticket is gone too, and the engine will notice that.
                let _ = sender.send(event);
            }
        };
        match model.generate().submit(request, Box::new(sink)) {
            Ok(ticket) => Ok(Self { exchange, events, _ticket: ticket }),
            Err(error) => Err(from_engine(error, exchange.id())),
        }
    }

    /// The next event, or why there is none.
    pub(crate) async fn next(&mut self) -> Result<Event, Error> {
        let event = self.events.recv().await;
        self.read(event)
    }

    /// As [`Running::next`], for streams.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, Error>> {
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
