//! Scalar conversion between stored blocks and `f32` values.
//!
//! Layouts and rounding follow ggml (`ggml-quants.c`): [`decode`] gives the bits of its `to_float`, [`encode`]
//! the bytes of its quantisers. These are the reference that faster kernels are tested against.

mod encode_kquants;
mod iq4;
mod kquants;
mod legacy;
mod plain;
mod search;

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
    /// The importance doesn't belong to rows of the values.
    #[error(
        "{values} {dtype} values aren't rows of the {importance} importance weights: pass one weight per column, \
         in whole blocks of {}", dtype.block_len()
    )]
    Importance {
        /// The block format.
        dtype: DType,
        /// How many values were passed.
        values: usize,
        /// How many weights were passed.
        importance: usize,
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
/// The bytes are those of `ggml_quantize_chunk` without an importance matrix, except for blocks that have no good
/// encoding and where C leaves the result open: of values so small (1e-35) that the reciprocal of a scale is
/// infinite, or so large that a scale or minimum is infinite in half precision.
///
/// # Errors
///
/// If `values` doesn't fill whole blocks, or `out` isn't exactly their bytes.
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
        DType::Q2K => each_encoded(values, out, encode_kquants::encode_q2_k),
        DType::Q3K => each_encoded(values, out, encode_kquants::encode_q3_k),
        DType::Q4K => each_encoded(values, out, encode_kquants::encode_q4_k),
        DType::Q5K => each_encoded(values, out, encode_kquants::encode_q5_k),
        DType::Q6K => each_encoded(values, out, encode_kquants::encode_q6_k),
        DType::Iq4Nl => each_encoded(values, out, iq4::encode_iq4_nl),
        DType::Iq4Xs => each_encoded(values, out, iq4::encode_iq4_xs),
    }
    Ok(())
}

/// As [`encode`], for rows of `importance.len()` values where an error counts in proportion to the importance
/// of its column.
///
/// Importance is not negative; it is usually the mean square of the activations that meet a column. The bytes are
/// those of `ggml_quantize_chunk` with this importance matrix. The unquantised types and Q8_0 ignore it.
///
/// # Errors
///
/// As [`encode`], or if `values` isn't whole rows, or a row isn't whole blocks.
pub fn encode_weighted(
    dtype: DType,
    values: &[f32],
    importance: &[f32],
    out: &mut [u8],
) -> Result<(), QuantError> {
    check_lengths(dtype, values.len(), out.len())?;
    let row_len = importance.len();
    let row_bytes = match dtype.bytes_for(row_len as u64) {
        // A row that isn't longer than `values` has no more bytes than `out`.
        Some(bytes) if row_len > 0 && values.len().is_multiple_of(row_len) => bytes as usize,
        _ => return Err(QuantError::Importance { dtype, values: values.len(), importance: row_len }),
    };
    if values.is_empty() {
        return Ok(());
    }
    for (values, out) in values.chunks_exact(row_len).zip(out.chunks_exact_mut(row_bytes)) {
        encode_row(dtype, values, importance, out)?;
    }
    Ok(())
}

/// Encodes one row; the lengths fit.
fn encode_row(dtype: DType, values: &[f32], importance: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    // The types with blocks of 32 measure values against the row, the others against their block.
    let mean_square = search::sum_of_squares(values) / values.len() as f32;
    match dtype {
        DType::Q4_0 => each_weighted(values, importance, out, |values, importance, block| {
            let weights = search::error_weights(values, importance, mean_square);
            legacy::encode_q4_0_weighted(values, &weights, block);
        }),
        DType::Q4_1 => each_weighted(values, importance, out, |values, importance, block| {
            let weights = search::error_weights(values, importance, mean_square);
            legacy::encode_q4_1_weighted(values, &weights, block);
        }),
        DType::Q5_0 => each_weighted(values, importance, out, |values, importance, block| {
            let weights = search::error_weights(values, importance, mean_square);
            legacy::encode_q5_0_weighted(values, &weights, block);
        }),
        DType::Q5_1 => each_weighted(values, importance, out, |values, importance, block| {
            let weights = search::error_weights(values, importance, mean_square);
            legacy::encode_q5_1_weighted(values, &weights, block);
        }),
        DType::Q2K => each_weighted(values, importance, out, encode_kquants::encode_q2_k_weighted),
        DType::Q3K => each_weighted(values, importance, out, encode_kquants::encode_q3_k_weighted),
        DType::Q4K => each_weighted(values, importance, out, encode_kquants::encode_q4_k_weighted),
        DType::Q5K => each_weighted(values, importance, out, encode_kquants::encode_q5_k_weighted),
        DType::Q6K => each_weighted(values, importance, out, encode_kquants::encode_q6_k_weighted),
        DType::Iq4Nl => each_weighted(values, importance, out, iq4::encode_iq4_nl_weighted),
        DType::Iq4Xs => each_weighted(values, importance, out, iq4::encode_iq4_xs_weighted),
        DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0 => return encode(dtype, values, out),
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

fn each_weighted<const BYTES: usize, const LEN: usize>(
    values: &[f32],
    importance: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &[f32; LEN], &mut [u8; BYTES]),
) {
    let (values, _) = values.as_chunks::<LEN>();
    let (importance, _) = importance.as_chunks::<LEN>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    for ((values, importance), block) in values.iter().zip(importance).zip(blocks) {
        encode(values, importance, block);
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
