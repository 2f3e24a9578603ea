//! Who is told what of the weights is read next.

/// Is told which stored bytes a step reads, before it reads them: for weights that don't all stay in memory. Vectors
/// (norms, biases) are not told of.
pub trait ReadObserver: Send + Sync {
    /// All of these bytes are read next, and those of the call before not again in this pass. May wait until they are
    /// in memory.
    fn scan(&self, bytes: &[u8]);

    /// These bytes, one row of a table, are read soon.
    fn row(&self, bytes: &[u8]);
}

/// Most bytes of one matrix between two calls of [`ReadObserver::scan`].
pub(crate) const SCAN_BYTES: usize = 4 << 20;
