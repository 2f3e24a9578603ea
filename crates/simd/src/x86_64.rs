//! AVX2, and AVX-512 VNNI on 256-bit vectors.
//!
//! The two differ in how they multiply bytes; the rest is one macro, since a trait method can't carry
//! `#[target_feature]` and the operations are the same intrinsics.

#![expect(unsafe_code, reason = "intrinsics need the instructions that the value of the type proves")]

use crate::Isa;
use std::arch::x86_64::*;

/// AVX2 with FMA: x86-64 since 2013.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// AVX-512 with VNNI, used on vectors of 256 bits.
#[derive(Debug, Clone, Copy)]
pub struct Avx512Vnni(());

impl Avx2 {
    #[inline(always)]
    fn multiply_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)) }
    }
}

impl Avx512Vnni {
    #[inline(always)]
    fn multiply_bytes(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX-512 VL and VNNI.
        unsafe { _mm256_dpbusd_epi32(_mm256_setzero_si256(), a, b) }
    }
}

macro_rules! isa_of_256_bits {
    ($isa:ident, $name:literal, $($feature:tt),+) => {
        impl Isa for $isa {
            const NAME: &'static str = $name;
            type Bytes = __m256i;
            type Ints = __m256i;
            type Floats = __m256;

            fn new() -> Option<Self> {
                ($(is_x86_feature_detected!($feature))&&+).then_some(Self(()))
            }

            #[inline(always)]
            fn run<R>(self, f: impl FnOnce() -> R) -> R {
                $(#[target_feature(enable = $feature)])+
                fn compiled<R>(f: impl FnOnce() -> R) -> R {
                    f()
                }
                // SAFETY: `new` looked for each of these features.
                unsafe { compiled(f) }
            }

            #[inline(always)]
            fn load(self, bytes: &[u8; 32]) -> __m256i {
                // SAFETY: reads the 32 borrowed bytes, unaligned.
                unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
            }

            #[inline(always)]
            fn nibbles(self, bytes: &[u8; 16]) -> __m256i {
                // SAFETY: reads the 16 borrowed bytes, unaligned; `self` proves AVX2.
                unsafe {
                    let both = _mm_loadu_si128(bytes.as_ptr().cast());
                    let pair = _mm256_set_m128i(_mm_srli_epi16(both, 4), both);
                    _mm256_and_si256(pair, _mm256_set1_epi8(15))
                }
            }

            #[inline(always)]
            fn shift_mask(self, bytes: __m256i, count: u8, mask: u8) -> __m256i {
                let mask = mask & (0xffu8 >> count);
                // SAFETY: `self` proves AVX2. Bits that cross a byte fall to the mask.
                unsafe {
                    let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(i32::from(count)));
                    _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
                }
            }

            #[inline(always)]
            fn shift_left(self, bytes: __m256i, count: u8) -> __m256i {
                let mask = 0xffu8 << count;
                // SAFETY: `self` proves AVX2. Bits that cross a byte fall to the mask.
                unsafe {
                    let shifted = _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(i32::from(count)));
                    _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
                }
            }

            #[inline(always)]
            fn spread_bits(self, bits: u32, value: u8) -> __m256i {
                // SAFETY: `self` proves AVX2.
                unsafe {
                    let byte_of_lane = _mm256_setr_epi64x(
                        0,
                        0x0101_0101_0101_0101,
                        0x0202_0202_0202_0202,
                        0x0303_0303_0303_0303,
                    );
                    let bit_of_lane = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                    let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), byte_of_lane);
                    let set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of_lane), bit_of_lane);
                    _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
                }
            }

            #[inline(always)]
            fn or(self, a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: `self` proves AVX2.
                unsafe { _mm256_or_si256(a, b) }
            }

            #[inline(always)]
            fn lookup(self, table: &[u8; 16], bytes: __m256i) -> __m256i {
                // SAFETY: reads the 16 borrowed bytes, unaligned; `self` proves AVX2.
                unsafe {
                    let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
                    _mm256_shuffle_epi8(table, bytes)
                }
            }

            #[inline(always)]
            fn dot_unsigned(self, a: __m256i, b: __m256i) -> __m256i {
                self.multiply_bytes(a, b)
            }

            #[inline(always)]
            fn dot_signed(self, a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: `self` proves AVX2.
                let (magnitude, signed) = unsafe { (_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)) };
                self.multiply_bytes(magnitude, signed)
            }

            #[inline(always)]
            fn splat(self, value: f32) -> __m256 {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_set1_ps(value) }
            }

            #[inline(always)]
            fn halves(self, low: f32, high: f32) -> __m256 {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low)) }
            }

            #[inline(always)]
            fn multiply_add_ints(self, sum: __m256, ints: __m256i, scale: __m256) -> __m256 {
                // SAFETY: `self` proves AVX2 and FMA.
                unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(ints), scale, sum) }
            }

            #[inline(always)]
            fn multiply_add(self, sum: __m256, a: __m256, b: __m256) -> __m256 {
                // SAFETY: `self` proves FMA.
                unsafe { _mm256_fmadd_ps(a, b, sum) }
            }

            #[inline(always)]
            fn load_floats(self, values: &[f32; 8]) -> __m256 {
                // SAFETY: reads the 8 borrowed floats, unaligned.
                unsafe { _mm256_loadu_ps(values.as_ptr()) }
            }

            #[inline(always)]
            fn sum(self, values: __m256) -> f32 {
                // SAFETY: `self` proves AVX.
                unsafe {
                    let four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
                    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
                }
            }

            #[inline(always)]
            fn prefetch(self, bytes: &[u8], offset: usize) {
                let line = bytes.as_ptr().wrapping_add(offset);
                // SAFETY: a prefetch is a hint and never faults, wherever it points.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
            }
        }
    };
}

isa_of_256_bits!(Avx2, "avx2", "avx2", "fma", "f16c");
isa_of_256_bits!(Avx512Vnni, "avx512-vnni", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512vnni");
