//! The step loop on a real model allocates what leaves through the sink, and nothing else. What is allocated is counted
//! in the whole process, so this program has one test.
//!
//! The exceptions are vectors that grow with an answer: its tokens, which double here with its first one and not again,
//! and the list of its pages. Left out are guesses, whose index of the text doubles too, constraints,
//! log-probabilities, and a governor's thread, which looks at the memory several times a second.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use lichen_backend::Executor;
use lichen_cpu::{CpuConfig, CpuExecutor, Weight};
use lichen_engine::{Engine, EngineConfig};
use lichen_format::Checkpoint;
use lichen_generate::{Event, Generate, Request, Sampling};
use lichen_model::import;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::tokenizer;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Tokens of a page of keys and values.
const PAGE: usize = 64;
/// Prompts are a page and some tokens, and answers end with the second page.
const PROMPT: usize = PAGE + 4;
const ANSWER: usize = 2 * PAGE - PROMPT;
/// Steps before the count begins: sequences begin one after another.
const WARM_UP: usize = 12;

fn allocations() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}

fn executor() -> CpuExecutor {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/llama/model-q8_0.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = import(&checkpoint, None).unwrap().lower();
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint.tensor(&decl.name).unwrap();
        Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
    });
    let weights = weights.collect();
    CpuExecutor::new(plan, weights, CpuConfig { threads: 1, ..CpuConfig::default() }).unwrap()
}

/// How many allocations there have been whenever one of `sequences` answers gives out a token.
fn counts(sequences: usize, sampling: &Sampling) -> Vec<usize> {
    let executor = executor();
    let vocab = executor.vocab();
    let config = EngineConfig { speculate: false, ..EngineConfig::default() };
    let engine = Engine::start(
        Box::new(executor),
        tokenizer((0..vocab).map(|token| format!("t{token}")).collect()),
        config,
    )
    .unwrap();
    let counts = Arc::new(Mutex::new(Vec::with_capacity(2 * sequences * ANSWER)));
    let running = Arc::new(AtomicUsize::new(sequences));
    let mut tickets = Vec::new();
    for sequence in 0..sequences {
        let request = Request {
            prompt: (0..PROMPT).map(|at| ((at * 7 + sequence) % vocab) as u32).collect(),
            max_tokens: Some(ANSWER),
            sampling: sampling.clone(),
            ..Request::default()
        };
        let (counts, running) = (counts.clone(), running.clone());
        let sink = move |event| match event {
            Event::Text { .. } => counts.lock().unwrap().push(allocations()),
            Event::Finished { .. } => {
                running.fetch_sub(1, Ordering::Relaxed);
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        };
        tickets.push(engine.submit(request, Box::new(sink)).unwrap());
    }
    while running.load(Ordering::Relaxed) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(engine);
    Arc::into_inner(counts).unwrap().into_inner().unwrap()
}

#[test]
fn a_token_costs_one_allocation_its_text() {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let drawn =
        Sampling { seed: Some(1), top_k: 40, top_p: 0.9, repetition_penalty: 1.1, ..Sampling::default() };
    for sampling in [greedy, drawn] {
        for sequences in [1, 3] {
            let counts = counts(sequences, &sampling);
            assert_eq!(counts.len(), sequences * ANSWER);
            let steady = &counts[sequences * WARM_UP..sequences * (ANSWER - WARM_UP)];
            let each: Vec<usize> = steady.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(each.iter().all(|&count| count == 1), "{sequences} sequences, {sampling:?}: {each:?}");
        }
    }
}
