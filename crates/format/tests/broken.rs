//! Broken files, each made from a small valid one, and the message it has to give.
#![expect(clippy::unwrap_used, reason = "what fails is a failed test")]

use lichen_format::Checkpoint;
use lichen_tensor::{DType, SharedBytes};
use proptest::prelude::*;

const U8: u32 = 0;
const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Writes the fields of a GGUF file.
#[derive(Default, Clone)]
struct Writer(Vec<u8>);

impl Writer {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }

    /// Magic, version 3 and the counts.
    fn header(tensors: u64, pairs: u64) -> Self {
        Self::default().raw(b"GGUF").u32(3).u64(tensors).u64(pairs)
    }

    fn pair(self, key: &str, id: u32, value: &[u8]) -> Self {
        self.string(key).u32(id).raw(value)
    }

    /// Dimensions in ggml's order.
    fn tensor(self, name: &str, shape: &[u64], id: u32, offset: u64) -> Self {
        let start = self.string(name).u32(shape.len() as u32);
        shape.iter().fold(start, |writer, &len| writer.u64(len)).u32(id).u64(offset)
    }

    /// Padding to 32 and `len` bytes of data.
    fn data(mut self, len: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + len, 7);
        self.0
    }
}

/// One of each kind of value, and two tensors.
fn valid() -> Vec<u8> {
    let strings = Writer::default().u32(STRING).u64(2).string("a").string("b");
    let nested = Writer::default().u32(ARRAY).u64(1).u32(U8).u64(2).raw(&[1, 2]);
    Writer::header(2, 5)
        .pair("name", STRING, &Writer::default().string("tiny").0)
        .pair("count", U8, &[9])
        .pair("flag", BOOL, &[1])
        .pair("strings", ARRAY, &strings.0)
        .pair("nested", ARRAY, &nested.0)
        .tensor("a", &[32, 2], 2, 0)
        .tensor("b", &[3], 0, 64)
        .data(64 + 12)
}

fn one_tensor(shape: &[u64], id: u32, offset: u64) -> Vec<u8> {
    Writer::header(1, 0).tensor("w", shape, id, offset).data(64)
}

fn one_pair(id: u32, value: &Writer) -> Vec<u8> {
    Writer::header(0, 1).pair("k", id, &value.0).0
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, String> {
    Checkpoint::parse(SharedBytes::from(bytes)).map_err(|error| error.to_string())
}

#[test]
fn the_valid_file_is_read() {
    let checkpoint = open(valid()).unwrap();
    assert_eq!(checkpoint.metadata.str("name"), Some("tiny"));
    assert_eq!(checkpoint.metadata.u32("count"), Some(9));
    assert!(checkpoint.metadata.strings("strings").unwrap().iter().eq(["a", "b"]));
    let tensor = checkpoint.tensor("a").unwrap();
    assert_eq!((tensor.dtype, tensor.shape.as_slice()), (DType::Q4_0, [2, 32].as_slice()));
    assert_eq!(checkpoint.data(tensor).len(), 36);
    assert_eq!(checkpoint.data(checkpoint.tensor("b").unwrap()).len(), 12);
    let version_2 = [b"GGUF\x02".as_slice(), &valid()[5..]].concat();
    assert!(open(version_2).is_ok());
}

/// Files whose start, counts or metadata are wrong.
fn broken_metadata() -> Vec<(Vec<u8>, &'static str)> {
    let new = Writer::default;
    let deep = (0..5).fold(new(), |writer, _| writer.u32(ARRAY).u64(1)).u32(U8).u64(0);
    vec![
        (vec![], "truncated: magic number at byte 0 needs 4 bytes, 0 are left"),
        (b"GGML\x03\0\0\0".to_vec(), "not a GGUF file: it starts with [47, 47, 4d, 4c]"),
        (b"GGUF\x03\0".to_vec(), "truncated: version at byte 4 needs 4 bytes, 2 are left"),
        (b"GGUF\0\0\0\x03".to_vec(), "a big-endian GGUF file: convert it to little-endian"),
        (b"GGUF\x01\0\0\0".to_vec(), "GGUF version 1 is not supported: convert it to version 3"),
        (b"GGUF\x04\0\0\0".to_vec(), "GGUF version 4 is not supported: convert it to version 3"),
        (b"GGUF\x03\0\0\0\0".to_vec(), "truncated: number of tensors at byte 8 needs 8 bytes, 1 are left"),
        (
            Writer::header(0, u64::MAX).0,
            "18446744073709551615 metadata pairs announced at byte 24, but the 0 bytes left can't hold them",
        ),
        (
            Writer::header(1 << 40, 0).data(96),
            "1099511627776 tensors announced at byte 24, but the 104 bytes left can't hold them",
        ),
        (
            Writer::header(0, 1).u64(u64::MAX).raw(&[0; 9]).0,
            "truncated: metadata key at byte 32 needs 18446744073709551615 bytes, 9 are left",
        ),
        (
            Writer::header(0, 1).u64(1).raw(b"\xff").u32(U8).raw(&[0]).0,
            "metadata key at byte 32 is not UTF-8",
        ),
        (
            Writer::header(0, 1).pair(&"k".repeat(65_536), U8, &[0]).0,
            "metadata key at byte 24 has 65536 bytes, more than 65535",
        ),
        (Writer::header(0, 2).pair("k", U8, &[0]).pair("k", U8, &[0]).0, "metadata key \"k\" occurs twice"),
        (one_pair(13, &new().u32(0)), "metadata \"k\": unknown value type 13"),
        (one_pair(BOOL, &new().raw(&[2])), "metadata \"k\": 2 is no bool"),
        (one_pair(ARRAY, &new().u32(99).u64(0)), "metadata \"k\": unknown value type 99"),
        (one_pair(ARRAY, &deep), "metadata \"k\": arrays nested deeper than 4"),
        (
            one_pair(ARRAY, &new().u32(U32).u64(1 << 62)),
            "4611686018427387904 array items announced at byte 49, but the 0 bytes left can't hold them",
        ),
        (
            one_pair(ARRAY, &new().u32(STRING).u64(2).u64(0)),
            "2 array items announced at byte 49, but the 8 bytes left can't hold them",
        ),
        (
            Writer::header(0, 1).pair("general.alignment", U32, &48_u32.to_le_bytes()).0,
            "general.alignment is U32(48): expected a power of two as u32",
        ),
        (
            Writer::header(0, 1).pair("general.alignment", U32, &[0; 4]).0,
            "general.alignment is U32(0): expected a power of two as u32",
        ),
        (
            Writer::header(0, 1).pair("split.count", U8, &[3]).0,
            "one of 3 parts of a split model: merge them first (llama-gguf-split --merge)",
        ),
    ]
}

/// Files whose tensors are wrong.
fn broken_tensors() -> Vec<(Vec<u8>, &'static str)> {
    vec![
        (one_tensor(&[1; 5], 0, 0), "tensor \"w\": 5 dimensions, more than 4"),
        (one_tensor(&[4, 0], 0, 0), "tensor \"w\": dimension 1 is 0"),
        (
            one_tensor(&[4], 31, 0),
            "tensor \"w\": ggml type 31 is not supported: requantise the model, to q8_0 for instance",
        ),
        (one_tensor(&[16, 2], 2, 0), "tensor \"w\": rows of 16 values don't fill q4_0 blocks of 32"),
        (one_tensor(&[1 << 32, 1 << 32], 0, 0), "tensor \"w\": shape [4294967296, 4294967296] overflows"),
        (one_tensor(&[1 << 62], 0, 0), "tensor \"w\": shape [4611686018427387904] overflows"),
        (one_tensor(&[4], 0, 8), "tensor \"w\": offset 8 is no multiple of the alignment 32"),
        (
            one_tensor(&[17], 0, 0),
            "truncated: tensor \"w\" has 68 bytes at offset 0 of the data, which has 64",
        ),
        (
            one_tensor(&[4], 0, u64::MAX - 31),
            "truncated: tensor \"w\" has 16 bytes at offset 18446744073709551584 of the data, which has 64",
        ),
        (
            Writer::header(2, 0).tensor("w", &[4], 0, 0).tensor("w", &[4], 0, 32).data(64),
            "tensor \"w\" occurs twice",
        ),
        (
            Writer::header(2, 0).tensor("v", &[9], 0, 0).tensor("w", &[4], 0, 32).data(64),
            "tensors \"v\" and \"w\" overlap",
        ),
        (
            Writer::header(1, 0).tensor("a\nb", &[1; 5], 0, 0).data(64),
            "tensor \"a\\nb\": 5 dimensions, more than 4",
        ),
    ]
}

#[test]
fn every_broken_file_is_refused_with_its_fault() {
    for (bytes, expected) in broken_metadata().into_iter().chain(broken_tensors()) {
        let error = open(bytes).expect_err(expected);
        assert_eq!(error, format!("<memory>: {expected}"));
    }
}

#[test]
fn the_message_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.gguf");
    std::fs::write(&path, b"").unwrap();
    let error = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(error.contains("broken.gguf: truncated: magic number"), "{error}");
    let error = Checkpoint::open(&folder.path().join("none.gguf")).unwrap_err().to_string();
    assert!(error.contains("none.gguf: cannot be read: "), "{error}");
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with(": not a regular file: pass the path of a .gguf file"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = valid();
    for len in 0..bytes.len() {
        assert!(open(bytes[..len].to_vec()).is_err(), "{len} bytes");
    }
}

/// What a reader of the checkpoint does; all of it has to work when parsing did.
fn read_all(bytes: Vec<u8>) {
    let Ok(checkpoint) = open(bytes) else { return };
    for tensor in &checkpoint.tensors {
        let bytes = tensor.dtype.bytes_for(tensor.shape.iter().product()).unwrap();
        assert_eq!(checkpoint.data(tensor).len() as u64, bytes);
        assert_eq!(checkpoint.tensor(&tensor.name).unwrap().shape, tensor.shape);
    }
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(tail in proptest::collection::vec(any::<u8>(), 0..256)) {
        read_all(tail.clone());
        read_all([b"GGUF\x03\0\0\0".as_slice(), &tail].concat());
    }

    #[test]
    fn a_mutated_file_does_not_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let mut bytes = valid();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if truncate {
            bytes.truncate(len.index(bytes.len()));
        }
        read_all(bytes);
    }
}
