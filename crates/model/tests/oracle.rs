//! Tiny models of every family through importer, lowering and reference evaluator, against logits of other people's
//! implementations (`oracle/README.md`).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

use lichen_format::Checkpoint;
use lichen_model::import;
use lichen_op::{Batch, Plan, Reference, WeightId, Weights};
use lichen_tensor::quant;

/// Float32 implementations agree to 2e-5 here, and rounding activations to f16 shows as 4e-3.
const TOLERANCE: f32 = 1e-3;
/// Logits of quantised files come from llama.cpp, whose GELU is a table of f16 values: itself 2.9e-3 off for Gemma.
const GELU_TABLE_TOLERANCE: f32 = 5e-3;

struct Decoded(Vec<(usize, Vec<f32>)>);

impl Decoded {
    fn new(plan: &Plan, checkpoint: &Checkpoint) -> Self {
        let decode = |decl: &lichen_op::WeightDecl| {
            let info = checkpoint.tensor(&decl.name).unwrap();
            let mut values = vec![0.0; decl.shape.iter().product()];
            quant::decode(info.dtype, &checkpoint.data(info), &mut values).unwrap();
            (decl.row_len(), values)
        };
        Self(plan.weights.iter().map(decode).collect())
    }
}

impl Weights for &Decoded {
    fn row(&self, weight: WeightId, row: usize, out: &mut [f32]) {
        let (len, values) = &self.0[weight.0];
        out.copy_from_slice(&values[row * len..][..*len]);
    }
}

/// Runs `tokens` in pieces, logits for every row.
fn run(reference: &mut Reference<&Decoded>, sequence: u64, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, tokens) in tokens.chunks(piece).enumerate() {
        let mut batch = Batch::default();
        batch.push(sequence, index * piece, tokens, true);
        logits.extend(reference.run(&batch).unwrap());
    }
    logits
}

fn npy(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(String::from_utf8_lossy(&bytes[..10 + header]).contains("'<f4'"));
    bytes[10 + header..].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data").join(family)
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(found.iter().all(|x| x.is_finite()) && worst <= tolerance, "{what}: off by {worst}");
}

/// Every GGUF of a family; `count` guards against files that went missing.
fn check_family(family: &str, count: usize) {
    let folder = folder(family);
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let tokens = [ids(&expected["prompt"]), ids(&expected["greedy"])].concat();
    let vocab = expected["vocab_size"].as_u64().unwrap() as usize;
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(kind) = name.strip_prefix("model-").and_then(|name| name.strip_suffix(".gguf")) else {
            continue;
        };
        let checkpoint = Checkpoint::open(&path).unwrap();
        let spec = import(&checkpoint, None).unwrap();
        let plan = spec.lower();
        let weights = Decoded::new(&plan, &checkpoint);
        let mut reference = Reference::new(plan, &weights).unwrap();

        let whole = run(&mut reference, 1, &tokens, tokens.len());
        let quantised = &expected["quantised"][kind];
        if quantised.is_null() {
            assert_close(&whole, &npy(&folder.join("logits.npy")), TOLERANCE, &format!("{family} {kind}"));
        } else {
            let rows = ids(&quantised["rows"]);
            let rows: Vec<f32> =
                rows.iter().flat_map(|&row| whole[row as usize * vocab..][..vocab].iter().copied()).collect();
            let tolerance = if family == "gemma3" { GELU_TABLE_TOLERANCE } else { TOLERANCE };
            assert_close(
                &rows,
                &npy(&folder.join(format!("logits-{kind}.npy"))),
                tolerance,
                &format!("{family} {kind}"),
            );
        }

        let pieces = run(&mut reference, 2, &tokens, 7);
        assert!(pieces == whole, "{family} {kind}: pieces of 7 differ from the whole");
        check_neighbours(&mut reference, &tokens, &whole, vocab);
        checked += 1;
    }
    assert_eq!(checked, count, "GGUF files in {family}");
}

/// A sequence next to another one, at another place, must not notice.
fn check_neighbours(reference: &mut Reference<&Decoded>, tokens: &[u32], whole: &[f32], vocab: usize) {
    run(reference, 3, &tokens[..9], 9);
    let mut batch = Batch::default();
    batch.push(4, 0, &tokens[5..16], false);
    batch.push(3, 9, &tokens[9..], true);
    let logits = reference.run(&batch).unwrap();
    assert!(logits[vocab..] == whole[9 * vocab..], "a neighbour in the batch changes logits");
    let alone = run(reference, 5, &tokens[5..16], 11);
    assert!(logits[..vocab] == alone[10 * vocab..], "a neighbour in the batch changes logits");
}

#[test]
fn llama() {
    check_family("llama", 9);
}

#[test]
fn llama3() {
    check_family("llama3", 2);
}

#[test]
fn llama_k_quants() {
    check_family("llama-k256", 5);
}

#[test]
fn mistral() {
    check_family("mistral", 2);
}

#[test]
fn qwen2() {
    check_family("qwen2", 2);
}

#[test]
fn qwen3() {
    check_family("qwen3", 2);
}

#[test]
fn gemma3() {
    check_family("gemma3", 2);
}

#[test]
fn phi3() {
    check_family("phi3", 2);
}

#[test]
fn phi3_longrope() {
    check_family("phi3-longrope", 1);
}
