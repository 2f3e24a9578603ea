//! Instruction sets as values, and the vector operations that the kernels are written in.
//!
//! A value of a type that implements [`Isa`] proves that this processor has the instructions: only [`Isa::new`]
//! makes one, and it looks. Loops are written once, generic over `Isa`, and compiled per instruction set by
//! [`Isa::run`]. Everything between `run` and an intrinsic must be `#[inline(always)]`, or the vector operations
//! become calls.
//!
//! All implementations compute the same lanes in the same order with fused multiply-add, so a kernel gives the
//! same bits on each of them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Neon, NeonDotprod, NeonI8mm};
pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Avx2, Avx512, Avx512Vnni, AvxVnni};

/// A set of instructions that this processor has.
pub trait Isa: Copy + 'static {
    /// Lower-case name, as `lichen kernels` prints it.
    const NAME: &'static str;
    /// 32 bytes.
    type Bytes: Copy;
    /// 8 `i32`.
    type Ints: Copy;
    /// 8 `f32`.
    type Floats: Copy;

    /// The proof, if this processor has the instructions.
    fn new() -> Option<Self>;
    /// Runs `f` compiled for these instructions.
    fn run<R>(self, f: impl FnOnce() -> R) -> R;

    /// Rows of weights that a panel interleaves: one lane each, a multiple of 8.
    const PANEL_ROWS: usize;
    /// Whether [`Isa::dot_unsigned`] and [`Isa::quad_dot`] take the whole range of unsigned bytes, so that signed
    /// weights can be made unsigned and what that adds be taken off again.
    const WIDE_UNSIGNED: bool;
    /// [`Isa::PANEL_ROWS`] `f32`.
    type Lanes: Copy;
    /// [`Isa::PANEL_ROWS`] `i32`.
    type LaneInts: Copy;

    /// The same number in each lane.
    fn lanes_splat(self, value: f32) -> Self::Lanes;
    /// Loads the first [`Isa::PANEL_ROWS`] floats.
    fn lanes_load(self, values: &[f32]) -> Self::Lanes;
    /// Stores into the first [`Isa::PANEL_ROWS`] floats.
    fn lanes_store(self, lanes: Self::Lanes, out: &mut [f32]);
    /// `sum + a * b`, rounded once.
    fn lanes_multiply_add(self, sum: Self::Lanes, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a * b`.
    fn lanes_multiply(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// The integers as floats.
    fn lanes_from_ints(self, ints: Self::LaneInts) -> Self::Lanes;
    /// The same number in each lane.
    fn lane_ints_splat(self, value: i32) -> Self::LaneInts;
    /// Adds to lane `r` the products of `quads[4r..4r+4]`, unsigned, with the four signed bytes of `other`.
    /// Unsigned bytes must be at most 127 unless [`Isa::WIDE_UNSIGNED`].
    fn quad_dot(self, sum: Self::LaneInts, quads: &[u8], other: &[u8; 4]) -> Self::LaneInts;
    /// As [`Isa::quad_dot`] with signed `quads`; `other` must not hold -128.
    fn quad_dot_signed(self, sum: Self::LaneInts, quads: &[u8], other: &[u8; 4]) -> Self::LaneInts;

    /// Adds to lane `r` of `sums[n]` the products of row `r` with `others[quad][n]`, an even number of quads: `quads`
    /// holds what [`Isa::quad_dot`] takes for each quad, or [`Isa::quad_dot_signed`] if `signed`.
    #[inline(always)]
    fn quads_dots<const N: usize>(
        self,
        sums: &mut [Self::LaneInts; N],
        quads: &[u8],
        others: &[[[u8; 4]; N]],
        signed: bool,
    ) {
        quads_one_by_one(self, sums, quads, others, signed);
    }

    /// A quad of bytes for each lane.
    type Quads: Copy;

    /// Loads the first 4 [`Isa::PANEL_ROWS`] bytes.
    fn quads_load(self, bytes: &[u8]) -> Self::Quads;
    /// The low four bits of each byte, and the high four.
    fn quads_nibbles(self, quads: Self::Quads) -> [Self::Quads; 2];
    /// Adds 16 to each byte of `quads`, which must be below 16, where bit `bit` (0..8) of the byte of `plane` is set.
    fn quads_fifth_bit(self, quads: Self::Quads, plane: Self::Quads, bit: u8) -> Self::Quads;
    /// [`Isa::quad_dot`] on loaded quads.
    fn quads_dot(self, sum: Self::LaneInts, quads: Self::Quads, other: &[u8; 4]) -> Self::LaneInts;
    /// `a + b`.
    fn lanes_add(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `a` where it is above `b`, else `b`.
    fn lanes_larger(self, a: Self::Lanes, b: Self::Lanes) -> Self::Lanes;
    /// `value` where `a` is above `b`, else 0.
    fn lanes_where_above(self, a: Self::Lanes, b: Self::Lanes, value: Self::Lanes) -> Self::Lanes;
    /// `value * 2^n` with the integer `n` in the low nine bits of `power`, which is how adding 1.5 * 2^23 leaves it.
    /// `n` must be within -126..=127.
    fn lanes_times_power(self, value: Self::Lanes, power: Self::Lanes) -> Self::Lanes;
    /// Loads the first [`Isa::PANEL_ROWS`] half-precision numbers.
    fn lanes_of_halves(self, values: &[u16]) -> Self::Lanes;
    /// Loads the first [`Isa::PANEL_ROWS`] signed bytes.
    fn lanes_of_bytes(self, bytes: &[i8]) -> Self::Lanes;

    /// Loads 32 bytes.
    fn load(self, bytes: &[u8; 32]) -> Self::Bytes;
    /// The 32 bytes.
    fn store(self, bytes: Self::Bytes) -> [u8; 32];
    /// The low four bits of 16 bytes, then their high four bits.
    fn nibbles(self, bytes: &[u8; 16]) -> Self::Bytes;
    /// Each byte shifted right by `count` (0..8), then masked.
    fn shift_mask(self, bytes: Self::Bytes, count: u8, mask: u8) -> Self::Bytes;
    /// Each byte shifted left by `count` (0..8).
    fn shift_left(self, bytes: Self::Bytes, count: u8) -> Self::Bytes;
    /// Byte `i` is `value` where bit `i` of `bits` is set, else 0.
    fn spread_bits(self, bits: u32, value: u8) -> Self::Bytes;
    /// Adds 128 to each byte: signed bytes become unsigned ones in the same order.
    fn flip_signs(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Bitwise or.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Bytes `4r..4r+4` of result `q` are bytes `4q..4q+4` of `rows[r]`.
    fn transpose_quads(self, rows: &[Self::Bytes; 8]) -> [Self::Bytes; 8];
    /// `table[byte]` for each byte; bytes must be below 16.
    fn lookup(self, table: &[u8; 16], bytes: Self::Bytes) -> Self::Bytes;

    /// Lane `i` is the sum of `a[4i..4i+4] * b[4i..4i+4]`, `a` unsigned and at most 127 unless
    /// [`Isa::WIDE_UNSIGNED`], `b` signed.
    fn dot_unsigned(self, a: Self::Bytes, b: Self::Bytes) -> Self::Ints;
    /// As [`Isa::dot_unsigned`] with both signed; `b` must not hold -128.
    fn dot_signed(self, a: Self::Bytes, b: Self::Bytes) -> Self::Ints;

    /// The same number in each lane.
    fn ints_splat(self, value: i32) -> Self::Ints;
    /// `a + b`, wrapping.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Lane `i` of the first result is the sum of lanes 0 to 3 of `rows[i]`, of the second that of lanes 4 to 7.
    /// No lane may be of a magnitude above `largest`.
    fn half_sums(self, rows: &[Self::Ints; 8], largest: i32) -> [Self::Ints; 2];
    /// Loads 8 integers.
    fn load_ints(self, ints: &[i32; 8]) -> Self::Ints;

    /// The same number in each lane.
    fn splat(self, value: f32) -> Self::Floats;
    /// `a * b`.
    fn multiply(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `sum + a * b`, rounded once.
    fn multiply_add(self, sum: Self::Floats, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The integers as floats.
    fn floats(self, ints: Self::Ints) -> Self::Floats;
    /// Signed bytes as floats, the lowest byte in lane 0.
    fn floats_of_bytes(self, bytes: u64) -> Self::Floats;
    /// Sixteen signed bytes as floats, the lowest first: those with even numbers, then those with odd ones.
    fn floats_of_byte_pairs(self, bytes: [u64; 2]) -> [Self::Floats; 2];
    /// A half-precision number.
    fn half(self, bits: u16) -> f32;
    /// Lane `i` of result `j` is lane `j` of `rows[i]`.
    fn transpose(self, rows: &[Self::Floats; 8]) -> [Self::Floats; 8];
    /// Loads 8 floats.
    fn load_floats(self, values: &[f32; 8]) -> Self::Floats;
    /// Loads 8 half-precision numbers.
    fn load_halves(self, values: &[u16; 8]) -> Self::Floats;
    /// Stores 8 floats.
    fn store_floats(self, floats: Self::Floats, out: &mut [f32; 8]);
    /// Asks for the cache line `offset` bytes after the start of `bytes`, into the first level if `near`, else into
    /// the second; never faults.
    fn prefetch(self, bytes: &[u8], offset: usize, near: bool);
}

/// [`Isa::quads_dots`] where one instruction takes one quad of each lane.
#[inline(always)]
fn quads_one_by_one<I: Isa, const N: usize>(
    isa: I,
    sums: &mut [I::LaneInts; N],
    quads: &[u8],
    others: &[[[u8; 4]; N]],
    signed: bool,
) {
    for (weights, others) in quads.chunks_exact(4 * I::PANEL_ROWS).zip(others) {
        for n in 0..N {
            sums[n] = if signed {
                isa.quad_dot_signed(sums[n], weights, &others[n])
            } else {
                isa.quad_dot(sums[n], weights, &others[n])
            };
        }
    }
}

#[cfg(test)]
mod tests;
