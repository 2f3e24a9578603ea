//! Metadata by key.

use std::collections::BTreeMap;

use crate::value::{Array, Strings, Value};

/// The metadata of a checkpoint.
///
/// Accessors give `None` if the key is missing or its value has another type. Integer types are
/// interchangeable where the number fits, since writers differ in which one they choose.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

impl Metadata {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys and values, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// An integer of any type that fits `u32`.
    pub fn u32(&self, key: &str) -> Option<u32> {
        self.get(key)?.integer()
    }

    /// An integer of any type that fits `u64`.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.integer()
    }

    /// A number of either float type; `f64` is rounded.
    pub fn f32(&self, key: &str) -> Option<f32> {
        match *self.get(key)? {
            Value::F32(value) => Some(value),
            Value::F64(value) => Some(value as f32),
            _ => None,
        }
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match *self.get(key)? {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// An array of any type.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Option<&Strings> {
        match self.array(key)? {
            Array::String(items) => Some(items),
            _ => None,
        }
    }

    /// An array of `f32`.
    pub fn f32s(&self, key: &str) -> Option<&[f32]> {
        match self.array(key)? {
            Array::F32(items) => Some(items),
            _ => None,
        }
    }

    /// An array of truth values.
    pub fn bools(&self, key: &str) -> Option<&[bool]> {
        match self.array(key)? {
            Array::Bool(items) => Some(items),
            _ => None,
        }
    }

    /// An array of integers of any type that all fit `i32`; converted on each call.
    pub fn i32s(&self, key: &str) -> Option<Vec<i32>> {
        self.array(key)?.integers()
    }

    /// An array of integers of any type that all fit `u32`; converted on each call.
    pub fn u32s(&self, key: &str) -> Option<Vec<u32>> {
        self.array(key)?.integers()
    }

    /// Adds a value; `false` if the key is there already.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        use std::collections::btree_map::Entry;
        match self.values.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(value);
                true
            }
            Entry::Occupied(_) => false,
        }
    }
}
