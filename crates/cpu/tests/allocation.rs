//! Decode steps use the space of the steps before them. What is allocated is counted in the whole process, so this
//! program has one test.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, KvPrecision};
use lichen_cpu::{CpuConfig, CpuExecutor, Numerics, Weight};
use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::Batch;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::path::Path;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const MODELS: [&str; 7] = [
    "llama/model-f16.gguf",
    "llama/model-q8_0.gguf",
    "llama-k256/model-q4_k_m.gguf",
    "qwen2/model-q8_0.gguf",
    "qwen3/model-f16.gguf",
    "gemma3/model-f16.gguf",
    "phi3/model-q8_0.gguf",
];
/// Tokens of a page.
const PAGE: usize = 64;
/// Tokens of the prompts: a page, so that the steps after them have another one.
const PROMPT: usize = PAGE;
/// Steps before the count begins: the caller's logits and the first token of the new page.
const WARM_UP: usize = 2;

fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn executor(model: &str, numerics: Numerics, threads: usize) -> CpuExecutor {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data").join(model);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = import(&checkpoint, None).unwrap().lower();
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint.tensor(&decl.name).unwrap();
        Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
    });
    let weights = weights.collect();
    CpuExecutor::new(plan, weights, CpuConfig { threads, numerics, ..CpuConfig::default() }).unwrap()
}

/// Sequences that decode together.
struct Decoding {
    executor: CpuExecutor,
    sequences: u64,
    past: usize,
    batch: Batch,
    logits: Vec<f32>,
}

impl Decoding {
    /// Runs the prompts, and the steps after which nothing should be allocated any more.
    fn begin(mut executor: CpuExecutor, sequences: u64) -> Self {
        let (prompt, mut logits) = ([1; PROMPT], Vec::new());
        for sequence in 0..sequences {
            let mut batch = Batch::default();
            batch.push(sequence, 0, &prompt, false);
            executor.run(&batch, &mut logits).unwrap();
        }
        let mut decoding = Self { executor, sequences, past: PROMPT, batch: Batch::default(), logits };
        decoding.run(WARM_UP);
        decoding
    }

    /// Runs steps, and gives what they have allocated.
    fn run(&mut self, steps: usize) -> usize {
        let before = allocations();
        for _ in 0..steps {
            self.batch.clear();
            (0..self.sequences).for_each(|sequence| self.batch.push(sequence, self.past, &[2], false));
            self.executor.run(&self.batch, &mut self.logits).unwrap();
            self.past += 1;
        }
        allocations() - before
    }

    /// Runs steps up to the end of the page.
    fn finish_page(&mut self) -> usize {
        self.run(self.past.next_multiple_of(PAGE) - self.past)
    }
}

#[test]
fn decoding_allocates_pages_and_nothing_else() {
    for model in MODELS {
        for numerics in [Numerics::Fast, Numerics::Float32] {
            for sequences in [1, 2, 5] {
                let mut decoding = Decoding::begin(executor(model, numerics, 1), sequences);
                assert_eq!(decoding.finish_page(), 0, "{model} {numerics:?}, {sequences} sequences");
                // The table of pages may grow, and each sequence's list of its pages.
                let new_page = decoding.run(1);
                assert!(new_page <= 1 + sequences as usize, "{model}: {new_page} for a page of each");
                assert_eq!(decoding.finish_page(), 0, "{model} {numerics:?}, {sequences} sequences");
            }
        }
    }
    pages_that_need_not_be_sealed_cost_nothing();
    threads_find_their_space_in_some_steps();
}

fn pages_that_need_not_be_sealed_cost_nothing() {
    let mut executor = executor(MODELS[1], Numerics::Fast, 1);
    executor.set_kv_precision(KvPrecision::Q8);
    let mut decoding = Decoding::begin(executor, 2);
    for _ in 0..3 {
        decoding.finish_page();
        // One page is new, and another one may be sealed.
        decoding.run(2);
        assert_eq!(decoding.finish_page(), 0, "at {}", decoding.past);
    }
}

/// Which thread does what is left to chance, so each finds the largest of its tasks after some steps only.
fn threads_find_their_space_in_some_steps() {
    let mut decoding = Decoding::begin(executor(MODELS[1], Numerics::Fast, 2), 2);
    let quiet = (0..20).any(|_| {
        decoding.finish_page();
        decoding.run(1);
        decoding.finish_page() == 0
    });
    assert!(quiet, "no page without an allocation");
}
