//! What the engine sees of hardware: something that runs a model on a batch.

mod kv;

pub use kv::{KvPrecision, PageError, PageId, PageSet};

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

    /// Runs one step and makes `logits` those of the batch's output rows, `[outputs, vocab]`. Callers hand in the same
    /// vector in every step, so that its space is used again; what it holds doesn't matter.
    ///
    /// # Errors
    /// If the batch is malformed or the device fails; the state of its sequences, and `logits`, are then undefined.
    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError>;

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

    /// The pages of a sequence, in order.
    fn sequence_pages(&self, _sequence: u64) -> &[PageId] {
        &[]
    }

    /// Bytes of one page in this precision, exactly; 0 if the backend has no such pages.
    fn page_bytes(&self, _precision: KvPrecision) -> u64 {
        0
    }

    /// Bytes of all pages now, each counted once.
    fn kv_bytes(&self) -> u64 {
        0
    }

    /// Bytes of one page now; 0 if there is no such page.
    fn page_size(&self, _page: PageId) -> u64 {
        0
    }

    /// The precision that pages are sealed in.
    fn kv_precision(&self) -> KvPrecision {
        KvPrecision::F16
    }

    /// From the next step on, seals pages in this precision: those that are full, not the first of a sequence and
    /// not among the newest of any sequence that has them. Pages that are coarser already stay as they are.
    fn set_kv_precision(&mut self, _precision: KvPrecision) {}

    /// Seals, or seals more coarsely, those of the pages that may be. All who have a page see its new numbers, and
    /// its name stays. Pages never become finer, and values in 4 bits are never rounded again. Returns the bytes that
    /// were given back.
    ///
    /// # Errors
    /// If there is no memory for a page in between; every page then is as before or as wanted.
    fn requantise(&mut self, _pages: PageSet, _precision: KvPrecision) -> Result<u64, ExecutorError> {
        Ok(0)
    }

    /// The bytes of a page as they are stored, for [`Executor::import_page`] of the same model; `None` if there is
    /// no such page.
    fn export_page(&self, _page: PageId) -> Option<(KvPrecision, Vec<u8>)> {
        None
    }

    /// Makes a page from stored bytes and takes a reference on it. [`Executor::adopt`] says which tokens it has.
    ///
    /// # Errors
    /// If the bytes are no page of this model.
    fn import_page(&mut self, precision: KvPrecision, _bytes: &[u8]) -> Result<PageId, PageError> {
        Err(PageError::Unsupported(precision))
    }
}

impl<W: Weights + Send> Executor for Reference<W> {
    fn vocab(&self) -> usize {
        self.plan().vocab
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        *logits = Reference::run(self, batch).map_err(|error| ExecutorError(error.to_string()))?;
        Ok(())
    }

    fn drop_sequence(&mut self, sequence: u64) {
        Reference::drop_sequence(self, sequence);
    }
}
