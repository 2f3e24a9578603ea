//! Token ids against Hugging Face tokenizers and sentencepiece.

// Helpers of tests may unwrap and say what they skip, as the tests themselves.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;

use lichen_text::{Detokenizer, EncodeOptions, Tokenizer};
use serde_json::Value;

mod support;

const MODES: [(&str, EncodeOptions); 3] = [
    ("plain", EncodeOptions { add_special: false, parse_special: false }),
    ("parse_special", EncodeOptions { add_special: false, parse_special: true }),
    ("add_and_parse_special", EncodeOptions { add_special: true, parse_special: true }),
];

/// Compares all strings in all modes, except those in `skipped`.
fn compare(tokenizer: &Tokenizer, oracle: &str, skipped: &[(&str, usize)]) {
    let folder = support::data().join("tokenizers");
    let strings = support::json(&folder.join("strings.json"));
    let strings = strings.as_array().unwrap();
    let oracle = support::json(&folder.join(format!("{oracle}.json")));
    let mut wrong = Vec::new();
    for (mode, options) in MODES {
        let expected = oracle["ids"][mode].as_array().unwrap();
        assert_eq!(expected.len(), strings.len());
        for (index, (string, expected)) in strings.iter().zip(expected).enumerate() {
            let string = string.as_str().unwrap();
            let expected: Vec<u32> =
                expected.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let ids = tokenizer.encode(string, options);
            if ids != expected && !skipped.contains(&(mode, index)) {
                wrong.push(format!("{mode} {index} {string:?}\n  expected {expected:?}\n  got      {ids:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn compare_tiny(family: &str, oracle: &str) {
    let path = support::data().join(family).join("model-f16.gguf");
    compare(&support::tokenizer(&path), oracle, &[]);
}

#[test]
fn llama_bpe() {
    compare_tiny("llama3", "tiny-llama-bpe");
}

#[test]
fn llama_spm() {
    compare_tiny("llama", "tiny-llama-spm");
}

#[test]
fn gemma_spm() {
    compare_tiny("gemma3", "tiny-gemma-spm");
}

#[test]
fn phi3_spm() {
    compare_tiny("phi3", "tiny-phi3-spm");
}

#[test]
fn qwen2() {
    compare_tiny("qwen2", "tiny-qwen2");
}

#[test]
fn qwen35() {
    compare_tiny("qwen35", "tiny-qwen35");
}

#[test]
fn tekken() {
    compare_tiny("pixtral", "tiny-tekken");
}

/// Compares ids and the bytes of tokens of a real model, if it is there.
fn compare_real(file: &str, oracle: &str, skipped: &[(&str, usize)]) {
    let Some(path) = support::real_model(file) else {
        eprintln!("skipped: LICHEN_TEST_MODELS names no folder with {file}");
        return;
    };
    let metadata = support::metadata(&path);
    let vocabulary = support::vocabulary(&metadata);
    let start = std::time::Instant::now();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    eprintln!("{file}: {} tokens indexed in {:?}", tokenizer.vocab_size(), start.elapsed());
    compare(&tokenizer, oracle, skipped);
    compare_pieces(&tokenizer, &support::data().join("tokenizers").join(format!("{oracle}-pieces.json")));
}

fn compare_pieces(tokenizer: &Tokenizer, oracle: &Path) {
    let oracle = support::json(oracle);
    assert_eq!(tokenizer.vocab_size(), oracle["n"].as_u64().unwrap() as usize);
    for (id, hex) in oracle["hex"].as_object().unwrap() {
        let piece = tokenizer.piece_bytes(id.parse().unwrap());
        let got: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(&Value::from(got), hex, "token {id}");
    }
}

#[test]
fn smollm2_real() {
    compare_real("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1", &[]);
}

#[test]
fn qwen2_5_coder_real() {
    compare_real("Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m", &[]);
}

#[test]
fn gemma3_real() {
    // A literal U+2581: in this mode the expected ids are those of llama.cpp, in the other two those of sentencepiece.
    compare_real("gemma-3-270m-Q4_K_M.gguf", "gemma-3-270m-q4_k_m", &[("add_and_parse_special", 88)]);
}

#[test]
fn decoding_gives_the_text_back() {
    for family in ["llama3", "llama", "gemma3", "phi3"] {
        let tokenizer = support::tokenizer(&support::data().join(family).join("model-f16.gguf"));
        for text in ["Hello  world", " lead", "é🙂\n\n\tx", ""] {
            let ids = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false });
            assert_eq!(tokenizer.decode(&ids), text, "{family}");
            let mut detokenizer = Detokenizer::new(&tokenizer);
            let mut parts = String::new();
            ids.iter().for_each(|&id| parts.push_str(detokenizer.push(id)));
            parts += &detokenizer.flush();
            assert_eq!(parts.trim_start(), text.trim_start(), "{family}");
        }
    }
}

#[test]
fn a_megabyte_without_spaces_takes_no_quadratic_time() {
    for family in ["llama3", "llama", "qwen2", "pixtral"] {
        let tokenizer = support::tokenizer(&support::data().join(family).join("model-f16.gguf"));
        for unit in ["ab", " ", "A", "\n", "!"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(&text, EncodeOptions::default());
            assert!(!ids.is_empty());
            let took = start.elapsed();
            assert!(took.as_secs() < 30, "{family} {unit:?}: {took:?}");
        }
    }
}
