//! How bytes are multiplied: all that the instruction sets on top of NEON differ in.

use super::{NeonWith, Pair};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::marker::PhantomData;

/// A way to multiply bytes.
pub trait Products: Copy + 'static {
    /// The name of the instruction set.
    const NAME: &'static str;

    /// Whether this processor has the instructions.
    fn is_supported() -> bool;

    /// Runs `f` compiled for them.
    ///
    /// # Safety
    /// They must be supported.
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R;

    /// Adds to each lane of `sum` four products of signed bytes.
    ///
    /// # Safety
    /// The instructions must be supported.
    unsafe fn add(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t;

    /// See [`crate::Isa::quads_dots`]; all bytes are signed.
    ///
    /// # Safety
    /// The instructions must be supported.
    #[inline(always)]
    unsafe fn quads_dots<const N: usize>(
        sums: &mut [Pair<int32x4_t>; N],
        quads: &[u8],
        others: &[[[u8; 4]; N]],
    ) {
        crate::quads_one_by_one(NeonWith::<Self>(PhantomData), sums, quads, others, true);
    }
}

/// Products of 16 bits, which are widened and added: needs no extension.
#[derive(Debug, Clone, Copy)]
pub struct Widening;

/// `sdot`.
#[derive(Debug, Clone, Copy)]
pub struct DotProduct;

/// `smmla` in panels, else `sdot`.
#[derive(Debug, Clone, Copy)]
pub struct MatrixProduct;

impl Products for Widening {
    const NAME: &'static str = "neon";

    fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon")
    }

    #[inline(always)]
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "neon")]
        fn compiled<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the caller vouches for NEON.
        unsafe { compiled(f) }
    }

    #[inline(always)]
    unsafe fn add(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for NEON. Pairs are added after widening to 32 bits, so nothing overflows.
        unsafe {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            let high = vpaddlq_s16(vmull_high_s8(a, b));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
    }
}

/// The intrinsic is unstable; like it, this is inlined where the caller has the instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes the named registers alone.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

impl Products for DotProduct {
    const NAME: &'static str = "neon-dotprod";

    fn is_supported() -> bool {
        is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod")
    }

    #[inline(always)]
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "neon,dotprod")]
        fn compiled<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the caller vouches for the dot products.
        unsafe { compiled(f) }
    }

    #[inline(always)]
    unsafe fn add(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for the dot products.
        unsafe { sdot(sum, a, b) }
    }
}

/// Two rows of eight signed bytes of `a` times two of `b`: adds to lane `2 i + j` the products of row `i` with row `j`.
/// As with `sdot`, the intrinsic is unstable.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: reads and writes the named registers alone.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// The quads of eight rows and those after them as four pairs of rows of eight bytes.
///
/// # Safety
/// The processor must have NEON.
#[inline(always)]
unsafe fn pairs_of_rows(quads: &[u8; 64]) -> [int8x16_t; 4] {
    // SAFETY: the caller vouches for NEON; reads the 64 borrowed bytes.
    unsafe {
        let load = |at| vreinterpretq_s32_u8(vld1q_u8(quads.as_ptr().add(at)));
        let (first, next) = ([load(0), load(16)], [load(32), load(48)]);
        [
            vreinterpretq_s8_s32(vzip1q_s32(first[0], next[0])),
            vreinterpretq_s8_s32(vzip2q_s32(first[0], next[0])),
            vreinterpretq_s8_s32(vzip1q_s32(first[1], next[1])),
            vreinterpretq_s8_s32(vzip2q_s32(first[1], next[1])),
        ]
    }
}

impl Products for MatrixProduct {
    const NAME: &'static str = "neon-i8mm";

    fn is_supported() -> bool {
        DotProduct::is_supported() && is_aarch64_feature_detected!("i8mm")
    }

    #[inline(always)]
    unsafe fn run<R>(f: impl FnOnce() -> R) -> R {
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn compiled<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        // SAFETY: the caller vouches for the instructions.
        unsafe { compiled(f) }
    }

    #[inline(always)]
    unsafe fn add(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: the caller vouches for the dot products.
        unsafe { sdot(sum, a, b) }
    }

    #[inline(always)]
    unsafe fn quads_dots<const N: usize>(
        sums: &mut [Pair<int32x4_t>; N],
        quads: &[u8],
        others: &[[[u8; 4]; N]],
    ) {
        if N % 2 != 0 {
            return crate::quads_one_by_one(NeonWith::<Self>(PhantomData), sums, quads, others, true);
        }
        // SAFETY: the caller vouches for the instructions; reads the 8 borrowed bytes of each vector.
        unsafe {
            // For vectors `n` and `n + 1`: the first four rows in `dots[n]`, the last four in `dots[n + 1]`.
            let mut dots = [[vdupq_n_s32(0); 2]; N];
            let (pairs, rest) = quads.as_chunks::<64>();
            assert!(rest.is_empty(), "quads come in pairs");
            for (i, quads) in pairs.iter().enumerate() {
                let rows = pairs_of_rows(quads);
                for n in (0..N).step_by(2) {
                    let quads = |quad: usize| {
                        let pair: &[[u8; 4]; 2] =
                            others[quad][n..].first_chunk().expect("vectors come in pairs");
                        vreinterpret_s32_s8(vld1_s8(pair.as_ptr().cast()))
                    };
                    let (first, second) = (quads(2 * i), quads(2 * i + 1));
                    let both = vcombine_s32(vzip1_s32(first, second), vzip2_s32(first, second));
                    let both = vreinterpretq_s8_s32(both);
                    dots[n] = [smmla(dots[n][0], rows[0], both), smmla(dots[n][1], rows[1], both)];
                    dots[n + 1] =
                        [smmla(dots[n + 1][0], rows[2], both), smmla(dots[n + 1][1], rows[3], both)];
                }
            }
            for n in (0..N).step_by(2) {
                let ([a, b], [c, d]) = (dots[n], dots[n + 1]);
                let sum = |to: Pair<_>, low, high| Pair(vaddq_s32(to.0, low), vaddq_s32(to.1, high));
                sums[n] = sum(sums[n], vuzp1q_s32(a, b), vuzp1q_s32(c, d));
                sums[n + 1] = sum(sums[n + 1], vuzp2q_s32(a, b), vuzp2q_s32(c, d));
            }
        }
    }
}
