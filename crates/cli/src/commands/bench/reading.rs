//! How fast the weights can be read, with nothing computed: the bound of decoding one sequence.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lichen_cpu::{Team, read_all};
use lichen_format::Mapping;

use crate::load::Opened;
use crate::streaming::reading_order;

/// What each generated token reads of a model.
pub(super) struct Reading {
    team: Arc<Team>,
    mapping: Option<Mapping>,
    weights: Vec<Range<usize>>,
}

impl Reading {
    /// The weights that a pass reads in full, and the threads that read them.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn of(opened: &Opened, threads: usize) -> io::Result<Self> {
        let order = reading_order(&opened.spec.lower(), &opened.checkpoint);
        let range = |bytes: Range<u64>| bytes.start as usize..bytes.end as usize;
        let mut weights: Vec<Range<usize>> = order.into_iter().map(|weight| range(weight.bytes)).collect();
        // Parts of one tensor are several projections.
        weights.sort_by_key(|bytes| bytes.start);
        weights.dedup();
        Ok(Self { team: Team::of(threads)?, mapping: opened.checkpoint.mapping().cloned(), weights })
    }

    /// Bytes of them.
    pub(super) fn bytes(&self) -> u64 {
        self.weights.iter().map(|bytes| bytes.len() as u64).sum()
    }

    /// Reads all of them once.
    pub(super) fn pass(&self) -> Duration {
        let file = self.mapping.as_ref().map(Mapping::bytes);
        let parts: Vec<&[u8]> =
            file.iter().flat_map(|file| self.weights.iter().map(|bytes| &file[bytes.clone()])).collect();
        let start = Instant::now();
        read_all(&self.team, &parts);
        start.elapsed()
    }
}
