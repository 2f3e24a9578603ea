//! Reads the tokenizer metadata of a GGUF file, just enough for the tests of this crate.

// Each test file uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use lichen_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use serde_json::{Map, Value};

pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data")
}

pub(crate) fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

/// The real model with this file name, looked for without regard to case in the folder of real models.
pub(crate) fn real_model(file: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LICHEN_TEST_MODELS")?;
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().find(|path| {
        let name = path.file_name().unwrap().to_string_lossy().to_lowercase();
        name == file.to_lowercase()
    })
}

struct Reader<'b> {
    bytes: &'b [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.bytes.split_first_chunk().unwrap();
        self.bytes = rest;
        *head
    }

    fn string(&mut self) -> String {
        let len = u64::from_le_bytes(self.take()) as usize;
        let (head, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        String::from_utf8_lossy(head).into_owned()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => self.take::<1>()[0].into(),
            1 => i8::from_le_bytes(self.take()).into(),
            2 => u16::from_le_bytes(self.take()).into(),
            3 => i16::from_le_bytes(self.take()).into(),
            4 => u32::from_le_bytes(self.take()).into(),
            5 => i32::from_le_bytes(self.take()).into(),
            6 => f64::from(f32::from_le_bytes(self.take())).into(),
            7 => (self.take::<1>()[0] != 0).into(),
            8 => self.string().into(),
            9 => {
                let kind = u32::from_le_bytes(self.take());
                let len = u64::from_le_bytes(self.take());
                (0..len).map(|_| self.value(kind)).collect()
            }
            10 => u64::from_le_bytes(self.take()).into(),
            11 => i64::from_le_bytes(self.take()).into(),
            12 => f64::from_le_bytes(self.take()).into(),
            _ => panic!("value type {kind}"),
        }
    }
}

/// The metadata of a GGUF file.
pub(crate) fn metadata(path: &Path) -> Map<String, Value> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = Reader { bytes: &bytes[16..] };
    let count = u64::from_le_bytes(reader.take());
    (0..count)
        .map(|_| {
            let key = reader.string();
            let kind = u32::from_le_bytes(reader.take());
            (key, reader.value(kind))
        })
        .collect()
}

/// The vocabulary in the metadata of a GGUF file.
pub(crate) fn vocabulary(metadata: &Map<String, Value>) -> Vocabulary<'_> {
    let get = |key: &str| metadata.get(&format!("tokenizer.ggml.{key}"));
    let list = |key: &str| get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let strings = |key: &str| {
        let items = get(key).and_then(Value::as_array).into_iter().flatten();
        items.map(|value| value.as_str().unwrap().into()).collect()
    };
    let id = |key: &str| get(key).and_then(Value::as_u64).map(|id| id as u32);
    let flag = |key: &str, absent: bool| get(key).and_then(Value::as_bool).unwrap_or(absent);
    let model = VocabularyModel::from_gguf(get("model").unwrap().as_str().unwrap()).unwrap();
    let kind = |value: &Value| TokenKind::from_gguf(value.as_i64().unwrap() as i32);
    Vocabulary {
        model,
        pre: get("pre").and_then(Value::as_str).unwrap_or_default().to_owned(),
        tokens: strings("tokens"),
        scores: list("scores").iter().map(|value| value.as_f64().unwrap() as f32).collect(),
        kinds: list("token_type").iter().map(kind).collect(),
        merges: strings("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        eot: id("eot_token_id"),
        unk: id("unknown_token_id"),
        add_bos: flag("add_bos_token", model == VocabularyModel::SentencePiece),
        add_eos: flag("add_eos_token", false),
        add_space_prefix: flag("add_space_prefix", true),
        strip_after_control: metadata["general.architecture"] == "phi3",
    }
}

/// The tokenizer of a GGUF file.
pub(crate) fn tokenizer(path: &Path) -> Tokenizer {
    Tokenizer::new(vocabulary(&metadata(path))).unwrap()
}
