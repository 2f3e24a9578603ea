//! A generation in progress, seen from the async side.

use std::task::{Context, Poll};

use lichen_api::{Error, Usage};
use lichen_generate::{Event, FinishReason, GenerateError, Request, Ticket};
use tokio::sync::mpsc;

use crate::Model;
use crate::edge::RequestId;
use crate::reply::{fault, from_engine};

/// One step of an answer.
#[derive(Debug)]
pub(crate) enum Step {
    /// More text.
    Text(String),
    /// The vector of an embedding.
    Embedding(Vec<f32>),
    /// The end, with the reason in OpenAI's words.
    End(&'static str, Usage),
}

/// Dropping it cancels the generation: that is how a client's hang-up reaches the engine.
#[derive(Debug)]
pub(crate) struct Running {
    id: RequestId,
    events: mpsc::UnboundedReceiver<Event>,
    _ticket: Ticket,
}

impl Running {
    /// Submits a request.
    ///
    /// # Errors
    /// What the engine refuses at once.
    pub(crate) fn start(model: &Model, id: RequestId, request: Request) -> Result<Self, Error> {
        // Unbounded, since the engine must not block; the context cap bounds what can pile up.
        let (sender, events) = mpsc::unbounded_channel();
        let sink = move |event| {
            if !matches!(event, Event::Prefill { .. }) {
                // Nobody listens any more: the ticket is gone too, and the engine will notice that.
                let _ = sender.send(event);
            }
        };
        match model.generate().submit(request, Box::new(sink)) {
            Ok(ticket) => Ok(Self { id, events, _ticket: ticket }),
            Err(error) => Err(from_engine(error, &id)),
        }
    }

    /// The next step, or why there is none.
    pub(crate) async fn next(&mut self) -> Result<Step, Error> {
        let event = self.events.recv().await;
        self.read(event)
    }

    /// As [`Running::next`], for streams.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Step, Error>> {
        self.events.poll_recv(context).map(|event| self.read(event))
    }

    fn read(&self, event: Option<Event>) -> Result<Step, Error> {
        match event {
            Some(Event::Text { text, .. }) => Ok(Step::Text(text)),
            Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {
                Err(fault("the engine stopped before the answer was complete", &self.id))
            }
            Some(Event::Finished { reason, usage }) => {
                let reason = if reason == FinishReason::Length { "length" } else { "stop" };
                Ok(Step::End(
                    reason,
                    Usage {
                        prompt: usage.prompt_tokens,
                        cached: usage.cached_tokens,
                        completion: usage.completion_tokens,
                        reasoning: usage.thinking_tokens,
                    },
                ))
            }
            Some(Event::Failed(error)) => Err(from_engine(error, &self.id)),
            // Not forwarded; an empty text keeps the order of events.
            Some(Event::Embedding(vector)) => Ok(Step::Embedding(vector)),
            Some(Event::Prefill { .. }) => Ok(Step::Text(String::new())),
            None => Err(from_engine(
                GenerateError::Engine("the engine went away in the middle of the answer".into()),
                &self.id,
            )),
        }
    }
}
