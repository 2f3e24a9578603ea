//! Blocks against the bytes and values of ggml in `oracle/data/quant-blocks`.
#![expect(clippy::unwrap_used, reason = "what fails is a failed test")]

use std::path::PathBuf;

use lichen_tensor::DType;
use lichen_tensor::quant::{decode, encode};
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

/// Of the encoders only this one can be compared here, since ggml made the other blocks with importance weights;
/// those encoders are compared with quantised model files, in the tests of `lichen-format`.
#[test]
fn q8_0_encodes_to_the_bytes_of_ggml() {
    let source = read_npy("source.npy");
    let mut out = vec![0; DType::Q8_0.bytes_for(source.len() as u64).unwrap() as usize];
    encode(DType::Q8_0, &source, &mut out).unwrap();
    assert!(out == read("q8_0.bin")[..out.len()]);
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
    let error = encode(DType::Q6K, &[0.0; 256], &mut [0; 210]).unwrap_err();
    assert!(error.to_string().starts_with("q6_k can be decoded but not encoded"), "{error}");
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
            let _ = encode(dtype, &values, &mut vec![0; dtype.bytes_for(256).unwrap() as usize]);
        }
    }
}
