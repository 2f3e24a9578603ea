//! What the engine sees of hardware: something that runs a model on a batch.

use lichen_op::Batch;
use lichen_op::{Reference, Weights};

/// Why a step could not be computed.
#[derive(Debug, thiserror::Error)]
#[error("the backend could not compute a step: {0}")]
pub struct ExecutorError(pub String);

/// The name of a page of keys and values, the same for all who hold it and never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u64);

/// A model bound to a device, with the state of its sequences.
///
/// One thread owns it; results depend only on the calls made.
pub trait Executor: Send {
    /// Size of the vocabulary: the length of one row of logits.
    fn vocab(&self) -> usize;

    /// Runs one step and returns the logits of the batch's output rows, `[outputs, vocab]`.
    ///
    /// # Errors
    /// If the batch is malformed or the device fails; the state of its sequences is then undefined.
    fn run(&mut self, batch: &Batch) -> Result<Vec<f32>, ExecutorError>;

    /// Runs one step and returns the final hidden states of the batch's output rows, `[outputs, width]`: what the
    /// logits are made of. For embeddings.
    ///
    /// # Errors
    /// As [`Executor::run`], or this backend can't.
    fn hidden(&mut self, _batch: &Batch) -> Result<Vec<f32>, ExecutorError> {
        Err(ExecutorError("it gives no hidden states".to_owned()))
    }

    /// Frees the state of a sequence; unknown ones are ignored. Pages that someone else holds stay.
    fn drop_sequence(&mut self, sequence: u64);

    /// Tokens of a page.
    fn page_tokens(&self) -> usize {
        64
    }

    /// Pages that exist, each counted once however many hold it.
    fn pages(&self) -> usize {
        0
    }

    /// Takes a reference on each page of a sequence, in order, the last one perhaps not full. A backend that can't
    /// share pages gives none.
    fn hold(&mut self, _sequence: u64) -> Vec<PageId> {
        Vec::new()
    }

    /// Lets a sequence that has no state begin with the first `tokens` tokens of these pages. They are never changed
    /// through it: what it writes into a page that others hold goes into a copy.
    ///
    /// # Panics
    /// If a page is not held.
    fn adopt(&mut self, _sequence: u64, _pages: &[PageId], _tokens: usize) {}

    /// Gives back one reference that [`Executor::hold`] took.
    fn release(&mut self, _page: PageId) {}

    /// How many sequences have a held page as theirs.
    fn users(&self, _page: PageId) -> usize {
        0
    }
}

impl<W: Weights + Send> Executor for Reference<W> {
    fn vocab(&self) -> usize {
        self.plan().vocab
    }

    fn run(&mut self, batch: &Batch) -> Result<Vec<f32>, ExecutorError> {
        Reference::run(self, batch).map_err(|error| ExecutorError(error.to_string()))
    }

    fn drop_sequence(&mut self, sequence: u64) {
        Reference::drop_sequence(self, sequence);
    }
}
