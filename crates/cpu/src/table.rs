//! Which kernels this binary has. `best` picks; the tests walk all of them.

use crate::activation::Activation;
use crate::attention::{self, HeadPages, Query, Scoring};
use crate::codec::{Codec, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::gemv::gemv;
use crate::kv::{Head, HeadShape, codec as kv_codec};
use crate::math;
use crate::panel::{self, IntPanel};
use crate::reading;
use crate::tile::Tile;
use lichen_backend::KvPrecision;
use lichen_op::Activation as Gate;
#[cfg(target_arch = "x86_64")]
use lichen_simd::{Avx2, Avx512, Avx512Vnni, AvxVnni};
use lichen_simd::{Isa, Scalar};
#[cfg(target_arch = "aarch64")]
use lichen_simd::{Neon, NeonDotprod, NeonI8mm};
use lichen_tensor::DType;

/// `Y = X W^T` for one weight format on one instruction set.
pub struct Gemv {
    /// The format of the weights.
    pub dtype: DType,
    /// The name of the instruction set.
    pub isa: &'static str,
    supported: fn() -> bool,
    run: fn(&[u8], &[Activation], &mut [f32]),
    pack: fn(&[u8], usize, &mut IntPanel),
}

impl Gemv {
    const fn new<C: Codec, I: Isa>() -> Self {
        Self {
            dtype: C::DTYPE,
            isa: I::NAME,
            supported: || I::new().is_some(),
            run: compiled::<C, I>,
            pack: pack::<C, I>,
        }
    }

    /// Whether this processor can run it.
    pub fn is_supported(&self) -> bool {
        (self.supported)()
    }

    /// `out[vector][row]`: all vectors of `x` times all rows of `weights`, which lie one after another.
    ///
    /// # Panics
    /// If there is no vector, they differ in length, `weights` isn't exactly `out.len() / x.len()` rows of that
    /// length, or this processor lacks the instructions.
    pub fn run(&self, weights: &[u8], x: &[Activation], out: &mut [f32]) {
        let width = x[0].len();
        assert!(x.iter().all(|x| x.len() == width), "vectors must be of one length");
        let row_bytes = self.dtype.bytes_for(width as u64).expect("a row is whole blocks") as usize;
        assert!(out.len().is_multiple_of(x.len()), "outputs must be whole vectors");
        assert_eq!(weights.len(), row_bytes * (out.len() / x.len()), "weights must be whole rows");
        if !weights.is_empty() {
            (self.run)(weights, x, out);
        }
    }

    /// A panel for the rows of this format, with nothing in it yet.
    ///
    /// # Panics
    /// If this processor lacks the instructions.
    pub fn panel(&'static self) -> Panel {
        let kernels = kernels(self.isa).expect("a row is chosen only where it is supported");
        Panel { row: self, kernels, ints: IntPanel::default(), width: 0 }
    }

    /// Interleaves rows of `row_bytes` bytes into `panel`.
    pub(crate) fn pack(&self, rows: &[u8], row_bytes: usize, panel: &mut IntPanel) {
        (self.pack)(rows, row_bytes, panel);
    }
}

/// Rows of weights, interleaved once to be multiplied with many vectors. The products have the bits of [`Gemv::run`].
pub struct Panel {
    row: &'static Gemv,
    kernels: &'static Kernels,
    ints: IntPanel,
    width: usize,
}

impl Panel {
    /// Rows that it holds.
    pub fn rows(&self) -> usize {
        self.kernels.panel_rows
    }

    /// Interleaves up to [`Panel::rows`] rows of `width` values; missing ones repeat the last.
    ///
    /// # Panics
    /// If `rows` aren't whole rows, or are none or too many.
    pub fn fill(&mut self, rows: &[u8], width: usize) {
        let row_bytes = self.row.dtype.bytes_for(width as u64).expect("a row is whole blocks") as usize;
        assert!(row_bytes > 0 && rows.len().is_multiple_of(row_bytes), "weights must be whole rows");
        assert!((1..=self.rows()).contains(&(rows.len() / row_bytes)), "rows must fit into the panel");
        self.width = width;
        self.row.pack(rows, row_bytes, &mut self.ints);
    }

    /// `out[vector][row]`, `[vectors of all tiles, Panel::rows]`.
    ///
    /// # Panics
    /// If a vector has another length than the rows, or `out` another size.
    pub fn multiply(&self, x: &[Tile], out: &mut [f32]) {
        assert!(x.iter().all(|x| x.width() == self.width), "vectors must be as long as rows");
        let vectors: usize = x.iter().map(|tile| tile.vectors).sum();
        assert_eq!(out.len(), vectors * self.rows(), "outputs must be one for each row and vector");
        let mut out = out;
        for tile in x {
            let (part, rest) = out.split_at_mut(tile.vectors * self.rows());
            (self.kernels.multiply_ints)(&self.ints, tile, part);
            out = rest;
        }
    }
}

fn pack<C: Codec, I: Isa>(rows: &[u8], row_bytes: usize, panel: &mut IntPanel) {
    let isa = supported::<I>();
    isa.run(
        #[inline(always)]
        || panel::pack::<C, I>(isa, rows, row_bytes, panel),
    );
}

fn supported<I: Isa>() -> I {
    I::new().expect("a row is chosen only where it is supported")
}

fn compiled<C: Codec, I: Isa>(weights: &[u8], x: &[Activation], out: &mut [f32]) {
    let isa = supported::<I>();
    isa.run(
        #[inline(always)]
        || gemv::<C, I>(isa, weights, x, out),
    );
}

/// Rows for each codec, or for none, on each instruction set, best first.
macro_rules! rows {
    ($row:ident: $(<$($codec:ident)?>)+) => {
        &[$(
            #[cfg(target_arch = "x86_64")]
            $row::new::<$($codec,)? Avx512Vnni>(),
            #[cfg(target_arch = "x86_64")]
            $row::new::<$($codec,)? Avx512>(),
            #[cfg(target_arch = "x86_64")]
            $row::new::<$($codec,)? AvxVnni>(),
            #[cfg(target_arch = "x86_64")]
            $row::new::<$($codec,)? Avx2>(),
            #[cfg(target_arch = "aarch64")]
            $row::new::<$($codec,)? NeonI8mm>(),
            #[cfg(target_arch = "aarch64")]
            $row::new::<$($codec,)? NeonDotprod>(),
            #[cfg(target_arch = "aarch64")]
            $row::new::<$($codec,)? Neon>(),
            $row::new::<$($codec,)? Scalar>(),
        )+]
    };
}

/// Every row, best first within a format.
pub static GEMV: &[Gemv] = rows![
    Gemv: <Q4_0> <Q4_1> <Q5_0> <Q5_1> <Q8_0> <Iq4Nl> <Q2K> <Q3K> <Q4K> <Q5K> <Q6K> <Iq4Xs>
];

/// What doesn't depend on the format of the weights, for one instruction set.
pub(crate) struct Kernels {
    pub(crate) isa: &'static str,
    supported: fn() -> bool,
    /// Rows of a panel.
    pub(crate) panel_rows: usize,
    /// `out[vector][row]` from a panel of quantised weights.
    pub(crate) multiply_ints: fn(&IntPanel, &Tile, &mut [f32]),
    /// `out[vector][row]` from a panel of floats `[value][row]` and vectors of the given width.
    pub(crate) multiply_floats: fn(&[f32], &[f32], usize, &mut [f32]),
    /// See [`attention::attend`].
    pub(crate) attend: fn(&[Query<'_>], HeadPages<'_>, Scoring, &mut attention::Scratch),
    /// Writes one head of a page in another precision.
    pub(crate) convert: fn(&Head<'_>, HeadShape, KvPrecision, &mut [u8]),
    /// `out = act(out) * up`.
    pub(crate) gate: fn(Gate, &mut [f32], &[f32]),
    /// Root mean square norm of one row, in place.
    pub(crate) rms_norm: fn(&mut [f32], &[f32], f32),
    /// Quantises a vector.
    pub(crate) quantise: fn(&mut Activation, &[f32]),
    /// Quantises the rows of a tile, of the given width.
    pub(crate) quantise_tile: fn(&mut Tile, &[f32], usize),
    /// See [`reading::read`].
    pub(crate) read: fn(&[u8]) -> [u8; 32],
}

impl Kernels {
    const fn new<I: Isa>() -> Self {
        Self {
            isa: I::NAME,
            supported: || I::new().is_some(),
            panel_rows: I::PANEL_ROWS,
            multiply_ints: |panel, x, out| {
                let isa = supported::<I>();
                isa.run(
                    #[inline(always)]
                    || panel::multiply_ints(isa, panel, x, out),
                );
            },
            multiply_floats: |panel, x, width, out| {
                let isa = supported::<I>();
                isa.run(
                    #[inline(always)]
                    || panel::multiply_floats(isa, panel, x, width, out),
                );
            },
            convert: |head, shape, precision, out| {
                supported::<I>().run(
                    #[inline(always)]
                    || kv_codec::convert(head, shape, precision, out),
                );
            },
            attend: |queries, kv, scoring, scratch| {
                let isa = supported::<I>();
                isa.run(
                    #[inline(always)]
                    || attention::attend(isa, queries, kv, scoring, scratch),
                );
            },
            gate: |act, out, up| {
                supported::<I>().run(
                    #[inline(always)]
                    || math::gate(act, out, up),
                );
            },
            rms_norm: |x, weight, eps| {
                supported::<I>().run(
                    #[inline(always)]
                    || math::rms_norm(x, weight, eps),
                );
            },
            quantise_tile: |tile, rows, width| {
                supported::<I>().run(
                    #[inline(always)]
                    || tile.quantise(rows, width),
                );
            },
            quantise: |activation, values| {
                supported::<I>().run(
                    #[inline(always)]
                    || activation.quantise(values),
                );
            },
            read: |bytes| {
                let isa = supported::<I>();
                isa.run(
                    #[inline(always)]
                    || reading::read(isa, bytes),
                )
            },
        }
    }
}

static KERNELS: &[Kernels] = rows![Kernels: <>];

/// The names of the instruction sets that this processor can run, best first.
pub fn instruction_sets() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().filter(|kernels| (kernels.supported)()).map(|kernels| kernels.isa)
}

/// The kernels of an instruction set, if this processor can run them.
pub(crate) fn kernels(isa: &str) -> Option<&'static Kernels> {
    KERNELS.iter().find(|kernels| kernels.isa == isa && (kernels.supported)())
}

/// The row of a format on an instruction set; `None` for types that aren't quantised.
pub(crate) fn row(dtype: DType, isa: &str) -> Option<&'static Gemv> {
    GEMV.iter().find(|row| row.dtype == dtype && row.isa == isa)
}

/// The fastest row for `dtype` that this processor can run; `None` for types that aren't quantised.
pub fn best(dtype: DType) -> Option<&'static Gemv> {
    GEMV.iter().find(|row| row.dtype == dtype && row.is_supported())
}

#[cfg(test)]
mod tests;
