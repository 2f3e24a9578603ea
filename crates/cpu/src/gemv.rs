//! `y = W x` for one vector, on the file's own blocks.

use crate::activation::Activation;
use crate::codec::Codec;
use lichen_simd::Isa;

/// How far ahead of the block in work the next ones are asked for, in bytes. A row is one stream; the hardware's
/// own prefetch stops at 4 KiB pages.
const PREFETCH_BYTES: usize = 2048;

/// `out[n] = W[n, k] x[k]`, `weights` being whole rows one after another.
#[inline(always)]
pub(crate) fn gemv<C: Codec, I: Isa>(isa: I, weights: &[u8], x: &Activation, out: &mut [f32]) {
    let row_bytes = x.len() / C::DTYPE.block_len() * C::DTYPE.block_bytes();
    for (out, row) in out.iter_mut().zip(weights.chunks_exact(row_bytes)) {
        *out = row_dot::<C, I>(isa, row, x);
    }
}

#[inline(always)]
fn row_dot<C: Codec, I: Isa>(isa: I, row: &[u8], x: &Activation) -> f32 {
    let mut sum = isa.splat(0.0);
    let mut minimums = 0.0f32;
    let mut activations = x.quants.iter().zip(&x.scales).zip(&x.sums);
    for block in row.chunks_exact(C::DTYPE.block_bytes()) {
        isa.prefetch(block, PREFETCH_BYTES);
        C::unpack(
            isa,
            block,
            #[inline(always)]
            |weights| {
                let Some(((quants, &scale), sums)) = activations.next() else { return };
                let quants = isa.load(quants);
                let products = if C::SIGNED {
                    isa.dot_signed(weights.bytes, quants)
                } else {
                    isa.dot_unsigned(weights.bytes, quants)
                };
                let scales = isa.halves(weights.scale[0] * scale, weights.scale[1] * scale);
                sum = isa.multiply_add_ints(sum, products, scales);
                if C::HAS_MINIMUM {
                    minimums = weights.minimum[0].mul_add(sums[0], minimums);
                    minimums = weights.minimum[1].mul_add(sums[1], minimums);
                }
            },
        );
    }
    isa.sum(sum) + minimums
}
