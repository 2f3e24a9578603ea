//! How fast a model whose weights don't fit will be.

use std::hint::black_box;
use std::io;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use lichen_format::Mapping;
use lichen_memory::{CHUNK_BYTES, ResidencyPlan};

use crate::output::bytes;

/// Longest time that the disk is watched.
const DISK_TIME: Duration = Duration::from_millis(250);
/// How often the weights that are in memory are read to time it.
const MEMORY_ROUNDS: usize = 4;

/// What is known before the first token. Speeds are in bytes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forecast {
    pub(crate) weights: u64,
    pub(crate) room: u64,
    pub(crate) hot: u64,
    pub(crate) streamed: u64,
    pub(crate) disk: f64,
    pub(crate) memory: f64,
}

impl Forecast {
    /// Measures the disk of a model's file, and memory, for at most about 0.3 seconds.
    ///
    /// # Errors
    /// The file can't be read.
    pub(crate) fn measure(
        mapping: &Mapping,
        plan: &ResidencyPlan,
        room: u64,
        threads: usize,
    ) -> io::Result<Self> {
        let chunks: Vec<Range<usize>> =
            plan.chunks().iter().map(|chunk| chunk.start as usize..chunk.end as usize).collect();
        let disk = disk_speed(mapping, &chunks)?;
        let memory = memory_speed(mapping, chunks.first().cloned().unwrap_or(0..0), threads);
        let (hot, streamed) = (plan.hot_bytes(), plan.streamed_bytes());
        Ok(Self { weights: hot + streamed, room, hot, streamed, disk, memory })
    }

    /// Tokens a second of one sequence, if nothing but reading took time and disk and memory were read in turn.
    pub(crate) fn tokens_per_second(&self) -> f64 {
        let seconds = self.streamed as f64 / self.disk + self.hot as f64 / self.memory;
        if seconds > 0.0 { 1.0 / seconds } else { 0.0 }
    }

    /// One line for people.
    pub(crate) fn line(&self, name: &str) -> String {
        format!(
            "{name}: {} of weights, room for {}: {} stay in memory and {} are read for each token, at {} a second as \
             measured; prediction: {:.1} tokens a second",
            bytes(self.weights),
            bytes(self.room),
            bytes(self.hot),
            bytes(self.streamed),
            bytes(self.disk as u64),
            self.tokens_per_second(),
        )
    }
}

/// Reads chunks from all over the file, each dropped from memory before and after.
fn disk_speed(mapping: &Mapping, chunks: &[Range<usize>]) -> io::Result<f64> {
    /// Neighbours that are read together, as while streaming.
    const TOGETHER: usize = 4;
    /// Places of the file that are tried.
    const PLACES: usize = 8;
    let began = Instant::now();
    let (mut read, mut took) = (0, Duration::ZERO);
    for place in chunks.chunks(chunks.len().div_ceil(PLACES).max(1)) {
        let group = &place[..place.len().min(TOGETHER)];
        for chunk in group {
            mapping.release(chunk.clone())?;
        }
        let start = Instant::now();
        for chunk in group {
            mapping.prefetch(chunk.clone())?;
        }
        for chunk in group {
            mapping.populate(chunk.clone())?;
            read += chunk.len();
        }
        took += start.elapsed();
        for chunk in group {
            mapping.release(chunk.clone())?;
        }
        if began.elapsed() >= DISK_TIME {
            break;
        }
    }
    Ok(read as f64 / took.as_secs_f64().max(1e-9))
}

/// Reads a few bytes again and again with all threads.
fn memory_speed(mapping: &Mapping, chunk: Range<usize>, threads: usize) -> f64 {
    // More than caches of a core hold would be better, but the first chunk is what surely fits.
    let whole = mapping.bytes();
    let bytes = &whole[chunk.start..chunk.end.min(chunk.start + CHUNK_BYTES as usize)];
    let sum = || bytes.as_chunks::<8>().0.iter().fold(0, |sum: u64, word| sum ^ u64::from_ne_bytes(*word));
    black_box(sum());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..MEMORY_ROUNDS).fold(0, |sums, _| sums ^ black_box(sum())));
        }
    });
    (bytes.len() * MEMORY_ROUNDS * threads) as f64 / began.elapsed().as_secs_f64().max(1e-9)
}
