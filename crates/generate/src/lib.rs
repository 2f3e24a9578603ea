//! The narrow waist between what speaks protocols and what computes: a request in tokens, events out.
//!
//! No HTTP below it, no tensor above it. [`Generate`] is implemented by the engine and by scripted fakes.

mod error;
mod event;
mod request;
mod stats;

pub use error::{Fault, GenerateError, TurnMemory, TurnSize};
pub use event::{Event, FinishReason, TokenLogprob, Usage};
pub use request::{Constraint, Pooling, Request, Sampling, Task, Thinking};
pub use stats::{Admissions, Stats};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that ends its request when cancelled or dropped.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// A ticket and the flag that tells the worker of its end.
    pub fn new() -> (Self, Arc<AtomicBool>) {
        let flag = Arc::new(AtomicBool::new(false));
        (Self(flag.clone()), flag)
    }

    /// Ends the request at its next step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Receives the events of one request, on the engine's thread: it must not block.
pub type Sink = Box<dyn FnMut(Event) + Send>;

/// Something that generates text from tokens.
pub trait Generate: Send + Sync {
    /// Most tokens that prompt and answer may have together.
    fn context_cap(&self) -> usize;

    /// Queues a request. Events go to `sink`; dropping the ticket cancels it within one step.
    ///
    /// # Errors
    /// Refuses at once what can't be served: too long, malformed, queue full.
    fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, GenerateError>;

    /// What goes on now.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_ticket_cancels() {
        let (ticket, cancelled) = Ticket::new();
        assert!(!cancelled.load(Ordering::Acquire));
        drop(ticket);
        assert!(cancelled.load(Ordering::Acquire));
    }

    #[test]
    fn an_overlong_prompt_is_the_clients_fault() {
        let size = TurnSize { prompt_tokens: 9, requested_tokens: 1, context_cap: 8, ..TurnSize::default() };
        let error = GenerateError::ContextOverBudget(Box::new(size));
        assert_eq!(error.fault(), Fault::Client);
        assert!(!error.retryable());
        assert!(error.to_string().contains("maximum context length is 8 tokens"));
    }
}
