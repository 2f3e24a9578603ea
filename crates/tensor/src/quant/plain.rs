//! Types that store each value by itself, little-endian.

pub(super) fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = half::f16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out) {
        *out = half::bf16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn encode_f32(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = value.to_le_bytes();
    }
}

pub(super) fn encode_f16(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = half::f16::from_f32(*value).to_le_bytes();
    }
}

pub(super) fn encode_bf16(values: &[f32], out: &mut [u8]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut().0) {
        *out = half::bf16::from_f32(*value).to_le_bytes();
    }
}
