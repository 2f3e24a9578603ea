//! Metadata values.

use std::fmt;

/// A metadata value of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of a GGUF file: all items have the same type.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings one after another in one piece of memory: vocabularies have hundreds of thousands of them.
#[derive(Clone, Default, PartialEq)]
pub struct Strings {
    text: String,
    /// Where each of them ends in the text.
    ends: Vec<usize>,
}

impl Strings {
    /// The number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.text[std::mem::replace(&mut start, end)..end])
    }

    /// Adds one at the end.
    pub(crate) fn push(&mut self, item: &str) {
        self.text.push_str(item);
        self.ends.push(self.text.len());
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(items: I) -> Self {
        let mut strings = Self::default();
        items.into_iter().for_each(|item| strings.push(item.as_ref()));
        strings
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Value {
    /// The number, if this is one of any integer type and it fits.
    pub fn integer<T: TryFrom<i128>>(&self) -> Option<T> {
        let wide: i128 = match *self {
            Self::U8(value) => value.into(),
            Self::I8(value) => value.into(),
            Self::U16(value) => value.into(),
            Self::I16(value) => value.into(),
            Self::U32(value) => value.into(),
            Self::I32(value) => value.into(),
            Self::U64(value) => value.into(),
            Self::I64(value) => value.into(),
            _ => return None,
        };
        T::try_from(wide).ok()
    }
}

impl Array {
    /// The number of items.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(items) => items.len(),
            Self::I8(items) => items.len(),
            Self::U16(items) => items.len(),
            Self::I16(items) => items.len(),
            Self::U32(items) => items.len(),
            Self::I32(items) => items.len(),
            Self::F32(items) => items.len(),
            Self::Bool(items) => items.len(),
            Self::String(items) => items.len(),
            Self::Array(items) => items.len(),
            Self::U64(items) => items.len(),
            Self::I64(items) => items.len(),
            Self::F64(items) => items.len(),
        }
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers, if these are of any integer type and all of them fit.
    pub fn integers<T: TryFrom<i128>>(&self) -> Option<Vec<T>> {
        fn convert<S: Copy + Into<i128>, T: TryFrom<i128>>(items: &[S]) -> Option<Vec<T>> {
            items.iter().map(|&item| T::try_from(item.into()).ok()).collect()
        }
        match self {
            Self::U8(items) => convert(items),
            Self::I8(items) => convert(items),
            Self::U16(items) => convert(items),
            Self::I16(items) => convert(items),
            Self::U32(items) => convert(items),
            Self::I32(items) => convert(items),
            Self::U64(items) => convert(items),
            Self::I64(items) => convert(items),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_in_their_order_empty_ones_too() {
        let items = ["", "a", "", "é", "long enough"];
        let strings: Strings = items.iter().collect();
        assert_eq!((strings.len(), strings.is_empty()), (5, false));
        assert!(strings.iter().eq(items));
        assert_eq!(format!("{strings:?}"), format!("{items:?}"));
        assert_ne!(strings, ["", "a", "", "élong enough", ""].iter().collect());
    }
}
