//! What importers say about checkpoints, and what the readers of a spec agree on.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

use lichen_format::Checkpoint;
use lichen_model::{ModelError, import};
use lichen_tensor::SharedBytes;

fn open(file: &str) -> Checkpoint {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    Checkpoint::open(&data.join(file)).unwrap()
}

#[test]
fn unsupported_checkpoints_are_named() {
    let error = import(&open("rwkv7/model-f16.gguf"), None).unwrap_err();
    assert!(matches!(&error, ModelError::Architecture { found, .. } if found == "rwkv7"), "{error}");
    let error = import(&open("mixtral/model-f16.gguf"), None).unwrap_err();
    assert!(matches!(&error, ModelError::Feature { .. }), "{error}");
}

#[test]
fn misshapen_and_left_over_tensors_are_named() {
    let mut checkpoint = open("llama/model-f32.gguf");
    let index = checkpoint.tensors.iter().position(|info| info.name == "blk.1.ffn_norm.weight").unwrap();
    checkpoint.tensors[index].shape = vec![63];
    let error = import(&checkpoint, None).unwrap_err();
    assert!(matches!(&error, ModelError::Shape { name, .. } if name == "blk.1.ffn_norm.weight"), "{error}");

    let mut checkpoint = open("llama/model-f32.gguf");
    let mut extra = checkpoint.tensors[0].clone();
    extra.name = "blk.0.mystery.weight".to_owned();
    checkpoint.tensors.push(extra);
    let error = import(&checkpoint, None).unwrap_err();
    assert!(matches!(&error, ModelError::LeftOver(name) if name == "blk.0.mystery.weight"), "{error}");
}

#[test]
fn a_missing_tensor_is_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/qwen3/model-f16.gguf");
    let mut bytes = std::fs::read(folder).unwrap();
    let name = b"blk.1.attn_k_norm.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at..at + 5].copy_from_slice(b"blk.9");
    let checkpoint = Checkpoint::parse(SharedBytes::new(bytes)).unwrap();
    let error = import(&checkpoint, None).unwrap_err();
    assert!(matches!(&error, ModelError::Missing(name) if name == "blk.1.attn_k_norm.weight"), "{error}");
}

#[test]
fn estimates_follow_the_spec() {
    let checkpoint = open("llama/model-f32.gguf");
    let spec = import(&checkpoint, Some(100)).unwrap();
    assert_eq!(spec.context, 100);
    // Two layers, key and value, two heads of 16, two bytes.
    assert_eq!(spec.state_bytes_per_token(2), 2 * 2 * 2 * 16 * 2);
    assert_eq!(spec.weight_bytes(&checkpoint).unwrap(), 110_912 * 4);
    assert!(spec.scratch_bytes(8, 1) < spec.scratch_bytes(8, 8));
}

#[test]
fn longrope_factors_follow_the_context_in_use() {
    let checkpoint = open("phi3-longrope/model-f16.gguf");
    let long = import(&checkpoint, None).unwrap();
    let short = import(&checkpoint, Some(32)).unwrap();
    assert_ne!(long.ropes, short.ropes);
    assert_eq!(import(&checkpoint, Some(33)).unwrap().ropes, long.ropes);
}
