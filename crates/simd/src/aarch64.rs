//! NEON, and how the extensions of ARM multiply bytes.

#![expect(unsafe_code, reason = "intrinsics need the instructions that the value of the type proves")]

mod products;

use crate::Isa;
use products::{DotProduct, MatrixProduct, Products, Widening};
use std::arch::aarch64::*;
use std::marker::PhantomData;

/// NEON on pairs of 128-bit vectors, bytes multiplied the way of `P`.
#[derive(Debug, Clone, Copy)]
pub struct NeonWith<P>(PhantomData<P>);

/// NEON as every 64-bit ARM processor has it.
pub type Neon = NeonWith<Widening>;

/// NEON with the dot products of ARMv8.2: most processors since 2018.
pub type NeonDotprod = NeonWith<DotProduct>;

/// NEON with the products of small matrices of ARMv8.6, in panels: most processors since 2021.
pub type NeonI8mm = NeonWith<MatrixProduct>;

/// Two vectors that count as one of 256 bits.
#[derive(Debug, Clone, Copy)]
pub struct Pair<T>(T, T);

/// Four rows of four as four columns.
///
/// # Safety
/// The processor must have NEON.
#[inline(always)]
unsafe fn transpose4(a: float32x4_t, b: float32x4_t, c: float32x4_t, d: float32x4_t) -> [float32x4_t; 4] {
    // SAFETY: the caller vouches for NEON.
    unsafe {
        let double = |low, high| (vreinterpretq_f64_f32(low), vreinterpretq_f64_f32(high));
        let (ab_even, cd_even) = double(vtrn1q_f32(a, b), vtrn1q_f32(c, d));
        let (ab_odd, cd_odd) = double(vtrn2q_f32(a, b), vtrn2q_f32(c, d));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even)),
            vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even)),
            vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)),
        ]
    }
}

impl<P: Products> Isa for NeonWith<P> {
    const NAME: &'static str = P::NAME;
    type Bytes = Pair<uint8x16_t>;
    type Ints = Pair<int32x4_t>;
    type Floats = Pair<float32x4_t>;
    const PANEL_ROWS: usize = 8;
    const WIDE_UNSIGNED: bool = false;
    type Lanes = Pair<float32x4_t>;
    type LaneInts = Pair<int32x4_t>;

    fn new() -> Option<Self> {
        P::is_supported().then_some(Self(PhantomData))
    }

    #[inline(always)]
    fn run<R>(self, f: impl FnOnce() -> R) -> R {
        // SAFETY: `new` looked whether it is supported.
        unsafe { P::run(f) }
    }

    #[inline(always)]
    fn lanes_splat(self, value: f32) -> Self::Lanes {
        self.splat(value)
    }

    #[inline(always)]
    fn lanes_load(self, values: &[f32]) -> Self::Lanes {
        self.load_floats(values.first_chunk().expect("a lane for each row"))
    }

    #[inline(always)]
    fn lanes_store(self, lanes: Self::Lanes, out: &mut [f32]) {
        self.store_floats(lanes, out.first_chunk_mut().expect("a lane for each row"));
    }

    #[inline(always)]
    fn lanes_multiply_add(self, sum: Self::Lanes, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        self.multiply_add(sum, a, b)
    }

    #[inline(always)]
    fn lanes_multiply(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        self.multiply(a, b)
    }

    #[inline(always)]
    fn lanes_from_ints(self, ints: Self::LaneInts) -> Self::Lanes {
        self.floats(ints)
    }

    #[inline(always)]
    fn lane_ints_splat(self, value: i32) -> Self::LaneInts {
        self.ints_splat(value)
    }

    #[inline(always)]
    fn quad_dot(self, sum: Self::LaneInts, quads: &[u8], other: &[u8; 4]) -> Self::LaneInts {
        // At most 127, unsigned bytes are the same signed.
        self.quad_dot_signed(sum, quads, other)
    }

    #[inline(always)]
    fn quad_dot_signed(self, sum: Self::LaneInts, quads: &[u8], other: &[u8; 4]) -> Self::LaneInts {
        self.quads_dot(sum, self.quads_load(quads), other)
    }

    #[inline(always)]
    fn quads_dots<const N: usize>(
        self,
        sums: &mut [Self::LaneInts; N],
        quads: &[u8],
        others: &[[[u8; 4]; N]],
        _signed: bool,
    ) {
        // SAFETY: `self` proves NEON and what `P` needs. At most 127, unsigned bytes are the same signed.
        unsafe { P::quads_dots(sums, quads, others) };
    }

    type Quads = Pair<uint8x16_t>;

    #[inline(always)]
    fn quads_load(self, bytes: &[u8]) -> Self::Quads {
        self.load(bytes.first_chunk().expect("a quad for each lane"))
    }

    #[inline(always)]
    fn quads_nibbles(self, quads: Self::Quads) -> [Self::Quads; 2] {
        [self.shift_mask(quads, 0, 15), self.shift_mask(quads, 4, 15)]
    }

    #[inline(always)]
    fn quads_fifth_bit(self, quads: Self::Quads, plane: Self::Quads, bit: u8) -> Self::Quads {
        // SAFETY: `self` proves NEON.
        unsafe {
            let (bit, fifth) = (vdupq_n_u8(1 << bit), vdupq_n_u8(16));
            let with = |quads, plane| vorrq_u8(quads, vandq_u8(vtstq_u8(plane, bit), fifth));
            Pair(with(quads.0, plane.0), with(quads.1, plane.1))
        }
    }

    #[inline(always)]
    fn quads_dot(self, sum: Self::LaneInts, quads: Self::Quads, other: &[u8; 4]) -> Self::LaneInts {
        // SAFETY: `self` proves NEON and what `P` needs.
        unsafe {
            let other = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(*other)));
            Pair(
                P::add(sum.0, vreinterpretq_s8_u8(quads.0), other),
                P::add(sum.1, vreinterpretq_s8_u8(quads.1), other),
            )
        }
    }

    #[inline(always)]
    fn lanes_add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vaddq_f32(a.0, b.0), vaddq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    fn lanes_larger(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vbslq_f32(vcgtq_f32(a.0, b.0), a.0, b.0), vbslq_f32(vcgtq_f32(a.1, b.1), a.1, b.1)) }
    }

    #[inline(always)]
    fn lanes_where_above(self, a: Self::Lanes, b: Self::Lanes, value: Self::Lanes) -> Self::Lanes {
        // SAFETY: `self` proves NEON.
        unsafe {
            let zero = vdupq_n_f32(0.0);
            Pair(vbslq_f32(vcgtq_f32(a.0, b.0), value.0, zero), vbslq_f32(vcgtq_f32(a.1, b.1), value.1, zero))
        }
    }

    #[inline(always)]
    fn lanes_times_power(self, value: Self::Lanes, power: Self::Lanes) -> Self::Lanes {
        // SAFETY: `self` proves NEON.
        unsafe {
            let factor = |power| {
                let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(power));
                vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(1.0f32.to_bits())))
            };
            Pair(vmulq_f32(value.0, factor(power.0)), vmulq_f32(value.1, factor(power.1)))
        }
    }

    #[inline(always)]
    fn lanes_of_halves(self, values: &[u16]) -> Self::Lanes {
        self.load_halves(values.first_chunk().expect("a number for each lane"))
    }

    #[inline(always)]
    fn lanes_of_bytes(self, bytes: &[i8]) -> Self::Lanes {
        let bytes: &[i8; 8] = bytes.first_chunk().expect("a number for each lane");
        self.floats_of_bytes(u64::from_le_bytes(bytes.map(|byte| byte as u8)))
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> Self::Bytes {
        // SAFETY: reads the 32 borrowed bytes.
        unsafe { Pair(vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes.as_ptr().add(16))) }
    }

    #[inline(always)]
    fn store(self, bytes: Self::Bytes) -> [u8; 32] {
        let mut out = [0; 32];
        // SAFETY: writes the 32 bytes of `out`.
        unsafe {
            vst1q_u8(out.as_mut_ptr(), bytes.0);
            vst1q_u8(out.as_mut_ptr().add(16), bytes.1);
        }
        out
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> Self::Bytes {
        // SAFETY: reads the 16 borrowed bytes; `self` proves NEON.
        unsafe {
            let both = vld1q_u8(bytes.as_ptr());
            Pair(vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both))
        }
    }

    #[inline(always)]
    fn shift_mask(self, bytes: Self::Bytes, count: u8, mask: u8) -> Self::Bytes {
        // SAFETY: `self` proves NEON; a negative shift goes right.
        unsafe {
            let (count, mask) = (vdupq_n_s8(-(count as i8)), vdupq_n_u8(mask));
            Pair(vandq_u8(vshlq_u8(bytes.0, count), mask), vandq_u8(vshlq_u8(bytes.1, count), mask))
        }
    }

    #[inline(always)]
    fn shift_left(self, bytes: Self::Bytes, count: u8) -> Self::Bytes {
        // SAFETY: `self` proves NEON.
        unsafe {
            let count = vdupq_n_s8(count as i8);
            Pair(vshlq_u8(bytes.0, count), vshlq_u8(bytes.1, count))
        }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> Self::Bytes {
        // SAFETY: `self` proves NEON.
        unsafe {
            let bit_of_lane = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let [a, b, c, d] = bits.to_le_bytes();
            let value = vdupq_n_u8(value);
            let spread = |low: u8, high: u8| {
                let bytes = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
                vandq_u8(vtstq_u8(bytes, bit_of_lane), value)
            };
            Pair(spread(a, b), spread(c, d))
        }
    }

    #[inline(always)]
    fn flip_signs(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(veorq_u8(bytes.0, vdupq_n_u8(0x80)), veorq_u8(bytes.1, vdupq_n_u8(0x80))) }
    }

    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vorrq_u8(a.0, b.0), vorrq_u8(a.1, b.1)) }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: reads the 16 borrowed bytes; `self` proves NEON.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            Pair(vqtbl1q_u8(table, bytes.0), vqtbl1q_u8(table, bytes.1))
        }
    }

    #[inline(always)]
    fn dot_unsigned(self, a: Self::Bytes, b: Self::Bytes) -> Self::Ints {
        // At most 127, unsigned bytes are the same signed.
        self.dot_signed(a, b)
    }

    #[inline(always)]
    fn dot_signed(self, a: Self::Bytes, b: Self::Bytes) -> Self::Ints {
        // SAFETY: `self` proves NEON and what `P` needs.
        unsafe {
            let zero = vdupq_n_s32(0);
            Pair(
                P::add(zero, vreinterpretq_s8_u8(a.0), vreinterpretq_s8_u8(b.0)),
                P::add(zero, vreinterpretq_s8_u8(a.1), vreinterpretq_s8_u8(b.1)),
            )
        }
    }

    #[inline(always)]
    fn ints_splat(self, value: i32) -> Self::Ints {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vdupq_n_s32(value), vdupq_n_s32(value)) }
    }

    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vaddq_s32(a.0, b.0), vaddq_s32(a.1, b.1)) }
    }

    #[inline(always)]
    fn load_ints(self, ints: &[i32; 8]) -> Self::Ints {
        // SAFETY: reads the 8 borrowed integers.
        unsafe { Pair(vld1q_s32(ints.as_ptr()), vld1q_s32(ints.as_ptr().add(4))) }
    }

    #[inline(always)]
    fn floats_of_byte_pairs(self, bytes: [u64; 2]) -> [Self::Floats; 2] {
        // SAFETY: `self` proves NEON.
        unsafe {
            let both = bytes.map(|bytes| vcreate_s8(bytes));
            [vuzp1_s8(both[0], both[1]), vuzp2_s8(both[0], both[1])].map(|bytes| {
                let wide = vmovl_s8(bytes);
                self.floats(Pair(vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)))
            })
        }
    }

    #[inline(always)]
    fn half_sums(self, rows: &[Self::Ints; 8], _largest: i32) -> [Self::Ints; 2] {
        let [a, b, c, d, e, f, g, h] = *rows;
        // SAFETY: `self` proves NEON. Each addition of neighbours halves the lanes of a row.
        unsafe {
            let four = |a, b, c, d| vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
            [
                Pair(four(a.0, b.0, c.0, d.0), four(e.0, f.0, g.0, h.0)),
                Pair(four(a.1, b.1, c.1, d.1), four(e.1, f.1, g.1, h.1)),
            ]
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vdupq_n_f32(value), vdupq_n_f32(value)) }
    }

    #[inline(always)]
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vmulq_f32(a.0, b.0), vmulq_f32(a.1, b.1)) }
    }

    #[inline(always)]
    fn floats(self, ints: Self::Ints) -> Self::Floats {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vcvtq_f32_s32(ints.0), vcvtq_f32_s32(ints.1)) }
    }

    #[inline(always)]
    fn floats_of_bytes(self, bytes: u64) -> Self::Floats {
        // SAFETY: `self` proves NEON.
        unsafe {
            let wide = vmovl_s8(vcreate_s8(bytes));
            self.floats(Pair(vmovl_s16(vget_low_s16(wide)), vmovl_high_s16(wide)))
        }
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }

    #[inline(always)]
    fn transpose_quads(self, rows: &[Self::Bytes; 8]) -> [Self::Bytes; 8] {
        // SAFETY: `self` proves NEON. The casts leave the bits as they are.
        unsafe {
            let floats = rows.map(|Pair(a, b)| Pair(vreinterpretq_f32_u8(a), vreinterpretq_f32_u8(b)));
            self.transpose(&floats).map(|Pair(a, b)| Pair(vreinterpretq_u8_f32(a), vreinterpretq_u8_f32(b)))
        }
    }

    #[inline(always)]
    fn transpose(self, rows: &[Self::Floats; 8]) -> [Self::Floats; 8] {
        let [a, b, c, d, e, f, g, h] = *rows;
        // SAFETY: `self` proves NEON.
        let ([a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3], [d0, d1, d2, d3]) = unsafe {
            (
                transpose4(a.0, b.0, c.0, d.0),
                transpose4(e.0, f.0, g.0, h.0),
                transpose4(a.1, b.1, c.1, d.1),
                transpose4(e.1, f.1, g.1, h.1),
            )
        };
        [
            Pair(a0, b0),
            Pair(a1, b1),
            Pair(a2, b2),
            Pair(a3, b3),
            Pair(c0, d0),
            Pair(c1, d1),
            Pair(c2, d2),
            Pair(c3, d3),
        ]
    }

    #[inline(always)]
    fn multiply_add(self, sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: `self` proves NEON.
        unsafe { Pair(vfmaq_f32(sum.0, a.0, b.0), vfmaq_f32(sum.1, a.1, b.1)) }
    }

    #[inline(always)]
    fn load_floats(self, values: &[f32; 8]) -> Self::Floats {
        // SAFETY: reads the 8 borrowed floats.
        unsafe { Pair(vld1q_f32(values.as_ptr()), vld1q_f32(values.as_ptr().add(4))) }
    }

    #[inline(always)]
    fn load_halves(self, values: &[u16; 8]) -> Self::Floats {
        // The conversion of eight numbers is still unstable as an intrinsic; this is two instructions a number.
        self.load_floats(&values.map(|bits| half::f16::from_bits(bits).to_f32()))
    }

    #[inline(always)]
    fn store_floats(self, floats: Self::Floats, out: &mut [f32; 8]) {
        // SAFETY: writes the 8 borrowed floats.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), floats.0);
            vst1q_f32(out.as_mut_ptr().add(4), floats.1);
        }
    }

    #[inline(always)]
    fn prefetch(self, _bytes: &[u8], _offset: usize, _near: bool) {
        // The intrinsic is unstable; the processors this is for follow one stream by themselves.
    }
}
