//! Published models against what other implementations compute for them. `scripts/fetch-models` fetches the models;
//! the folder is `LICHEN_TEST_MODELS`, else where that script puts them.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, KvPrecision};
use lichen_cpu::{CpuConfig, CpuExecutor, Numerics, Weight};
use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::Batch;
use serde_json::Value;
use std::path::{Path, PathBuf};

struct Real {
    path: PathBuf,
    expected: Value,
    ids: Vec<u32>,
}

fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LICHEN_TEST_MODELS") {
        return Some(PathBuf::from(named));
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join("lichen/test-models")).filter(|folder| folder.is_dir())
}

fn integers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|item| item.as_u64().unwrap() as u32).collect()
}

impl Real {
    fn find(name: &str) -> Option<Self> {
        let Some(folder) = folder() else {
            eprintln!("{name} skipped: run scripts/fetch-models or set LICHEN_TEST_MODELS");
            return None;
        };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/real").join(name);
        let expected: Value = serde_json::from_slice(&std::fs::read(data).unwrap()).unwrap();
        // The files are published with differing capitals.
        let file = expected["model"].as_str().unwrap().to_lowercase();
        let path = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.file_name().unwrap().to_string_lossy().to_lowercase() == file)
            .unwrap_or_else(|| panic!("{file} is not in {}; run scripts/fetch-models", folder.display()));
        let ids = integers(&expected["ids"]);
        Some(Self { path, expected, ids })
    }

    fn executor(&self, numerics: Numerics, threads: usize) -> CpuExecutor {
        let checkpoint = Checkpoint::open(&self.path).unwrap();
        let plan = import(&checkpoint, None).unwrap().lower();
        let weights = plan.weights.iter().map(|decl| {
            let info = checkpoint.tensor(&decl.name).unwrap();
            Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
        });
        let weights = weights.collect();
        let config = CpuConfig { threads, numerics, ..CpuConfig::default() };
        CpuExecutor::new(plan, weights, config).unwrap()
    }

    /// Log-probabilities of the text's own tokens after the first.
    fn token_log_probabilities(&self, logits: &[f32]) -> Vec<f64> {
        let rows = logits.chunks_exact(logits.len() / self.ids.len());
        rows.zip(&self.ids[1..]).map(|(row, &token)| log_probability(row, token)).collect()
    }

    fn targets(&self) -> Vec<f64> {
        let targets = self.expected["token_logprobs"].as_array().unwrap();
        let targets: Vec<f64> = targets.iter().map(|value| value.as_f64().unwrap()).collect();
        assert_eq!(targets.len(), self.ids.len() - 1);
        targets
    }

    /// Relative error of a perplexity.
    fn perplexity_error(&self, perplexity: f64) -> f64 {
        (perplexity / self.expected["perplexity"].as_f64().unwrap() - 1.0).abs()
    }
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
    for (index, part) in tokens.chunks(chunk).enumerate() {
        let mut batch = Batch::default();
        batch.push(sequence, index * chunk, part, true);
        logits.extend(step(executor, &batch));
    }
    logits
}

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

fn perplexity(log_probabilities: &[f64]) -> f64 {
    (-log_probabilities.iter().sum::<f64>() / log_probabilities.len() as f64).exp()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    best.0 as u32
}

fn single_precision(name: &str, tolerance: f64) {
    let Some(real) = Real::find(name) else { return };
    let mut executor = real.executor(Numerics::Float32, 2);
    let logits = run(&mut executor, 0, &real.ids, 512);
    let found = real.token_log_probabilities(&logits);
    for (index, (found, target)) in found.iter().zip(real.targets()).enumerate() {
        assert!((found - target).abs() <= tolerance, "{name}, token {index}: {found} instead of {target}");
    }
    let perplexity = perplexity(&found);
    assert!(real.perplexity_error(perplexity) <= 1e-4, "{name}: perplexity {perplexity}");
    let vocab = executor.vocab();
    for (row, best) in real.expected["top10_logprobs"].as_object().unwrap() {
        let logits = &logits[row.parse::<usize>().unwrap() * vocab..][..vocab];
        for pair in best.as_array().unwrap() {
            let (token, target) = (pair[0].as_u64().unwrap() as u32, pair[1].as_f64().unwrap());
            let found = log_probability(logits, token);
            let off = (found - target).abs();
            assert!(off <= tolerance, "{name}, row {row}, token {token}: {found} instead of {target}");
        }
    }
    continues_as_recorded(name, &real, &mut executor);
}

/// All recorded continuations at once, as sequences of one batch.
fn continues_as_recorded(name: &str, real: &Real, executor: &mut CpuExecutor) {
    let recorded = real.expected["greedy"].as_object().unwrap();
    let prompts: Vec<Vec<u32>> = recorded.values().map(|run| integers(&run["prompt_ids"])).collect();
    let expected: Vec<Vec<u32>> = recorded.values().map(|run| integers(&run["ids"])).collect();
    assert!(expected.len() == 3 && expected.iter().all(|ids| ids.len() == 48), "{name}");
    let mut past = vec![0; prompts.len()];
    let mut next = prompts;
    let mut found = vec![Vec::new(); expected.len()];
    for _ in 0..48 {
        let mut batch = Batch::default();
        for (index, tokens) in next.iter().enumerate() {
            batch.push(1 + index as u64, past[index], tokens, false);
            past[index] += tokens.len();
        }
        let logits = step(executor, &batch);
        for (index, row) in logits.chunks_exact(executor.vocab()).enumerate() {
            let token = argmax(row);
            found[index].push(token);
            next[index] = vec![token];
        }
    }
    for (prompt, (found, expected)) in recorded.keys().zip(found.iter().zip(&expected)) {
        assert_eq!(found, expected, "{name}: {prompt}");
    }
}

/// How far computing with quantised weights is from the reference: relative error of the perplexity, and the largest
/// error of a token's log-probability.
#[derive(Clone, Copy, Default)]
struct Distance {
    perplexity: f64,
    log_probability: f64,
}

impl Distance {
    fn mean(all: &[Self]) -> Self {
        let of = |part: fn(&Self) -> f64| all.iter().map(part).sum::<f64>() / all.len() as f64;
        Self { perplexity: of(|d| d.perplexity), log_probability: of(|d| d.log_probability) }
    }
}

impl std::fmt::Display for Distance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "perplexity {:.3} %, log-probability {:.4}", self.perplexity * 100.0, self.log_probability)
    }
}

/// What llama.cpp's own kernels for quantised weights cost, in each of the settings it was measured with.
fn llama_cpp(real: &Real) -> Vec<Distance> {
    let settings = real.expected["llama_cpp_quantised_kernels"].as_object().unwrap();
    let distance = |setting: &Value| Distance {
        perplexity: real.perplexity_error(setting["perplexity"].as_f64().unwrap()),
        log_probability: setting["max_abs_target_logprob"].as_f64().unwrap(),
    };
    settings.values().map(distance).collect()
}

/// What the fast path costs, whatever the threads, the steps and the run.
fn fast(real: &Real, name: &str) -> Distance {
    let mut two = real.executor(Numerics::Fast, 2);
    let whole = run(&mut two, 0, &real.ids, 512);
    assert!(run(&mut two, 1, &real.ids, 1) == whole, "{name}: token by token computes something else");
    assert!(run(&mut two, 2, &real.ids, 512) == whole, "{name}: the second run computes something else");
    let mut one = real.executor(Numerics::Fast, 1);
    assert!(run(&mut one, 0, &real.ids, 512) == whole, "{name}: one thread computes something else than two");
    let found = real.token_log_probabilities(&whole);
    let off = found.iter().zip(real.targets()).map(|(found, target)| (found - target).abs());
    Distance {
        perplexity: real.perplexity_error(perplexity(&found)),
        log_probability: off.fold(0.0, f64::max),
    }
}

const SMOLLM2: &str = "smollm2-135m-instruct-q4_1.json";
const QWEN2_5_CODER: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.json";
const GEMMA3: &str = "gemma-3-270m-q4_k_m.json";

#[test]
fn smollm2_in_single_precision() {
    single_precision(SMOLLM2, 1e-3);
}

#[test]
fn qwen2_5_coder_in_single_precision() {
    single_precision(QWEN2_5_CODER, 1e-3);
}

/// The reference's GELU is a table of half precision.
#[test]
fn gemma3_in_single_precision() {
    single_precision(GEMMA3, 1e-2);
}

/// A single largest error says as much about the text as about the kernels, so llama.cpp is compared with on average
/// over models and settings.
#[test]
fn fast_is_as_near_as_llama_cpp() {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for name in [SMOLLM2, QWEN2_5_CODER, GEMMA3] {
        let Some(real) = Real::find(name) else { return };
        let (fast, peer) = (fast(&real, name), llama_cpp(&real));
        eprintln!("{name}: {fast}, llama.cpp {}", Distance::mean(&peer));
        assert!(fast.perplexity <= 0.02, "{name}");
        ours.push(fast);
        theirs.push(Distance::mean(&peer));
    }
    let (ours, theirs) = (Distance::mean(&ours), Distance::mean(&theirs));
    eprintln!("all models: {ours}, llama.cpp {theirs}");
    assert!(ours.perplexity <= theirs.perplexity && ours.log_probability <= theirs.log_probability);
}

/// The recorded text with what the model was recorded to answer, some five pages.
fn long_text(real: &Real) -> Vec<u32> {
    let recorded = real.expected["greedy"].as_object().unwrap().values();
    let parts = recorded.flat_map(|run| [integers(&run["prompt_ids"]), integers(&run["ids"])]);
    real.ids.iter().copied().chain(parts.flatten()).collect()
}

/// Mean divergence, in nats, of the predictions with pages sealed in each precision from those in half precision, over
/// the tokens that have sealed pages before them. All runs advance together, one page at a time.
fn divergences(real: &Real, precisions: &[KvPrecision]) -> Vec<f64> {
    const STEP: usize = 64;
    // Elsewhere a difference of any size moves some activation to the next of its 8-bit values.
    let mut executor = real.executor(Numerics::Float32, 2);
    let (tokens, vocab) = (long_text(real), executor.vocab());
    let (mut sums, mut count) = (vec![0.0; precisions.len()], 0);
    let all: Vec<KvPrecision> = [KvPrecision::F16].iter().chain(precisions).copied().collect();
    for (index, part) in tokens.chunks(STEP).enumerate() {
        let mut logits = Vec::new();
        for (sequence, precision) in (0..).zip(&all) {
            executor.set_kv_precision(*precision);
            let mut batch = Batch::default();
            batch.push(sequence, index * STEP, part, true);
            logits.push(step(&mut executor, &batch));
        }
        // Of three full pages before a step the second is sealed.
        let sealed = index >= 3;
        count += if sealed { part.len() } else { 0 };
        for (sum, found) in sums.iter_mut().zip(&logits[1..]) {
            assert_eq!(*found != logits[0], sealed, "pages are sealed from the fourth step on");
            let rows = logits[0].chunks_exact(vocab).zip(found.chunks_exact(vocab));
            *sum += rows.map(|(reference, found)| kullback_leibler(reference, found)).sum::<f64>();
        }
    }
    assert!(count >= 64, "{count} tokens have sealed pages before them");
    sums.into_iter().map(|sum| sum / count as f64).collect()
}

fn kullback_leibler(reference: &[f32], logits: &[f32]) -> f64 {
    let normaliser = |row: &[f32]| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(largest) + row.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln()
    };
    let (p, q) = (normaliser(reference), normaliser(logits));
    let pairs = reference.iter().zip(logits).map(|(&a, &b)| (f64::from(a) - p, f64::from(b) - q));
    pairs.map(|(a, b)| a.exp() * (a - b)).sum()
}

/// The budgets are for any model: about twice the worst that was measured.
#[test]
fn sealed_pages_stay_near_half_precision() {
    let budgets = [(KvPrecision::Q8, 1e-5), (KvPrecision::Q5, 1.5e-3), (KvPrecision::Q4, 2e-3)];
    for name in [SMOLLM2, QWEN2_5_CODER, GEMMA3] {
        let Some(real) = Real::find(name) else { return };
        let costs = divergences(&real, &budgets.map(|(precision, _)| precision));
        for (cost, (precision, budget)) in costs.into_iter().zip(budgets) {
            eprintln!("{name}: {precision} costs {cost:.6} nats");
            assert!(cost <= budget, "{name}: {precision} costs {cost} nats");
        }
    }
}
