//! Whole models of every family: single precision against transformers, and what must be equal to the bit.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::Executor;
use lichen_cpu::{CpuConfig, CpuExecutor, Numerics, ReadObserver, Weight, table};
use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::{Batch, Op, Plan};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const FAMILIES: [&str; 9] =
    ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "phi3-longrope", "llama-k256"];

struct Case {
    family: &'static str,
    dtype: String,
    path: PathBuf,
    tokens: Vec<u32>,
    vocab: usize,
    /// Rows of the sequence with their logits.
    expected: Vec<(usize, Vec<f32>)>,
}

fn npy(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[10 + header..].as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

fn integers(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|item| item.as_u64().unwrap() as u32).collect()
}

fn cases() -> Vec<Case> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    let mut cases = Vec::new();
    for family in FAMILIES {
        let folder = data.join(family);
        let json = std::fs::read(folder.join("expected.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let mut tokens = integers(&json["prompt"]);
        tokens.extend(integers(&json["greedy"]));
        let vocab = json["vocab_size"].as_u64().unwrap() as usize;
        let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
        files.sort();
        for path in files {
            let dtype = path.file_stem().unwrap().to_str().unwrap().replace("model-", "");
            let quantised = &json["quantised"][&dtype];
            let (name, rows) = if quantised.is_null() {
                ("logits.npy".to_owned(), (0..tokens.len() as u32).collect())
            } else {
                (format!("logits-{dtype}.npy"), integers(&quantised["rows"]))
            };
            let logits = npy(&folder.join(name));
            let rows = rows.into_iter().map(|row| row as usize);
            let expected = rows.zip(logits.chunks_exact(vocab).map(<[f32]>::to_vec)).collect();
            cases.push(Case { family, dtype, path, tokens: tokens.clone(), vocab, expected });
        }
    }
    assert!(cases.len() >= 27, "{} model files", cases.len());
    cases
}

fn bound(case: &Case) -> (Plan, Vec<Weight>) {
    let checkpoint = Checkpoint::open(&case.path).unwrap();
    let plan = import(&checkpoint, None).unwrap().lower();
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint.tensor(&decl.name).unwrap();
        Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
    });
    let weights = weights.collect();
    (plan, weights)
}

fn executor(case: &Case, config: CpuConfig) -> CpuExecutor {
    let (plan, weights) = bound(case);
    CpuExecutor::new(plan, weights, config).unwrap()
}

/// The logits of one step.
fn step(executor: &mut CpuExecutor, batch: &Batch) -> Vec<f32> {
    let mut logits = Vec::new();
    executor.run(batch, &mut logits).unwrap();
    logits
}

/// Logits of all rows, `[tokens, vocab]`, in steps of `chunk`.
fn run(executor: &mut CpuExecutor, sequence: u64, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    let mut past = 0;
    for part in tokens.chunks(chunk) {
        let mut batch = Batch::default();
        batch.push(sequence, past, part, true);
        logits.extend(step(executor, &batch));
        past += part.len();
    }
    logits
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn config(numerics: Numerics, threads: usize) -> CpuConfig {
    CpuConfig { threads, numerics, ..CpuConfig::default() }
}

#[test]
fn single_precision_agrees_with_transformers_on_every_instruction_set() {
    for case in cases() {
        // gemma3 in q8_0 is measured against llama.cpp, whose GELU is a table of half precision.
        let tolerance = if case.family == "gemma3" && case.dtype == "q8_0" { 5e-3 } else { 1e-3 };
        for isa in table::instruction_sets() {
            let config = CpuConfig { isa: Some(isa), ..config(Numerics::Float32, 1) };
            let logits = run(&mut executor(&case, config), 0, &case.tokens, 512);
            for (row, expected) in &case.expected {
                let off = distance(&logits[row * case.vocab..][..case.vocab], expected);
                assert!(off <= tolerance, "{} {} {isa} row {row}: off by {off}", case.family, case.dtype);
            }
        }
    }
}

#[test]
fn the_fast_path_stays_within_what_eight_bit_activations_cost() {
    for case in cases() {
        for isa in table::instruction_sets() {
            let fast = CpuConfig { isa: Some(isa), ..config(Numerics::Fast, 1) };
            let exact = run(&mut executor(&case, config(Numerics::Float32, 1)), 0, &case.tokens, 512);
            let tolerance = match (case.family, case.dtype.as_str()) {
                (_, "f32" | "f16" | "bf16") => 2e-2,
                ("llama-k256", _) => 0.4,
                _ => 0.26,
            };
            let logits = run(&mut executor(&case, fast), 0, &case.tokens, 512);
            // The rows at which llama.cpp's kernels were measured, which the tolerances come from.
            for (row, _) in &case.expected {
                let range = row * case.vocab..(row + 1) * case.vocab;
                let off = distance(&logits[range.clone()], &exact[range]);
                assert!(off <= tolerance, "{} {} {isa} row {row}: off by {off}", case.family, case.dtype);
            }
        }
    }
}

#[test]
fn neither_chunks_nor_threads_nor_neighbours_change_a_bit() {
    for case in cases() {
        for numerics in [Numerics::Float32, Numerics::Fast] {
            let mut one = executor(&case, config(numerics, 1));
            let whole = run(&mut one, 0, &case.tokens, 512);
            for chunk in [1, 3, 7] {
                assert_eq!(run(&mut one, 1, &case.tokens, chunk), whole, "{} {}", case.family, case.dtype);
            }
            for threads in [2, 3] {
                let mut more = executor(&case, config(numerics, threads));
                for chunk in [1, 512] {
                    assert_eq!(
                        run(&mut more, 0, &case.tokens, chunk),
                        whole,
                        "{} {}",
                        case.family,
                        case.dtype
                    );
                }
                let mut batch = Batch::default();
                batch.push(2, 0, &case.tokens[3..9], true);
                batch.push(3, 0, &case.tokens, true);
                batch.push(4, 0, &case.tokens[..1], true);
                let together = step(&mut more, &batch);
                assert_eq!(
                    &together[6 * case.vocab..][..whole.len()],
                    whole,
                    "{} {}",
                    case.family,
                    case.dtype
                );
            }
        }
    }
}

#[test]
fn a_chunk_in_the_middle_of_a_prompt_needs_no_logits() {
    for case in cases().iter().filter(|case| case.family == "llama") {
        let whole = run(&mut executor(case, config(Numerics::Fast, 2)), 0, &case.tokens, 512);
        let mut chunked = executor(case, config(Numerics::Fast, 2));
        let (first, rest) = case.tokens.split_at(case.tokens.len() / 2);
        let mut batch = Batch::default();
        batch.push(0, 0, first, false);
        batch.outputs.clear();
        assert!(step(&mut chunked, &batch).is_empty());
        let mut batch = Batch::default();
        batch.push(0, first.len(), rest, true);
        let logits = step(&mut chunked, &batch);
        assert_eq!(logits, &whole[first.len() * case.vocab..], "{} {}", case.family, case.dtype);
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for case in cases() {
        let mut logits = table::instruction_sets().map(|isa| {
            let config = CpuConfig { isa: Some(isa), ..config(Numerics::Fast, 1) };
            run(&mut executor(&case, config), 0, &case.tokens, 512)
        });
        let best = logits.next().unwrap();
        assert!(logits.all(|other| other == best), "{} {}", case.family, case.dtype);
    }
}

/// A prompt of three pages, longer than the oracle's.
fn long_prompt(case: &Case) -> Vec<u32> {
    case.tokens.iter().copied().cycle().take(150).collect()
}

#[test]
fn a_shared_prefix_is_as_good_as_a_cold_one_and_stays_as_it_was() {
    for case in cases().iter().filter(|case| case.dtype == "f16" || case.dtype == "q8_0") {
        let tokens = long_prompt(case);
        let mut executor = executor(case, config(Numerics::Fast, 2));
        let cold = run(&mut executor, 1, &tokens, 512);
        let pages = executor.hold(1);
        assert_eq!((pages.len(), executor.pages()), (3, 3));
        executor.drop_sequence(1);
        // In the middle of a page, at its end, and everything but the last token.
        for (sequence, cut) in [(2, 70), (3, 128), (4, 149)] {
            let mut other = tokens[..cut].to_vec();
            other.extend(tokens[cut..].iter().rev());
            executor.adopt(sequence, &pages, cut);
            assert_eq!(executor.users(pages[0]), 1);
            let mut diverging = Batch::default();
            diverging.push(sequence, cut, &other[cut..], true);
            step(&mut executor, &diverging);
            executor.drop_sequence(sequence);
            executor.adopt(sequence, &pages, cut);
            let mut same = Batch::default();
            same.push(sequence, cut, &tokens[cut..], true);
            let warm = step(&mut executor, &same);
            assert_eq!(warm, cold[cut * case.vocab..], "{} {} from {cut}", case.family, case.dtype);
            executor.drop_sequence(sequence);
        }
        pages.into_iter().for_each(|page| executor.release(page));
        assert_eq!(executor.pages(), 0, "no page is left");
    }
}

#[test]
fn hidden_states_agree_with_transformers() {
    for case in cases().iter().filter(|case| case.dtype == "f32") {
        let json = std::fs::read(case.path.with_file_name("expected.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let prompt = integers(&json["prompt"]);
        let all = npy(&case.path.with_file_name("hidden.npy"));
        let mut executor = executor(case, config(Numerics::Float32, 1));
        let mut batch = Batch::default();
        batch.push(0, 0, &prompt, true);
        let hidden = executor.hidden(&batch).unwrap();
        let off = distance(&hidden, &all[all.len() - hidden.len()..]);
        assert!(off <= 1e-3, "{}: off by {off}", case.family);
    }
}

/// Where the bytes are that somebody is told of: address and length.
#[derive(Default)]
struct Reads {
    scans: Mutex<Vec<(usize, usize)>>,
    rows: Mutex<Vec<(usize, usize)>>,
}

impl ReadObserver for Reads {
    fn scan(&self, bytes: &[u8]) {
        self.scans.lock().unwrap().push((bytes.as_ptr().addr(), bytes.len()));
    }

    fn row(&self, bytes: &[u8]) {
        self.rows.lock().unwrap().push((bytes.as_ptr().addr(), bytes.len()));
    }
}

#[test]
fn who_watches_is_told_of_each_matrix_in_the_order_of_the_plan_and_changes_no_bit() {
    for case in cases() {
        let (plan, weights) = bound(&case);
        let rows = |weight: usize, rows: std::ops::Range<usize>| {
            let bytes = weights[weight].bytes.len() / plan.weights[weight].rows();
            (weights[weight].bytes.as_ptr().addr() + rows.start * bytes, rows.len() * bytes)
        };
        let (mut scans, mut looked_up) = (Vec::new(), Vec::new());
        for op in &plan.steps {
            match op {
                Op::Embed { table, .. } => {
                    looked_up.extend(
                        case.tokens.iter().map(|&token| token as usize).map(|t| rows(table.0, t..t + 1)),
                    );
                }
                Op::Linear { projections, .. } => {
                    scans.extend(projections.iter().map(|part| rows(part.weight.0, part.row_range.clone())));
                }
                Op::Logits { weight, .. } => scans.push(rows(weight.0, 0..plan.vocab)),
                _ => {}
            }
        }
        let whole = run(&mut executor(&case, config(Numerics::Fast, 2)), 0, &case.tokens, 512);
        let reads = Arc::new(Reads::default());
        let watched = CpuExecutor::new(plan.clone(), weights.clone(), config(Numerics::Fast, 2)).unwrap();
        let logits = run(&mut watched.with_observer(reads.clone()), 0, &case.tokens, 512);
        assert_eq!(logits, whole, "{} {}", case.family, case.dtype);
        assert_eq!(*reads.scans.lock().unwrap(), scans, "{} {}", case.family, case.dtype);
        assert_eq!(*reads.rows.lock().unwrap(), looked_up, "{} {}", case.family, case.dtype);
    }
}
