//! Blocks against the bytes and values of ggml in `oracle/data/quant-blocks`.
#![expect(clippy::unwrap_used, reason = "what fails is a failed test")]

use std::path::PathBuf;

use lichen_tensor::DType;
use lichen_tensor::quant::{decode, encode, encode_weighted};
use proptest::prelude::*;

fn read(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/quant-blocks");
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The values of a little-endian f32 array in NumPy's format, version 1.
fn read_npy(name: &str) -> Vec<f32> {
    let bytes = read(name);
    assert_eq!(&bytes[..7], b"\x93NUMPY\x01", "{name}");
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let text = std::str::from_utf8(&bytes[10..10 + header]).unwrap();
    assert!(text.contains("'<f4'") && text.contains("'fortran_order': False"), "{name}: {text}");
    bytes[10 + header..].as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// The types we can read for which there are blocks.
fn oracles() -> Vec<DType> {
    let index: serde_json::Value = serde_json::from_slice(&read("index.json")).unwrap();
    let types = index["types"].as_object().unwrap();
    let known = types.iter().filter_map(|(name, entry)| {
        let dtype = DType::from_ggml(entry["ggml_type"].as_u64()?.try_into().ok()?)?;
        assert_eq!(dtype.name(), name);
        Some(dtype)
    });
    known.collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_decodes_to_the_bits_of_ggml() {
    let oracles = oracles();
    for dtype in DType::all().filter(|&dtype| dtype.block_len() > 1) {
        assert!(oracles.contains(&dtype), "no oracle for {dtype}");
    }
    for dtype in oracles {
        let expected = read_npy(&format!("{dtype}.npy"));
        let mut out = vec![0.0; expected.len()];
        decode(dtype, &read(&format!("{dtype}.bin")), &mut out).unwrap();
        assert_eq!(bits(&out), bits(&expected), "{dtype}");
    }
}

/// The blocks of the source values were made with an importance of 1 for every column.
#[test]
fn equal_importance_encodes_to_the_bytes_of_ggml() {
    let source = read_npy("source.npy");
    for dtype in oracles() {
        let mut out = vec![0; dtype.bytes_for(source.len() as u64).unwrap() as usize];
        encode_weighted(dtype, &source, &[1.0; 512], &mut out).unwrap();
        let expected = read(&format!("{dtype}.bin"));
        assert_eq!(first_difference(dtype, &out, &expected[..out.len()]), None, "{dtype}: block and byte");
    }
}

/// Block and byte in it.
fn first_difference(dtype: DType, found: &[u8], expected: &[u8]) -> Option<(usize, usize)> {
    assert_eq!(found.len(), expected.len(), "{dtype}");
    let at = (0..found.len()).find(|&at| found[at] != expected[at])?;
    Some((at / dtype.block_bytes(), at % dtype.block_bytes()))
}

fn read_own(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Rows of all kinds, among them zeros, constants and vanishing values; see `data/make_encoded.py`.
#[test]
fn every_encoder_gives_the_bytes_of_ggml() {
    let mut source = vec![0.0; read_own("source.f32").len() / 4];
    decode(DType::F32, &read_own("source.f32"), &mut source).unwrap();
    let mut importance = [0.0; 512];
    decode(DType::F32, &read_own("importance.f32"), &mut importance).unwrap();
    for dtype in oracles() {
        let mut out = vec![0; dtype.bytes_for(source.len() as u64).unwrap() as usize];
        encode(dtype, &source, &mut out).unwrap();
        let plain = first_difference(dtype, &out, &read_own(&format!("{dtype}.plain")));
        assert_eq!(plain, None, "{dtype}: block and byte");
        encode_weighted(dtype, &source, &importance, &mut out).unwrap();
        let weighted = first_difference(dtype, &out, &read_own(&format!("{dtype}.weighted")));
        assert_eq!(weighted, None, "{dtype}, weighted: block and byte");
    }
}

#[test]
fn unquantised_types_ignore_importance() {
    let values = [1.0, -2.5, 0.1, 3e-6];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut plain = vec![0; dtype.bytes_for(4).unwrap() as usize];
        let mut weighted = plain.clone();
        encode(dtype, &values, &mut plain).unwrap();
        encode_weighted(dtype, &values, &[0.0, 5.0], &mut weighted).unwrap();
        assert_eq!(plain, weighted, "{dtype}");
    }
}

#[test]
fn plain_types_keep_what_they_can_hold() {
    let values = [0.0, -0.0, 1.0, -2.5, 65504.0, f32::INFINITY, 6.103_515_6e-5, 5.960_464_5e-8];
    for dtype in [DType::F32, DType::F16] {
        let mut bytes = vec![0; dtype.bytes_for(8).unwrap() as usize];
        encode(dtype, &values, &mut bytes).unwrap();
        let mut out = [f32::NAN; 8];
        decode(dtype, &bytes, &mut out).unwrap();
        assert_eq!(bits(&out), bits(&values), "{dtype}");
    }
}

#[test]
fn buffers_that_do_not_match_are_refused() {
    let error = decode(DType::Q4_0, &[0; 18], &mut [0.0; 31]).unwrap_err();
    assert_eq!(error.to_string(), "31 values don't fill whole q4_0 blocks: pass a multiple of 32");
    let error = decode(DType::Q4_0, &[0; 19], &mut [0.0; 32]).unwrap_err();
    assert_eq!(error.to_string(), "32 q4_0 values take 18 bytes, not 19: pass buffers of matching length");
    let error = encode(DType::Q6K, &[0.0; 256], &mut [0; 209]).unwrap_err();
    assert_eq!(error.to_string(), "256 q6_k values take 210 bytes, not 209: pass buffers of matching length");
}

#[test]
fn importance_that_does_not_fit_is_refused() {
    for columns in [0, 16, 32, 96, 128] {
        let result = encode_weighted(DType::Q4_0, &[0.0; 64], &vec![1.0; columns], &mut [0; 36]);
        assert_eq!(result.is_ok(), columns == 32, "{columns}");
    }
    let error = encode_weighted(DType::Q4_0, &[0.0; 64], &[1.0; 16], &mut [0; 36]).unwrap_err();
    let expected = "64 q4_0 values aren't rows of the 16 importance weights: pass one weight per column, in whole \
                    blocks of 32";
    assert_eq!(error.to_string(), expected);
    encode_weighted(DType::Q4_0, &[], &[1.0; 32], &mut []).unwrap();
}

proptest! {
    /// Foreign weights may hold any bytes, and foreign values any floats.
    #[test]
    fn any_block_decodes_and_any_values_encode(seed in proptest::collection::vec(any::<u8>(), 1024)) {
        let mut values = [0.0; 256];
        for dtype in DType::all() {
            let len = dtype.bytes_for(256).unwrap() as usize;
            for chunk in seed.chunks(len).filter(|chunk| chunk.len() == len) {
                decode(dtype, chunk, &mut values).unwrap();
            }
        }
        decode(DType::F32, &seed, &mut values).unwrap();
        for dtype in DType::all() {
            let mut block = vec![0; dtype.bytes_for(256).unwrap() as usize];
            encode(dtype, &values, &mut block).unwrap();
            let importance = std::array::from_fn::<f32, 256, _>(|j| values[255 - j]);
            encode_weighted(dtype, &values, &importance, &mut block).unwrap();
        }
    }
}
