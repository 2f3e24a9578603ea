//! Formats of 32 weights: half-precision scale (and minimum), then the values. Layouts: ggml `ggml-common.h`.

use super::{Codec, IQ4_VALUES, Sub, bytes_at, half_at};
use lichen_simd::Isa;
use lichen_tensor::DType;

/// 4 bits, centred at 8.
pub struct Q4_0;
/// 4 bits with a minimum.
pub struct Q4_1;
/// 5 bits, centred at 16.
pub struct Q5_0;
/// 5 bits with a minimum.
pub struct Q5_1;
/// 8 bits, signed.
pub struct Q8_0;
/// 4 bits through a table.
pub struct Iq4Nl;

/// Low four bits from 16 bytes at `offset + 4`, the fifth from the 4 bytes at `offset`.
#[inline(always)]
fn five_bits<I: Isa>(isa: I, block: &[u8], offset: usize) -> I::Bytes {
    let high = u32::from_le_bytes(*bytes_at(block, offset));
    isa.or(isa.nibbles(bytes_at(block, offset + 4)), isa.spread_bits(high, 16))
}

impl Codec for Q4_0 {
    const DTYPE: DType = DType::Q4_0;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let scale = half_at(block, 0);
        each(Sub::whole(isa.nibbles(bytes_at(block, 2)), scale, -8.0 * scale));
    }
}

impl Codec for Q4_1 {
    const DTYPE: DType = DType::Q4_1;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        each(Sub::whole(isa.nibbles(bytes_at(block, 4)), half_at(block, 0), half_at(block, 2)));
    }
}

impl Codec for Q5_0 {
    const DTYPE: DType = DType::Q5_0;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let scale = half_at(block, 0);
        each(Sub::whole(five_bits(isa, block, 2), scale, -16.0 * scale));
    }
}

impl Codec for Q5_1 {
    const DTYPE: DType = DType::Q5_1;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        each(Sub::whole(five_bits(isa, block, 4), half_at(block, 0), half_at(block, 2)));
    }
}

impl Codec for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        each(Sub::whole(isa.load(bytes_at(block, 2)), half_at(block, 0), 0.0));
    }
}

impl Codec for Iq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    const SIGNED: bool = true;
    const HAS_MINIMUM: bool = false;

    #[inline(always)]
    fn unpack<I: Isa>(isa: I, block: &[u8], mut each: impl FnMut(Sub<I>)) {
        let bytes = isa.lookup(&IQ4_VALUES, isa.nibbles(bytes_at(block, 2)));
        each(Sub::whole(bytes, half_at(block, 0), 0.0));
    }
}
