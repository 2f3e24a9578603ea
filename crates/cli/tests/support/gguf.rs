//! GGUF files that can be taken apart, damaged and written again.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "helpers of one test program")]

use std::path::Path;

use lichen_format::{Array, Checkpoint, Value};

/// Where data begins unless the file says otherwise.
const ALIGNMENT: usize = 32;

/// A tensor as it will be described; `shape` in the order of the file, innermost first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub dtype: u32,
    pub data: Vec<u8>,
    /// Written instead of the true one.
    pub offset: Option<u64>,
}

/// A file in pieces.
#[derive(Clone)]
pub struct Gguf {
    pub magic: [u8; 4],
    pub pairs: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
    /// Written instead of the true counts.
    pub tensor_count: Option<u64>,
    pub pair_count: Option<u64>,
}

impl Gguf {
    pub fn read(path: &Path) -> Self {
        let checkpoint = Checkpoint::open(path).unwrap();
        let pairs = checkpoint.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let tensor = |info: &lichen_format::TensorInfo| Tensor {
            name: info.name.clone(),
            shape: info.shape.iter().rev().copied().collect(),
            dtype: info.dtype.ggml_id(),
            data: checkpoint.data(info).to_vec(),
            offset: None,
        };
        let tensors = checkpoint.tensors.iter().map(tensor).collect();
        Self { magic: *b"GGUF", pairs, tensors, tensor_count: None, pair_count: None }
    }

    /// Replaces a value, or adds it.
    pub fn set(mut self, key: &str, value: Value) -> Self {
        match self.pairs.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        self
    }

    pub fn remove(mut self, key: &str) -> Self {
        self.pairs.retain(|(name, _)| name != key);
        self
    }

    /// Changes one tensor.
    pub fn tensor(mut self, name: &str, change: impl FnOnce(&mut Tensor)) -> Self {
        change(self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
        self
    }

    /// The bytes of the file.
    pub fn write(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        out
    }

    /// Everything before the data.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.metadata();
        let mut offset = 0;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|len| out.extend(len.to_le_bytes()));
            out.extend(tensor.dtype.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(ALIGNMENT) as u64;
        }
        out
    }

    /// Everything before the descriptions of the tensors.
    pub fn metadata(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.pair_count.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        for (key, item) in &self.pairs {
            string(&mut out, key);
            value(&mut out, item);
        }
        out
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Type and value, for the types that the tests need.
fn value(out: &mut Vec<u8>, value: &Value) {
    let mut typed = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U32(number) => typed(4, &number.to_le_bytes()),
        Value::I32(number) => typed(5, &number.to_le_bytes()),
        Value::F32(number) => typed(6, &number.to_le_bytes()),
        Value::Bool(flag) => typed(7, &[u8::from(*flag)]),
        Value::U64(number) => typed(10, &number.to_le_bytes()),
        Value::String(text) => {
            typed(8, &[]);
            string(out, text);
        }
        Value::Array(items) => {
            typed(9, &[]);
            array(out, items);
        }
        other => panic!("{other:?} is not written by these tests"),
    }
}

/// Item type, count and items.
fn array(out: &mut Vec<u8>, items: &Array) {
    let id: u32 = match items {
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::String(_) => 8,
        Array::Array(_) => 9,
        other => panic!("{other:?} is not written by these tests"),
    };
    out.extend(id.to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    match items {
        Array::I32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::F32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::String(items) => items.iter().for_each(|item| string(out, item)),
        Array::Array(items) => items.iter().for_each(|item| array(out, item)),
        _ => {}
    }
}
