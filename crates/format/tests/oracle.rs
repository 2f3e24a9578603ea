//! Every GGUF file of the oracles against what gguf-py reads from it.
#![expect(clippy::unwrap_used, reason = "what fails is a failed test")]

use std::path::{Path, PathBuf};

use lichen_format::{Checkpoint, Value};

fn ggufs() -> Vec<PathBuf> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    let folders = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).collect()
}

/// What is expected of the files of a folder; a folder with an image encoder has it for both files.
fn gguf_json(file: &Path) -> serde_json::Value {
    let text = std::fs::read(file.with_file_name("gguf.json")).unwrap();
    let mut whole: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let part = if file.ends_with("mmproj-f16.gguf") { "mmproj" } else { "model" };
    whole.get_mut(part).map(serde_json::Value::take).unwrap_or(whole)
}

/// Whether `value` is what gguf-py printed; it replaces arrays and long strings by their length.
fn matches(value: &Value, expected: &serde_json::Value) -> bool {
    match value {
        Value::String(text) => {
            let short = format!("<str of {}>", text.chars().count());
            expected.as_str().is_some_and(|expected| expected == text || expected == short)
        }
        Value::Array(array) => match expected {
            serde_json::Value::Array(items) => items.len() == array.len(),
            expected => expected.as_str() == Some(&format!("<list of {}>", array.len())),
        },
        Value::Bool(value) => expected.as_bool() == Some(*value),
        Value::F32(value) => expected.as_f64() == Some(f64::from(*value)),
        Value::F64(value) => expected.as_f64() == Some(*value),
        value => value.integer::<i64>() == expected.as_i64(),
    }
}

#[test]
fn every_file_has_the_tensors_of_its_folder() {
    let files = ggufs();
    assert!(files.len() > 35, "only {} files", files.len());
    for file in files {
        let checkpoint = Checkpoint::open(&file).unwrap();
        let expected = gguf_json(&file);
        let expected = expected["tensors"].as_object().unwrap();
        assert_eq!(checkpoint.tensors.len(), expected.len(), "{}", file.display());
        for (name, entry) in expected {
            let tensor = checkpoint.tensor(name).unwrap_or_else(|| panic!("{}: {name}", file.display()));
            let shape: Vec<u64> =
                entry[1].as_array().unwrap().iter().rev().filter_map(|len| len.as_u64()).collect();
            assert_eq!(tensor.shape, shape, "{}: {name}", file.display());
            let bytes = tensor.dtype.bytes_for(shape.iter().product()).unwrap();
            assert_eq!(checkpoint.data(tensor).len() as u64, bytes, "{}: {name}", file.display());
        }
    }
}

/// `gguf.json` describes one of the files in its folder: types and metadata have to match for one of them.
#[test]
fn one_file_of_each_folder_matches_in_types_and_metadata() {
    let mut matched = std::collections::BTreeMap::new();
    for file in ggufs() {
        let folder = file.parent().unwrap().to_owned();
        let expected = gguf_json(&file);
        let checkpoint = Checkpoint::open(&file).unwrap();
        let types = expected["tensors"].as_object().unwrap();
        let types = types.iter().all(|(name, entry)| {
            let found = checkpoint.tensor(name).map(|tensor| tensor.dtype.name().to_uppercase());
            found.as_deref() == entry[0].as_str()
        });
        let keys = expected["metadata"].as_object().unwrap();
        let wrong = keys.iter().find(|(key, expected)| {
            !checkpoint.metadata.get(key).is_some_and(|value| matches(value, expected))
        });
        let all = types && wrong.is_none() && checkpoint.metadata.iter().count() == keys.len();
        *matched.entry(folder).or_insert(false) |= all;
    }
    assert!(matched.len() > 12, "only {} folders", matched.len());
    // The f16 file that the description of llama-k256 was made from is not kept.
    let missing = matched.iter().filter(|(folder, matched)| !**matched && !folder.ends_with("llama-k256"));
    assert_eq!(missing.count(), 0, "{matched:?}");
}

#[test]
fn accessors_convert_between_integer_types_only() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data");
    let checkpoint = Checkpoint::open(&data.join("llama/model-f16.gguf")).unwrap();
    let metadata = &checkpoint.metadata;
    assert_eq!(metadata.str("general.architecture"), Some("llama"));
    assert_eq!(metadata.u32("llama.block_count"), Some(2));
    assert_eq!(metadata.u64("llama.block_count"), Some(2));
    assert_eq!(metadata.f32("llama.rope.freq_base"), Some(10_000.0));
    assert_eq!(metadata.f32("llama.block_count"), None);
    assert_eq!(metadata.bool("tokenizer.ggml.add_bos_token"), Some(true));
    assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 384);
    assert_eq!(metadata.f32s("tokenizer.ggml.scores").unwrap().len(), 384);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap().len(), 384);
    assert_eq!(metadata.u32s("tokenizer.ggml.token_type").unwrap().len(), 384);
    assert!(metadata.strings("tokenizer.ggml.scores").is_none());
    assert!(metadata.bools("tokenizer.ggml.scores").is_none());
    assert!(metadata.get("no.such.key").is_none());
}

/// Files outside the repository: set `LICHEN_TEST_MODELS` to a folder of GGUF files.
#[test]
#[expect(clippy::print_stderr, reason = "says why nothing was tested")]
fn real_models_open() {
    let Some(folder) = std::env::var_os("LICHEN_TEST_MODELS") else {
        eprintln!("LICHEN_TEST_MODELS is not set");
        return;
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "gguf") {
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(checkpoint.metadata.strings("tokenizer.ggml.tokens").is_some());
            assert!(checkpoint.tensor("token_embd.weight").is_some());
        }
    }
}
