//! Plain Rust: runs everywhere and is the measure of the others.

use crate::Isa;
use std::array::from_fn;

/// No special instructions.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

impl Isa for Scalar {
    const NAME: &'static str = "scalar";
    type Bytes = [u8; 32];
    type Ints = [i32; 8];
    type Floats = [f32; 8];

    fn new() -> Option<Self> {
        Some(Self)
    }

    #[inline(always)]
    fn run<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }

    const PANEL_ROWS: usize = 8;
    const WIDE_UNSIGNED: bool = true;
    type Lanes = [f32; 8];
    type LaneInts = [i32; 8];

    #[inline(always)]
    fn lanes_splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn lanes_load(self, values: &[f32]) -> [f32; 8] {
        from_fn(|lane| values[lane])
    }

    #[inline(always)]
    fn lanes_store(self, lanes: [f32; 8], out: &mut [f32]) {
        out[..8].copy_from_slice(&lanes);
    }

    #[inline(always)]
    fn lanes_multiply_add(self, sum: [f32; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| a[lane].mul_add(b[lane], sum[lane]))
    }

    #[inline(always)]
    fn lanes_multiply(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn lanes_from_ints(self, ints: [i32; 8]) -> [f32; 8] {
        ints.map(|int| int as f32)
    }

    #[inline(always)]
    fn lane_ints_splat(self, value: i32) -> [i32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn quad_dot(self, sum: [i32; 8], quads: &[u8], other: &[u8; 4]) -> [i32; 8] {
        let product = |lane: usize, i: usize| i32::from(quads[4 * lane + i]) * i32::from(other[i] as i8);
        from_fn(|lane| sum[lane] + (0..4).map(|i| product(lane, i)).sum::<i32>())
    }

    #[inline(always)]
    fn quad_dot_signed(self, sum: [i32; 8], quads: &[u8], other: &[u8; 4]) -> [i32; 8] {
        let product =
            |lane: usize, i: usize| i32::from(quads[4 * lane + i] as i8) * i32::from(other[i] as i8);
        from_fn(|lane| sum[lane] + (0..4).map(|i| product(lane, i)).sum::<i32>())
    }

    type Quads = [u8; 32];

    #[inline(always)]
    fn quads_load(self, bytes: &[u8]) -> [u8; 32] {
        from_fn(|i| bytes[i])
    }

    #[inline(always)]
    fn quads_nibbles(self, quads: [u8; 32]) -> [[u8; 32]; 2] {
        [quads.map(|quad| quad & 15), quads.map(|quad| quad >> 4)]
    }

    #[inline(always)]
    fn quads_fifth_bit(self, quads: [u8; 32], plane: [u8; 32], bit: u8) -> [u8; 32] {
        from_fn(|i| quads[i] | (plane[i] >> bit & 1) << 4)
    }

    #[inline(always)]
    fn quads_dot(self, sum: [i32; 8], quads: [u8; 32], other: &[u8; 4]) -> [i32; 8] {
        self.quad_dot(sum, &quads, other)
    }

    #[inline(always)]
    fn lanes_add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn lanes_larger(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn lanes_where_above(self, a: [f32; 8], b: [f32; 8], value: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| if a[lane] > b[lane] { value[lane] } else { 0.0 })
    }

    #[inline(always)]
    fn lanes_times_power(self, value: [f32; 8], power: [f32; 8]) -> [f32; 8] {
        let exponent = |power: f32| (power.to_bits() << 23).wrapping_add(1.0f32.to_bits());
        from_fn(|lane| value[lane] * f32::from_bits(exponent(power[lane])))
    }

    #[inline(always)]
    fn lanes_of_halves(self, values: &[u16]) -> [f32; 8] {
        self.load_halves(values.first_chunk().expect("a number for each lane"))
    }

    #[inline(always)]
    fn lanes_of_bytes(self, bytes: &[i8]) -> [f32; 8] {
        from_fn(|lane| f32::from(bytes[lane]))
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> [u8; 32] {
        *bytes
    }

    #[inline(always)]
    fn store(self, bytes: [u8; 32]) -> [u8; 32] {
        bytes
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> [u8; 32] {
        from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
    }

    #[inline(always)]
    fn shift_mask(self, bytes: [u8; 32], count: u8, mask: u8) -> [u8; 32] {
        bytes.map(|byte| (byte >> count) & mask)
    }

    #[inline(always)]
    fn shift_left(self, bytes: [u8; 32], count: u8) -> [u8; 32] {
        bytes.map(|byte| byte << count)
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> [u8; 32] {
        from_fn(|i| if bits >> i & 1 == 1 { value } else { 0 })
    }

    #[inline(always)]
    fn flip_signs(self, bytes: [u8; 32]) -> [u8; 32] {
        bytes.map(|byte| byte ^ 0x80)
    }

    #[inline(always)]
    fn or(self, a: [u8; 32], b: [u8; 32]) -> [u8; 32] {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], bytes: [u8; 32]) -> [u8; 32] {
        bytes.map(|byte| table[usize::from(byte & 15)])
    }

    #[inline(always)]
    fn dot_unsigned(self, a: [u8; 32], b: [u8; 32]) -> [i32; 8] {
        from_fn(|lane| (0..4).map(|i| i32::from(a[4 * lane + i]) * i32::from(b[4 * lane + i] as i8)).sum())
    }

    #[inline(always)]
    fn dot_signed(self, a: [u8; 32], b: [u8; 32]) -> [i32; 8] {
        from_fn(|lane| {
            (0..4).map(|i| i32::from(a[4 * lane + i] as i8) * i32::from(b[4 * lane + i] as i8)).sum()
        })
    }

    #[inline(always)]
    fn ints_splat(self, value: i32) -> [i32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn add_ints(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn load_ints(self, ints: &[i32; 8]) -> [i32; 8] {
        *ints
    }

    #[inline(always)]
    fn floats_of_byte_pairs(self, bytes: [u64; 2]) -> [[f32; 8]; 2] {
        let byte = |at: usize| f32::from((bytes[at / 8] >> (8 * (at % 8))) as i8);
        from_fn(|odd| from_fn(|lane| byte(2 * lane + odd)))
    }

    #[inline(always)]
    fn half_sums(self, rows: &[[i32; 8]; 8], _largest: i32) -> [[i32; 8]; 2] {
        from_fn(|half| from_fn(|row| rows[row][4 * half..][..4].iter().sum()))
    }

    #[inline(always)]
    fn splat(self, value: f32) -> [f32; 8] {
        [value; 8]
    }

    #[inline(always)]
    fn multiply(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn multiply_add(self, sum: [f32; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        from_fn(|lane| a[lane].mul_add(b[lane], sum[lane]))
    }

    #[inline(always)]
    fn floats(self, ints: [i32; 8]) -> [f32; 8] {
        ints.map(|int| int as f32)
    }

    #[inline(always)]
    fn floats_of_bytes(self, bytes: u64) -> [f32; 8] {
        bytes.to_le_bytes().map(|byte| f32::from(byte as i8))
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    fn transpose_quads(self, rows: &[[u8; 32]; 8]) -> [[u8; 32]; 8] {
        from_fn(|quad| from_fn(|i| rows[i / 4][4 * quad + i % 4]))
    }

    #[inline(always)]
    fn transpose(self, rows: &[[f32; 8]; 8]) -> [[f32; 8]; 8] {
        from_fn(|j| from_fn(|i| rows[i][j]))
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; 8]) -> [f32; 8] {
        *values
    }

    #[inline(always)]
    fn load_halves(self, values: &[u16; 8]) -> [f32; 8] {
        values.map(|bits| half::f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn store_floats(self, floats: [f32; 8], out: &mut [f32; 8]) {
        *out = floats;
    }

    #[inline(always)]
    fn prefetch(self, _bytes: &[u8], _offset: usize, _near: bool) {}
}
