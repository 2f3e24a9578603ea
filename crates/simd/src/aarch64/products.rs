//! How bytes are multiplied: all that the instruction sets on top of NEON differ in.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

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
}

/// Products of 16 bits, which are widened and added: needs no extension.
#[derive(Debug, Clone, Copy)]
pub struct Widening;

/// `sdot`.
#[derive(Debug, Clone, Copy)]
pub struct DotProduct;

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
