//! What is read and dropped next while a pass goes through weights that don't all fit.

use crate::residency::{ResidencyPlan, WINDOW_BYTES};
use std::ops::Range;

/// Follows the passes over a [`ResidencyPlan`], as pure data: it is told where the pass is, and says what to do.
#[derive(Debug, Clone)]
pub struct ReadAhead {
    plan: ResidencyPlan,
    chunks: Vec<Chunk>,
    using: Range<usize>,
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    OnDisk,
    Coming,
    InMemory,
}

/// What to do next with a chunk, by its place in the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Drop it: the pass is through with it.
    Release(usize),
    /// Ask for it, without waiting.
    Ask(usize),
    /// Wait until it is in memory, and tell [`ReadAhead::arrived`].
    Await(usize),
}

impl ReadAhead {
    /// Begins before the first pass, with nothing in memory.
    pub fn new(plan: ResidencyPlan) -> Self {
        Self { chunks: vec![Chunk::OnDisk; plan.chunks().len()], plan, using: 0..0 }
    }

    /// What stays and what is streamed.
    pub fn plan(&self) -> &ResidencyPlan {
        &self.plan
    }

    /// Fits what stays into the room for weights. Chunks that stay no longer are dropped like those behind the pass.
    pub fn resize(&mut self, room: u64) {
        self.plan.resize(room);
    }

    /// The pass needs these chunks now, and is through with those before. Whether it is a new pass: it went back.
    pub fn turn_to(&mut self, using: Range<usize>) -> bool {
        let begins = using.start < self.using.start;
        self.using = using.start..using.end.min(self.chunks.len());
        begins
    }

    /// Whether all that the pass needs now is in memory.
    pub fn ready(&self) -> bool {
        self.using.clone().all(|chunk| self.chunks[chunk] == Chunk::InMemory)
    }

    /// What to do next; `None` if nothing until the pass moves on.
    pub fn step(&mut self) -> Option<Step> {
        let window = self.window();
        let behind = |chunk: &usize| self.chunks[*chunk] != Chunk::OnDisk && !self.plan.stays(*chunk);
        if let Some(chunk) = (0..self.chunks.len()).filter(behind).find(|chunk| !window.contains(chunk)) {
            self.chunks[chunk] = Chunk::OnDisk;
            return Some(Step::Release(chunk));
        }
        let first = |place| window.iter().copied().find(|&chunk| self.chunks[chunk] == place);
        if let Some(chunk) = first(Chunk::OnDisk) {
            self.chunks[chunk] = Chunk::Coming;
            return Some(Step::Ask(chunk));
        }
        first(Chunk::Coming).map(Step::Await)
    }

    /// A chunk is in memory, or can't be read and must be left to whoever touches it.
    pub fn arrived(&mut self, chunk: usize) {
        self.chunks[chunk] = Chunk::InMemory;
    }

    /// What the pass needs now, and what comes next as far as the window holds it. What is in memory to stay takes
    /// nothing of the window.
    fn window(&self) -> Vec<usize> {
        let (count, mut bytes, mut window) = (self.chunks.len(), 0, Vec::new());
        for chunk in (self.using.start..self.using.start + count).map(|place| place % count) {
            if self.plan.stays(chunk) && self.chunks[chunk] == Chunk::InMemory {
                continue;
            }
            let stretch = &self.plan.chunks()[chunk];
            bytes += stretch.end - stretch.start;
            if bytes > WINDOW_BYTES && !self.using.contains(&chunk) {
                break;
            }
            window.push(chunk);
        }
        window
    }
}
