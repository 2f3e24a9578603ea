//! Scalar conversion between stored blocks and `f32` values.
//!
//! Layouts and rounding follow ggml (`ggml-quants.c`): [`decode`] gives the bits of its `to_float`, [`encode`]
//! the bytes of its quantisers. These are the reference that faster kernels are tested against.

mod iq4;
mod kquants;
mod legacy;
mod plain;

use crate::DType;

/// Why a buffer could not be converted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The values don't fill whole blocks.
    #[error("{values} values don't fill whole {dtype} blocks: pass a multiple of {}", dtype.block_len())]
    PartialBlock {
        /// The block format.
        dtype: DType,
        /// How many values were passed.
        values: usize,
    },
    /// The byte buffer doesn't fit the value buffer.
    #[error("{values} {dtype} values take {expected} bytes, not {found}: pass buffers of matching length")]
    Length {
        /// The block format.
        dtype: DType,
        /// How many values were passed.
        values: usize,
        /// Bytes that so many values take.
        expected: u64,
        /// Bytes that were passed.
        found: usize,
    },
    /// The format can be read only.
    #[error(
        "{dtype} can be decoded but not encoded: choose one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl"
    )]
    NoEncoder {
        /// The block format.
        dtype: DType,
    },
}

/// Widens the blocks in `bytes` to `out.len()` values.
///
/// # Errors
///
/// If `out` is no multiple of the block length, or `bytes` isn't exactly the bytes of `out.len()` values.
pub fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_lengths(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => plain::decode_f32(bytes, out),
        DType::F16 => plain::decode_f16(bytes, out),
        DType::BF16 => plain::decode_bf16(bytes, out),
        DType::Q4_0 => each_block(bytes, out, legacy::decode_q4_0),
        DType::Q4_1 => each_block(bytes, out, legacy::decode_q4_1),
        DType::Q5_0 => each_block(bytes, out, legacy::decode_q5_0),
        DType::Q5_1 => each_block(bytes, out, legacy::decode_q5_1),
        DType::Q8_0 => each_block(bytes, out, legacy::decode_q8_0),
        DType::Q2K => each_block(bytes, out, kquants::decode_q2_k),
        DType::Q3K => each_block(bytes, out, kquants::decode_q3_k),
        DType::Q4K => each_block(bytes, out, kquants::decode_q4_k),
        DType::Q5K => each_block(bytes, out, kquants::decode_q5_k),
        DType::Q6K => each_block(bytes, out, kquants::decode_q6_k),
        DType::Iq4Nl => each_block(bytes, out, iq4::decode_iq4_nl),
        DType::Iq4Xs => each_block(bytes, out, iq4::decode_iq4_xs),
    }
    Ok(())
}

/// Rounds `values` to blocks in `out`. Not-a-number values give a valid block of unspecified content.
///
/// # Errors
///
/// If the type has no encoder, `values` doesn't fill whole blocks, or `out` isn't exactly their bytes.
pub fn encode(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    check_lengths(dtype, values.len(), out.len())?;
    match dtype {
        DType::F32 => plain::encode_f32(values, out),
        DType::F16 => plain::encode_f16(values, out),
        DType::BF16 => plain::encode_bf16(values, out),
        DType::Q4_0 => each_encoded(values, out, legacy::encode_q4_0),
        DType::Q4_1 => each_encoded(values, out, legacy::encode_q4_1),
        DType::Q5_0 => each_encoded(values, out, legacy::encode_q5_0),
        DType::Q5_1 => each_encoded(values, out, legacy::encode_q5_1),
        DType::Q8_0 => each_encoded(values, out, legacy::encode_q8_0),
        DType::Iq4Nl => each_encoded(values, out, iq4::encode_iq4_nl),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K | DType::Iq4Xs => {
            return Err(QuantError::NoEncoder { dtype });
        }
    }
    Ok(())
}

fn check_lengths(dtype: DType, values: usize, found: usize) -> Result<(), QuantError> {
    let expected = dtype.bytes_for(values as u64).ok_or(QuantError::PartialBlock { dtype, values })?;
    if expected != found as u64 {
        return Err(QuantError::Length { dtype, values, expected, found });
    }
    Ok(())
}

fn each_block<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<LEN>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

fn each_encoded<const BYTES: usize, const LEN: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    let (values, _) = values.as_chunks::<LEN>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    for (values, block) in values.iter().zip(blocks) {
        encode(values, block);
    }
}

/// The half-precision number at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// The reciprocal of a scale; 0 for the scale 0 of a block of zeros.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The value of greatest magnitude, sign kept; the first one of equals.
fn extreme(values: &[f32]) -> f32 {
    let mut found = 0.0_f32;
    for &value in values {
        if value.abs() > found.abs() {
            found = value;
        }
    }
    found
}
