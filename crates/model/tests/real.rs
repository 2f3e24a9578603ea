//! Published models against log-probabilities of other implementations. Needs `LICHEN_TEST_MODELS`, a folder with the GGUF
//! files named in `oracle/data/real`; takes minutes without optimisation.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::{Batch, Plan, Reference, WeightId, Weights};
use lichen_tensor::{DType, SharedBytes, quant};

/// Decodes rows as they are asked for.
struct Stored(Vec<(DType, usize, SharedBytes)>);

impl Stored {
    fn new(plan: &Plan, checkpoint: &Checkpoint) -> Self {
        let entry = |decl: &lichen_op::WeightDecl| {
            let info = checkpoint.tensor(&decl.name).unwrap();
            let row_bytes = info.dtype.bytes_for(decl.row_len() as u64).unwrap() as usize;
            (info.dtype, row_bytes, checkpoint.data(info))
        };
        Self(plan.weights.iter().map(entry).collect())
    }
}

impl Weights for Stored {
    fn row(&self, weight: WeightId, row: usize, out: &mut [f32]) {
        let (dtype, row_bytes, bytes) = &self.0[weight.0];
        quant::decode(*dtype, &bytes[row * row_bytes..][..*row_bytes], out).unwrap();
    }
}

fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

fn check(name: &str, tolerance: f64) {
    let Some(folder) = std::env::var_os("LICHEN_TEST_MODELS").map(PathBuf::from) else {
        eprintln!("LICHEN_TEST_MODELS is not set: {name} skipped");
        return;
    };
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/real").join(name);
    let expected: serde_json::Value = serde_json::from_slice(&std::fs::read(data).unwrap()).unwrap();
    // The files are published with differing capitals.
    let file = expected["model"].as_str().unwrap().to_lowercase();
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = entries
        .into_iter()
        .find(|path| path.file_name().unwrap().to_string_lossy().to_lowercase() == file)
        .unwrap_or_else(|| panic!("{file} is not in LICHEN_TEST_MODELS"));

    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan = import(&checkpoint, None).unwrap().lower();
    let vocab = plan.vocab;
    let weights = Stored::new(&plan, &checkpoint);
    let mut reference = Reference::new(plan, weights).unwrap();
    let ids: Vec<u32> =
        expected["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let mut batch = Batch::default();
    batch.push(0, 0, &ids, true);
    let logits = reference.run(&batch).unwrap();

    let targets = expected["token_logprobs"].as_array().unwrap();
    assert_eq!(targets.len(), ids.len() - 1);
    for (index, target) in targets.iter().enumerate() {
        let found = log_probability(&logits[index * vocab..][..vocab], ids[index + 1]);
        let target = target.as_f64().unwrap();
        assert!((found - target).abs() <= tolerance, "{name}, token {index}: {found} instead of {target}");
    }
}

#[test]
fn smollm2() {
    check("smollm2-135m-instruct-q4_1.json", 1e-3);
}

#[test]
fn qwen2_5_coder() {
    check("qwen2.5-coder-0.5b-instruct-q4_k_m.json", 1e-3);
}

/// The reference's GELU is a table of f16 values.
#[test]
fn gemma3() {
    check("gemma-3-270m-q4_k_m.json", 1e-2);
}
