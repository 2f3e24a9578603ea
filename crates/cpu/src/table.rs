//! Which kernels this binary has. `best` picks; the tests walk all of them.

use crate::activation::Activation;
use crate::codec::{Codec, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::gemv::gemv;
#[cfg(target_arch = "x86_64")]
use lichen_simd::{Avx2, Avx512Vnni};
use lichen_simd::{Isa, Scalar};
use lichen_tensor::DType;

/// `y = W x` for one weight format on one instruction set.
pub struct Gemv {
    /// The format of the weights.
    pub dtype: DType,
    /// The name of the instruction set.
    pub isa: &'static str,
    supported: fn() -> bool,
    run: fn(&[u8], &Activation, &mut [f32]),
}

impl Gemv {
    const fn new<C: Codec, I: Isa>() -> Self {
        Self { dtype: C::DTYPE, isa: I::NAME, supported: || I::new().is_some(), run: compiled::<C, I> }
    }

    /// Whether this processor can run it.
    pub fn is_supported(&self) -> bool {
        (self.supported)()
    }

    /// `out[n] = W[n, k] x[k]`, `weights` being `n` rows of `k` values one after another.
    ///
    /// # Panics
    /// If `weights` isn't exactly `out.len()` rows of `x.len()` values, or this processor lacks the instructions.
    pub fn run(&self, weights: &[u8], x: &Activation, out: &mut [f32]) {
        let row_bytes = self.dtype.bytes_for(x.len() as u64).expect("a row is whole blocks");
        assert_eq!(weights.len() as u64, row_bytes * out.len() as u64, "weights must be whole rows");
        (self.run)(weights, x, out);
    }
}

fn compiled<C: Codec, I: Isa>(weights: &[u8], x: &Activation, out: &mut [f32]) {
    let isa = I::new().expect("a row is chosen only where it is supported");
    isa.run(
        #[inline(always)]
        || gemv::<C, I>(isa, weights, x, out),
    );
}

macro_rules! rows {
    ($($codec:ident),+ $(,)?) => {
        &[$(
            #[cfg(target_arch = "x86_64")]
            Gemv::new::<$codec, Avx512Vnni>(),
            #[cfg(target_arch = "x86_64")]
            Gemv::new::<$codec, Avx2>(),
            Gemv::new::<$codec, Scalar>(),
        )+]
    };
}

/// Every row, best first within a format.
pub static GEMV: &[Gemv] = rows![Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Iq4Nl, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Xs];

/// The fastest row for `dtype` that this processor can run; `None` for types that aren't quantised.
pub fn best(dtype: DType) -> Option<&'static Gemv> {
    GEMV.iter().find(|row| row.dtype == dtype && row.is_supported())
}
