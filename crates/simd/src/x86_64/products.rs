//! How each instruction set multiplies bytes: all that they differ in.
//!
//! Every `add_products` adds to each lane of `sum` the four products of unsigned bytes of `a` with signed bytes of `b`.
//! Without VNNI, two products are added in 16 bits first, so bytes of `a` must be at most 127, or 128 where the bytes of
//! `b` are within -127..=127.

use super::{Avx2, Avx512, Avx512Vnni, AvxVnni};
use std::arch::x86_64::*;

impl Avx2 {
    /// See [`crate::Isa::WIDE_UNSIGNED`].
    pub(super) const WIDE_UNSIGNED: bool = false;

    #[inline(always)]
    pub(super) fn add_products(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX2.
        unsafe {
            let pairs = _mm256_maddubs_epi16(a, b);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

impl AvxVnni {
    /// See [`crate::Isa::WIDE_UNSIGNED`].
    pub(super) const WIDE_UNSIGNED: bool = true;

    #[inline(always)]
    pub(super) fn add_products(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sum, a, b) }
    }
}

impl Avx512 {
    /// See [`crate::Isa::WIDE_UNSIGNED`].
    pub(super) const WIDE_UNSIGNED: bool = false;

    #[inline(always)]
    pub(super) fn add_products(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // What proves AVX-512 here proves AVX2 too.
        Avx2(()).add_products(sum, a, b)
    }

    #[inline(always)]
    pub(super) fn add_products_of_512_bits(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512 BW.
        unsafe {
            let pairs = _mm512_maddubs_epi16(a, b);
            _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
        }
    }
}

impl Avx512Vnni {
    /// See [`crate::Isa::WIDE_UNSIGNED`].
    pub(super) const WIDE_UNSIGNED: bool = true;

    #[inline(always)]
    pub(super) fn add_products(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` proves AVX-512 VL and VNNI.
        unsafe { _mm256_dpbusd_epi32(sum, a, b) }
    }

    #[inline(always)]
    pub(super) fn add_products_of_512_bits(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, a, b) }
    }
}
