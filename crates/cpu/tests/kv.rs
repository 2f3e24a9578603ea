//! Whole models with pages in every precision: what stays equal, what stays near, and what it saves.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, KvPrecision, PageSet};
use lichen_cpu::{CpuConfig, CpuExecutor, Numerics, Weight, table};
use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::Batch;
use std::path::Path;

const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];
const SEALED: [KvPrecision; 3] = [KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];

fn executor(family: &str, isa: Option<&'static str>) -> CpuExecutor {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    let checkpoint = Checkpoint::open(&data.join(family).join("model-f16.gguf")).unwrap();
    let plan = import(&checkpoint, None).unwrap().lower();
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint.tensor(&decl.name).unwrap();
        Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
    });
    let weights = weights.collect();
    let config = CpuConfig { threads: 2, numerics: Numerics::Fast, isa };
    CpuExecutor::new(plan, weights, config).unwrap()
}

fn tokens(executor: &CpuExecutor, count: usize) -> Vec<u32> {
    let vocab = executor.vocab() as u32;
    (0..count as u32).map(|i| (i * i * 7 + i * 3 + 1) % vocab).collect()
}

/// The logits of one step.
fn step(executor: &mut CpuExecutor, batch: &Batch) -> Vec<f32> {
    let mut logits = Vec::new();
    executor.run(batch, &mut logits).unwrap();
    logits
}

/// Logits of tokens `past..past + tokens.len()`, in steps of at most `chunk`.
fn run(executor: &mut CpuExecutor, sequence: u64, past: usize, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let mut batch = Batch::default();
        batch.push(sequence, past + index * chunk, part, true);
        logits.extend(step(executor, &batch));
    }
    logits
}

/// Mean divergence of `logits` from `reference`, in nats.
fn divergence(reference: &[f32], logits: &[f32], vocab: usize) -> f64 {
    let probabilities = |row: &[f32]| -> Vec<f64> {
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        let exponentials: Vec<f64> = row.iter().map(|&logit| f64::from(logit - largest).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        exponentials.into_iter().map(|value| value / sum).collect()
    };
    let rows = reference.chunks_exact(vocab).zip(logits.chunks_exact(vocab));
    let divergences = rows.map(|(p, q)| {
        let terms = probabilities(p).into_iter().zip(probabilities(q)).map(|(p, q)| p * (p / q).ln());
        terms.sum::<f64>()
    });
    let divergences: Vec<f64> = divergences.collect();
    divergences.iter().sum::<f64>() / divergences.len() as f64
}

#[test]
fn requantising_in_the_middle_of_a_generation_saves_what_was_predicted_and_stays_near() {
    for family in FAMILIES {
        let mut executor = executor(family, None);
        let tokens = tokens(&executor, 300);
        let whole = run(&mut executor, 0, 0, &tokens, 16);
        let budgets = [1e-4, 4e-3, 8e-3];
        for (sequence, (precision, budget)) in (1..).zip(SEALED.into_iter().zip(budgets)) {
            run(&mut executor, sequence, 0, &tokens[..260], 16);
            let (before, pages) = (executor.kv_bytes(), executor.sequence_pages(sequence).to_vec());
            let given_back = executor.requantise(PageSet::Sequence(sequence), precision).unwrap();
            // Of five pages the first, the newest full one and the open one stay as they are.
            let saved = executor.page_bytes(KvPrecision::F16) - executor.page_bytes(precision);
            assert_eq!(given_back, 2 * saved, "{family} {precision}");
            assert_eq!(executor.kv_bytes(), before - given_back, "{family} {precision}");
            assert_eq!(executor.sequence_pages(sequence), pages, "{family} {precision}");
            let rest = run(&mut executor, sequence, 260, &tokens[260..], 16);
            let vocab = executor.vocab();
            let off = divergence(&whole[260 * vocab..], &rest, vocab);
            assert!(off <= budget, "{family} {precision}: {off}");
            executor.drop_sequence(sequence);
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits_in_every_precision() {
    for family in FAMILIES {
        for precision in SEALED {
            let mut all = table::instruction_sets().map(|isa| {
                let mut executor = executor(family, Some(isa));
                executor.set_kv_precision(precision);
                let tokens = tokens(&executor, 260);
                run(&mut executor, 0, 0, &tokens, 48)
            });
            let best = all.next().unwrap();
            assert!(all.all(|other| other == best), "{family} {precision}");
        }
    }
}

#[test]
fn a_prefix_is_the_same_for_all_who_have_it_after_it_was_requantised() {
    for family in FAMILIES {
        let mut executor = executor(family, None);
        let tokens = tokens(&executor, 330);
        run(&mut executor, 1, 0, &tokens[..320], 64);
        let held = executor.hold(1);
        executor.adopt(2, &held, 320);
        for page in &held {
            executor.requantise(PageSet::Page(*page), KvPrecision::Q5).unwrap();
        }
        let precision = |executor: &CpuExecutor, page| executor.export_page(page).unwrap().0;
        let precisions: Vec<KvPrecision> = held.iter().map(|page| precision(&executor, *page)).collect();
        let (open, sealed) = (KvPrecision::F16, KvPrecision::Q5);
        assert_eq!(precisions, [open, sealed, sealed, sealed, open], "{family}");
        let own = run(&mut executor, 1, 320, &tokens[320..], 1);
        let adopted = run(&mut executor, 2, 320, &tokens[320..], 1);
        assert_eq!(own, adopted, "{family}");
        // Someone who leaves the prefix in the middle of a sealed page changes nothing for the others.
        executor.adopt(3, &held, 150);
        run(&mut executor, 3, 150, &tokens[..40], 40);
        executor.drop_sequence(2);
        executor.adopt(2, &held, 320);
        assert_eq!(run(&mut executor, 2, 320, &tokens[320..], 1), own, "{family}");
    }
}

#[test]
fn guesses_that_are_taken_back_leave_no_trace() {
    for precision in SEALED {
        let mut straight = executor("llama", None);
        let mut guessing = executor("llama", None);
        straight.set_kv_precision(precision);
        guessing.set_kv_precision(precision);
        let tokens = tokens(&straight, 280);
        run(&mut straight, 0, 0, &tokens[..180], 180);
        run(&mut guessing, 0, 0, &tokens[..180], 180);
        for past in 180..280 {
            let expected = run(&mut straight, 0, past, &tokens[past..=past], 1);
            // Eight guesses, across the end of a page too, none of which is right.
            let mut step = vec![tokens[past]];
            step.extend([1, 2, 3, 4, 5, 6, 7, 8]);
            let logits = run(&mut guessing, 0, past, &step, 9);
            assert_eq!(logits[..straight.vocab()], expected, "{precision} at {past}");
        }
        assert_eq!(straight.kv_bytes(), guessing.kv_bytes());
    }
}

#[test]
fn pages_survive_a_trip_through_bytes() {
    for family in FAMILIES {
        let mut first = executor(family, None);
        first.set_kv_precision(KvPrecision::Q4);
        let tokens = tokens(&first, 300);
        run(&mut first, 0, 0, &tokens[..290], 64);
        let mut second = executor(family, None);
        let mut moved = Vec::new();
        for &page in first.sequence_pages(0) {
            let (precision, bytes) = first.export_page(page).unwrap();
            assert_eq!(bytes.len() as u64, first.page_bytes(precision));
            moved.push(second.import_page(precision, &bytes).unwrap());
        }
        second.adopt(7, &moved, 290);
        assert_eq!(first.kv_bytes(), second.kv_bytes());
        let expected = run(&mut first, 0, 290, &tokens[290..], 1);
        second.set_kv_precision(KvPrecision::Q4);
        assert_eq!(run(&mut second, 7, 290, &tokens[290..], 1), expected, "{family}");
    }
}
