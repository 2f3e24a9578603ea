//! What the engine sees of hardware: something that runs a model on a batch.

use lichen_op::Batch;
use lichen_op::{Reference, Weights};

/// Why a step could not be computed.
#[derive(Debug, thiserror::Error)]
#[error("the backend could not compute a step: {0}")]
pub struct ExecutorError(pub String);

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

    /// Frees the state of a sequence; unknown ones are ignored.
    fn drop_sequence(&mut self, sequence: u64);
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
