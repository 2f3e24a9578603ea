//! AVX2, and what came after it, with 256-bit vectors; panels take 512 bits where there are.
//!
//! They differ in how they multiply bytes and in how wide a panel is; the rest is one macro, since a trait method
//! can't carry `#[target_feature]` and the operations are the same intrinsics.

#![expect(unsafe_code, reason = "intrinsics need the instructions that the value of the type proves")]

#[macro_use]
mod lanes;
mod products;

use crate::Isa;
use std::arch::x86_64::*;

/// AVX2 with FMA: x86-64 since 2013.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

/// AVX2 with the dot products of VNNI in their AVX encoding: processors without AVX-512 since 2021.
#[derive(Debug, Clone, Copy)]
pub struct AvxVnni(());

/// AVX-512 without VNNI: servers since 2017. Only panels take 512 bits.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

/// AVX-512 with VNNI. Only panels take 512 bits.
#[derive(Debug, Clone, Copy)]
pub struct Avx512Vnni(());

/// Adds neighbours in each 128 bits: of `a`, then of `b`. No lane may be of a magnitude above `largest`: up to 16 bits
/// that takes two instructions instead of three.
///
/// AVX2 must be there.
#[inline(always)]
fn neighbours(a: __m256i, b: __m256i, largest: i32) -> __m256i {
    // SAFETY: only methods of sets that prove AVX2 call it.
    unsafe {
        if largest <= i32::from(i16::MAX) {
            _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1))
        } else {
            _mm256_hadd_epi32(a, b)
        }
    }
}

macro_rules! isa_of_256_bits {
    ($isa:ident, $name:literal, $lanes:ident, $($feature:tt),+) => {
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

            $lanes!{$isa}

            #[inline(always)]
            fn store(self, bytes: __m256i) -> [u8; 32] {
                let mut out = [0; 32];
                // SAFETY: writes the 32 bytes of `out`, unaligned.
                unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes) };
                out
            }

            #[inline(always)]
            fn load_halves(self, values: &[u16; 8]) -> __m256 {
                // SAFETY: reads the 8 borrowed numbers, unaligned; `self` proves F16C.
                unsafe { _mm256_cvtph_ps(_mm_loadu_si128(values.as_ptr().cast())) }
            }

            #[inline(always)]
            fn store_floats(self, floats: __m256, out: &mut [f32; 8]) {
                // SAFETY: writes the 8 borrowed floats, unaligned.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), floats) }
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
                    let both = _mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast()));
                    let apart = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
                    _mm256_and_si256(apart, _mm256_set1_epi8(15))
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
            fn flip_signs(self, bytes: __m256i) -> __m256i {
                // SAFETY: `self` proves AVX2.
                unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) }
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
                self.add_products(self.ints_splat(0), a, b)
            }

            #[inline(always)]
            fn dot_signed(self, a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: `self` proves AVX2.
                let (magnitude, signed) = unsafe { (_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)) };
                self.add_products(self.ints_splat(0), magnitude, signed)
            }

            #[inline(always)]
            fn ints_splat(self, value: i32) -> __m256i {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_set1_epi32(value) }
            }

            #[inline(always)]
            fn add_ints(self, a: __m256i, b: __m256i) -> __m256i {
                // SAFETY: `self` proves AVX2.
                unsafe { _mm256_add_epi32(a, b) }
            }

            #[inline(always)]
            fn transpose_quads(self, rows: &[__m256i; 8]) -> [__m256i; 8] {
                // SAFETY: `self` proves AVX. The casts leave the bits as they are.
                unsafe {
                    let floats = rows.map(|row| _mm256_castsi256_ps(row));
                    self.transpose(&floats).map(|row| _mm256_castps_si256(row))
                }
            }

            #[inline(always)]
            fn half_sums(self, rows: &[__m256i; 8], largest: i32) -> [__m256i; 2] {
                let [a, b, c, d, e, f, g, h] = *rows;
                let (ab, cd) = (neighbours(a, b, largest), neighbours(c, d, largest));
                let (ef, gh) = (neighbours(e, f, largest), neighbours(g, h, largest));
                let twice = largest.saturating_mul(2);
                let (first, last) = (neighbours(ab, cd, twice), neighbours(ef, gh, twice));
                // SAFETY: `self` proves AVX2. The low and high 128 bits stayed apart until here.
                unsafe {
                    [
                        _mm256_permute2x128_si256::<0x20>(first, last),
                        _mm256_permute2x128_si256::<0x31>(first, last),
                    ]
                }
            }

            #[inline(always)]
            fn load_ints(self, ints: &[i32; 8]) -> __m256i {
                // SAFETY: reads the 8 borrowed integers, unaligned.
                unsafe { _mm256_loadu_si256(ints.as_ptr().cast()) }
            }

            #[inline(always)]
            fn floats_of_byte_pairs(self, bytes: [u64; 2]) -> [__m256; 2] {
                // SAFETY: `self` proves AVX2.
                unsafe {
                    let both = _mm_set_epi64x(bytes[1] as i64, bytes[0] as i64);
                    let apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
                    let even = _mm_shuffle_epi8(both, apart);
                    let odd = _mm_unpackhi_epi64(even, even);
                    [
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(even)),
                        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(odd)),
                    ]
                }
            }

            #[inline(always)]
            fn floats(self, ints: __m256i) -> __m256 {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_cvtepi32_ps(ints) }
            }

            #[inline(always)]
            fn floats_of_bytes(self, bytes: u64) -> __m256 {
                // SAFETY: `self` proves AVX2.
                unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes as i64))) }
            }

            #[inline(always)]
            fn half(self, bits: u16) -> f32 {
                // SAFETY: `self` proves F16C.
                unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(bits)))) }
            }

            #[inline(always)]
            fn transpose(self, rows: &[__m256; 8]) -> [__m256; 8] {
                // SAFETY: `self` proves AVX. Pairs of rows, then quads, then the two halves of all eight.
                unsafe {
                    let [a, b, c, d, e, f, g, h] = *rows;
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    let (ef, gh) = (_mm256_unpacklo_ps(e, f), _mm256_unpacklo_ps(g, h));
                    let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    let (ef_high, gh_high) = (_mm256_unpackhi_ps(e, f), _mm256_unpackhi_ps(g, h));
                    let (low0, high0) = (_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0x44>(ef, gh));
                    let (low1, high1) = (_mm256_shuffle_ps::<0xee>(ab, cd), _mm256_shuffle_ps::<0xee>(ef, gh));
                    let low2 = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
                    let high2 = _mm256_shuffle_ps::<0x44>(ef_high, gh_high);
                    let low3 = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
                    let high3 = _mm256_shuffle_ps::<0xee>(ef_high, gh_high);
                    [
                        _mm256_permute2f128_ps::<0x20>(low0, high0),
                        _mm256_permute2f128_ps::<0x20>(low1, high1),
                        _mm256_permute2f128_ps::<0x20>(low2, high2),
                        _mm256_permute2f128_ps::<0x20>(low3, high3),
                        _mm256_permute2f128_ps::<0x31>(low0, high0),
                        _mm256_permute2f128_ps::<0x31>(low1, high1),
                        _mm256_permute2f128_ps::<0x31>(low2, high2),
                        _mm256_permute2f128_ps::<0x31>(low3, high3),
                    ]
                }
            }

            #[inline(always)]
            fn splat(self, value: f32) -> __m256 {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_set1_ps(value) }
            }

            #[inline(always)]
            fn multiply(self, a: __m256, b: __m256) -> __m256 {
                // SAFETY: `self` proves AVX.
                unsafe { _mm256_mul_ps(a, b) }
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
            fn prefetch(self, bytes: &[u8], offset: usize, near: bool) {
                let line = bytes.as_ptr().wrapping_add(offset);
                // SAFETY: a prefetch is a hint and never faults, wherever it points.
                unsafe {
                    if near {
                        _mm_prefetch::<_MM_HINT_T0>(line.cast());
                    } else {
                        _mm_prefetch::<_MM_HINT_T1>(line.cast());
                    }
                }
            }
        }
    };
}

isa_of_256_bits!(Avx2, "avx2", eight_lanes, "avx2", "fma", "f16c");
isa_of_256_bits!(AvxVnni, "avx-vnni", eight_lanes, "avx2", "fma", "f16c", "avxvnni");
isa_of_256_bits!(Avx512, "avx512", sixteen_lanes, "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl");
isa_of_256_bits!(
    Avx512Vnni,
    "avx512-vnni",
    sixteen_lanes,
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512vnni"
);
