//! The GGUF container, versions 2 and 3.
//!
//! Layout (`gguf.md` of the ggml project): magic, version, counts, metadata pairs, tensor descriptions,
//! padding to the alignment, tensor data. Numbers are little-endian, strings have a 64-bit length.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use lichen_tensor::{DType, SharedBytes};

use crate::checkpoint::TensorInfo;
use crate::cursor::Cursor;
use crate::error::{Fault, quoted};
use crate::metadata::Metadata;
use crate::value::{Array, Strings, Value};

/// Longest metadata key by the specification; held for tensor names as well.
const LONGEST_NAME: usize = 65_535;
/// ggml has tensors of up to 4 dimensions.
const MAX_RANK: u32 = 4;
/// Nobody nests arrays so far; the limit keeps a hostile file from exhausting the stack.
const MAX_NESTING: usize = 4;
/// Where tensors start when the file doesn't say.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Bytes of a pair with an empty key and a one-byte value: length, type, value.
const SMALLEST_PAIR: u64 = 8 + 4 + 1;
/// Bytes of a description without name and dimensions: length, rank, type, offset.
const SMALLEST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// What a file holds.
pub(crate) struct Content {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    /// Place in `tensors` by name.
    pub(crate) by_name: HashMap<String, usize>,
}

/// Reads the header of a file and finds the bytes of its tensors.
pub(crate) fn parse(file: &SharedBytes) -> Result<Content, Fault> {
    let mut cursor = Cursor::new(file);
    read_version(&mut cursor)?;
    let tensor_count = cursor.u64("number of tensors")?;
    let pair_count = cursor.u64("number of metadata pairs")?;
    let metadata = read_metadata(&mut cursor, pair_count)?;
    let alignment = alignment(&metadata)?;
    if let Some(parts) = metadata.u32("split.count").filter(|&parts| parts > 1) {
        return Err(Fault::Split { parts });
    }
    let places = read_places(&mut cursor, tensor_count)?;
    // A file without tensors may end before the padding, hence the lower of the two.
    let start = cursor.at().checked_next_multiple_of(alignment as usize).unwrap_or(usize::MAX);
    let start = start.min(file.len());
    let data = file.slice(start..file.len()).expect("start is at most the length");
    check_overlap(&places)?;
    let by_name = index(&places)?;
    let tensors = places.into_iter().map(|place| place.locate(&data, alignment));
    Ok(Content { metadata, tensors: tensors.collect::<Result<_, _>>()?, by_name })
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<(), Fault> {
    let magic = cursor.bytes("magic number")?;
    if magic != *b"GGUF" {
        return Err(Fault::Magic { found: magic });
    }
    match cursor.u32("version")? {
        2 | 3 => Ok(()),
        version if matches!(version.swap_bytes(), 1..=0xffff) => Err(Fault::BigEndian),
        version => Err(Fault::Version { version }),
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, Fault> {
    let count = cursor.fits(count, SMALLEST_PAIR, "metadata pairs")?;
    let mut metadata = Metadata::default();
    for _ in 0..count {
        let key = cursor.name("metadata key", LONGEST_NAME)?;
        let id = cursor.u32("value type")?;
        let value = Pair { cursor, key }.value(id)?;
        if !metadata.insert(key.to_owned(), value) {
            return Err(Fault::DuplicateKey { key: quoted(key) });
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &Metadata) -> Result<u32, Fault> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(alignment)) if alignment.is_power_of_two() => Ok(alignment),
        Some(Value::String(text)) => Err(Fault::Alignment { found: quoted(text) }),
        Some(Value::Array(_)) => Err(Fault::Alignment { found: "an array".to_owned() }),
        Some(value) => Err(Fault::Alignment { found: format!("{value:?}") }),
    }
}

/// A pair whose value is being read.
struct Pair<'c, 'a> {
    cursor: &'c mut Cursor<'a>,
    key: &'a str,
}

impl Pair<'_, '_> {
    fn value(&mut self, id: u32) -> Result<Value, Fault> {
        const WHAT: &str = "metadata value";
        let cursor = &mut *self.cursor;
        Ok(match id {
            0 => Value::U8(u8::from_le_bytes(cursor.bytes(WHAT)?)),
            1 => Value::I8(i8::from_le_bytes(cursor.bytes(WHAT)?)),
            2 => Value::U16(u16::from_le_bytes(cursor.bytes(WHAT)?)),
            3 => Value::I16(i16::from_le_bytes(cursor.bytes(WHAT)?)),
            4 => Value::U32(cursor.u32(WHAT)?),
            5 => Value::I32(i32::from_le_bytes(cursor.bytes(WHAT)?)),
            6 => Value::F32(f32::from_le_bytes(cursor.bytes(WHAT)?)),
            7 => {
                let [byte] = cursor.bytes(WHAT)?;
                Value::Bool(self.bool(byte)?)
            }
            8 => Value::String(cursor.string(WHAT)?.to_owned()),
            9 => Value::Array(self.array(1)?),
            10 => Value::U64(cursor.u64(WHAT)?),
            11 => Value::I64(i64::from_le_bytes(cursor.bytes(WHAT)?)),
            12 => Value::F64(f64::from_le_bytes(cursor.bytes(WHAT)?)),
            id => return Err(self.unknown(id)),
        })
    }

    fn array(&mut self, depth: usize) -> Result<Array, Fault> {
        if depth > MAX_NESTING {
            return Err(Fault::Nesting { key: quoted(self.key), max: MAX_NESTING });
        }
        let id = self.cursor.u32("array type")?;
        let count = self.cursor.u64("array length")?;
        Ok(match id {
            0 => Array::U8(self.numbers(count, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(count, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(count, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(count, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(count, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(count, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(count, f32::from_le_bytes)?),
            7 => {
                let bytes = self.numbers(count, u8::from_le_bytes)?;
                Array::Bool(bytes.into_iter().map(|byte| self.bool(byte)).collect::<Result<_, _>>()?)
            }
            8 => {
                let count = self.cursor.fits(count, 8, "array items")?;
                let strings = (0..count).map(|_| self.cursor.string("array item"));
                Array::String(strings.collect::<Result<Strings, _>>()?)
            }
            9 => {
                let count = self.cursor.fits(count, 4 + 8, "array items")?;
                Array::Array((0..count).map(|_| self.array(depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => Array::U64(self.numbers(count, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(count, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(count, f64::from_le_bytes)?),
            id => return Err(self.unknown(id)),
        })
    }

    fn numbers<const N: usize, T>(&mut self, count: u64, number: fn([u8; N]) -> T) -> Result<Vec<T>, Fault> {
        let count = self.cursor.fits(count, N as u64, "array items")?;
        let bytes = self.cursor.take((count * N) as u64, "array items")?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| number(bytes)).collect())
    }

    fn bool(&self, byte: u8) -> Result<bool, Fault> {
        match byte {
            0 | 1 => Ok(byte == 1),
            _ => Err(Fault::Bool { key: quoted(self.key), byte }),
        }
    }

    fn unknown(&self, id: u32) -> Fault {
        Fault::ValueType { key: quoted(self.key), id }
    }
}

/// Where a tensor lies, as described by the file and not yet compared with its data.
struct Place {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    /// From the start of the data.
    offset: u64,
    len: u64,
}

fn read_places(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Place>, Fault> {
    let count = cursor.fits(count, SMALLEST_TENSOR, "tensors")?;
    (0..count).map(|_| Place::read(cursor)).collect()
}

impl Place {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Fault> {
        let name = cursor.name("tensor name", LONGEST_NAME)?;
        let rank = cursor.u32("number of dimensions")?;
        if rank > MAX_RANK {
            return Err(Fault::Rank { name: quoted(name), rank, max: MAX_RANK });
        }
        let mut shape = (0..rank).map(|_| cursor.u64("dimension")).collect::<Result<Vec<_>, _>>()?;
        if let Some(axis) = shape.iter().position(|&len| len == 0) {
            return Err(Fault::ZeroDimension { name: quoted(name), axis });
        }
        shape.reverse();
        let id = cursor.u32("tensor type")?;
        let dtype = DType::from_ggml(id).ok_or_else(|| Fault::TensorType { name: quoted(name), id })?;
        let offset = cursor.u64("tensor offset")?;
        let row = shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(dtype.block_len() as u64) {
            return Err(Fault::PartialBlock { name: quoted(name), row, dtype });
        }
        let values = shape.iter().try_fold(1_u64, |values, &len| values.checked_mul(len));
        let Some(len) = values.and_then(|values| dtype.bytes_for(values)) else {
            return Err(Fault::Overflow { name: quoted(name), shape });
        };
        Ok(Self { name: name.to_owned(), dtype, shape, offset, len })
    }

    fn locate(self, data: &SharedBytes, alignment: u32) -> Result<TensorInfo, Fault> {
        let Self { name, dtype, shape, offset, len } = self;
        if !offset.is_multiple_of(u64::from(alignment)) {
            return Err(Fault::Unaligned { name: quoted(&name), offset, alignment });
        }
        let range = || {
            let end = usize::try_from(offset.checked_add(len)?).ok()?;
            data.slice(usize::try_from(offset).ok()?..end)
        };
        let Some(bytes) = range() else {
            return Err(Fault::OutOfFile { name: quoted(&name), offset, len, available: data.len() });
        };
        Ok(TensorInfo { name, dtype, shape, bytes })
    }
}

fn check_overlap(places: &[Place]) -> Result<(), Fault> {
    let mut sorted: Vec<&Place> = places.iter().collect();
    sorted.sort_by_key(|place| place.offset);
    for pair in sorted.windows(2) {
        if pair[1].offset - pair[0].offset < pair[0].len {
            return Err(Fault::Overlap { first: quoted(&pair[0].name), second: quoted(&pair[1].name) });
        }
    }
    Ok(())
}

fn index(places: &[Place]) -> Result<HashMap<String, usize>, Fault> {
    let mut by_name = HashMap::with_capacity(places.len());
    for (place, described) in places.iter().enumerate() {
        match by_name.entry(described.name.clone()) {
            Entry::Vacant(entry) => entry.insert(place),
            Entry::Occupied(_) => return Err(Fault::DuplicateTensor { name: quoted(&described.name) }),
        };
    }
    Ok(by_name)
}
