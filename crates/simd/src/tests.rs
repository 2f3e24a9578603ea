//! Every instruction set that this machine has gives the bits of the scalar one.

use crate::{Isa, Scalar};

/// A small generator of bytes (xorshift), so that the crate needs no dependency.
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u8
    }

    fn array<const N: usize>(&mut self, make: impl Fn(u8) -> u8) -> [u8; N] {
        std::array::from_fn(|_| make(self.next()))
    }
}

/// All bytes of a vector.
fn shown<I: Isa>(isa: I, bytes: I::Bytes) -> Vec<f32> {
    isa.store(bytes).into_iter().map(f32::from).collect()
}

fn stored<I: Isa>(isa: I, floats: I::Floats) -> Vec<f32> {
    let mut out = [0.0; 8];
    isa.store_floats(floats, &mut out);
    out.to_vec()
}

fn lanes<I: Isa>(isa: I, ints: I::Ints) -> Vec<f32> {
    stored(isa, isa.floats(ints))
}

fn observe<I: Isa>(isa: I, seed: u64) -> Vec<f32> {
    let mut random = Bytes(seed);
    let any: [u8; 32] = random.array(|byte| byte);
    let half: [u8; 16] = random.array(|byte| byte);
    let low: [u8; 32] = random.array(|byte| byte & 127);
    let activation: [u8; 32] = random.array(|byte| if byte == 128 { 127 } else { byte });
    let table: [u8; 16] = random.array(|byte| byte);
    let floats: [f32; 8] = std::array::from_fn(|_| f32::from(random.next()) - 127.3);
    isa.run(
        #[inline(always)]
        || {
            let activation = isa.load(&activation);
            let mut seen = shown(isa, isa.load(&any));
            seen.extend(shown(isa, isa.nibbles(&half)));
            for count in 0..8 {
                seen.extend(shown(isa, isa.shift_mask(isa.load(&any), count, 0x37)));
                seen.extend(shown(isa, isa.shift_left(isa.load(&any), count)));
            }
            let bits = u32::from_le_bytes([half[0], half[1], half[2], half[3]]);
            seen.extend(shown(isa, isa.or(isa.spread_bits(bits, 0x10), isa.load(&low))));
            seen.extend(shown(isa, isa.lookup(&table, isa.nibbles(&half))));
            seen.extend(lanes(isa, isa.dot_unsigned(isa.load(&low), activation)));
            seen.extend(lanes(isa, isa.dot_signed(isa.load(&any), activation)));
            seen.extend(shown(isa, isa.flip_signs(isa.load(&any))));
            if I::WIDE_UNSIGNED {
                let flipped = isa.dot_unsigned(isa.flip_signs(isa.load(&any)), activation);
                let added = isa.dot_unsigned(isa.load(&[128; 32]), activation);
                let sums = lanes(isa, flipped).into_iter().zip(lanes(isa, added));
                assert_eq!(
                    sums.map(|(a, b)| a - b).collect::<Vec<_>>(),
                    lanes(isa, isa.dot_signed(isa.load(&any), activation))
                );
            }
            let floats = isa.load_floats(&floats);
            seen.extend(stored(isa, isa.multiply_add(isa.splat(0.3), floats, isa.splat(1.1))));
            seen.extend(stored(isa, isa.multiply(floats, isa.splat(0.7))));
            let [a, b] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| half[at + i])));
            seen.extend(stored(isa, isa.floats_of_bytes(a)));
            for floats in isa.floats_of_byte_pairs([a, b]) {
                seen.extend(stored(isa, floats));
            }
            seen.push(isa.half(u16::from_le_bytes([half[0], half[1] & 0x7b])));
            let rows = std::array::from_fn(|row| isa.floats_of_bytes((a ^ b).rotate_left(row as u32) | 1));
            for column in isa.transpose(&rows) {
                seen.extend(stored(isa, column));
            }
            let rows = std::array::from_fn(|row| isa.load(&any.map(|byte| byte.rotate_left(row as u32))));
            for quads in isa.transpose_quads(&rows) {
                seen.extend(shown(isa, quads));
            }
            let rows: [I::Ints; 8] = std::array::from_fn(|row| {
                let dots =
                    isa.dot_signed(isa.load(&any.map(|byte| byte.rotate_left(row as u32))), activation);
                isa.add_ints(dots, isa.ints_splat(row as i32))
            });
            for half in isa.half_sums(&rows, i32::MAX) {
                seen.extend(lanes(isa, half));
            }
            let rows: [I::Ints; 8] = std::array::from_fn(|row| {
                let least = any.map(|byte| byte.rotate_left(row as u32) & 31);
                isa.dot_unsigned(isa.load(&least), activation)
            });
            for half in isa.half_sums(&rows, 4 * 31 * 127) {
                seen.extend(lanes(isa, half));
            }
            let ints = std::array::from_fn(|lane| i32::from(any[lane]) - 100);
            seen.extend(lanes(isa, isa.load_ints(&ints)));
            isa.prefetch(&any, 1 << 20, true);
            isa.prefetch(&any, 1 << 20, false);
            seen
        },
    )
}

fn equals_scalar<I: Isa>() {
    let Some(isa) = I::new() else { return };
    for seed in 1..200 {
        assert_eq!(observe(isa, seed), observe(Scalar, seed), "{} with seed {seed}", I::NAME);
    }
}

#[test]
fn scalar_dot_is_the_sum_of_products() {
    let isa = Scalar;
    let ones = isa.load(&[1; 32]);
    assert_eq!(isa.dot_unsigned(isa.load(&[3; 32]), ones), [12; 8]);
    assert_eq!(isa.dot_signed(isa.load(&[0xff; 32]), ones), [-4; 8]);
    assert_eq!(isa.nibbles(&[0x2b; 16])[15..17], [0xb, 0x2]);
}

/// Calls a function for each instruction set of this kind of processor.
macro_rules! for_each_isa {
    ($check:ident) => {
        #[cfg(target_arch = "aarch64")]
        $check::<crate::Neon>();
        #[cfg(target_arch = "aarch64")]
        $check::<crate::NeonDotprod>();
        #[cfg(target_arch = "aarch64")]
        $check::<crate::NeonI8mm>();
        #[cfg(target_arch = "x86_64")]
        $check::<crate::Avx2>();
        #[cfg(target_arch = "x86_64")]
        $check::<crate::AvxVnni>();
        #[cfg(target_arch = "x86_64")]
        $check::<crate::Avx512>();
        #[cfg(target_arch = "x86_64")]
        $check::<crate::Avx512Vnni>();
    };
}

#[test]
fn every_operation_equals_the_scalar_one() {
    for_each_isa!(equals_scalar);
}

/// What panel operations give for each row of random quads.
fn observe_panel<I: Isa>(isa: I, seed: u64) -> (Vec<i64>, Vec<i64>) {
    let mut random = Bytes(seed);
    let quads: Vec<u8> = (0..4 * I::PANEL_ROWS).map(|_| random.next()).collect();
    let unsigned: Vec<u8> =
        if I::WIDE_UNSIGNED { quads.clone() } else { quads.iter().map(|q| q & 127).collect() };
    let other: [u8; 4] = random.array(|byte| if byte == 128 { 127 } else { byte });
    let product = |quad: i64, i: usize| quad * i64::from(other[i % 4] as i8);
    let expected = |quads: &[u8], signed: bool| -> Vec<i64> {
        let value = |byte: u8| if signed { i64::from(byte as i8) } else { i64::from(byte) };
        quads.chunks(4).map(|quad| (0..4).map(|i| 3 * product(value(quad[i]), i)).sum()).collect()
    };
    let mut got = vec![0.0; I::PANEL_ROWS];
    let mut seen = Vec::new();
    let mut wanted = Vec::new();
    for signed in [false, true] {
        isa.run(
            #[inline(always)]
            || {
                let mut sum = isa.lane_ints_splat(0);
                for _ in 0..3 {
                    sum = if signed {
                        isa.quad_dot_signed(sum, &quads, &other)
                    } else {
                        isa.quad_dot(sum, &unsigned, &other)
                    };
                }
                let floats = isa.lanes_from_ints(sum);
                let one = isa.lanes_multiply(isa.lanes_splat(0.5), isa.lanes_splat(2.0));
                let copied = isa.lanes_multiply_add(isa.lanes_splat(0.0), floats, one);
                isa.lanes_store(copied, &mut got);
                let loaded = isa.lanes_load(&got);
                isa.lanes_store(loaded, &mut got);
            },
        );
        seen.extend(got.iter().map(|value| *value as i64));
        wanted.extend(expected(if signed { &quads } else { &unsigned }, signed));
    }
    (seen, wanted)
}

/// What 64 tokens give with quads packed in nibbles and a plane of fifth bits, however wide the lanes are.
fn observe_quads<I: Isa>(isa: I, seed: u64) -> Vec<f32> {
    let mut random = Bytes(seed);
    let (packed, plane): ([u8; 256], [u8; 256]) = (random.array(|byte| byte), random.array(|byte| byte));
    let other: [u8; 4] = random.array(|byte| if byte == 128 { 127 } else { byte });
    let halves: [u16; 64] =
        std::array::from_fn(|_| u16::from_le_bytes([random.next(), random.next() & 0x7b]));
    let bytes: [i8; 64] = std::array::from_fn(|_| random.next() as i8);
    let mut seen = vec![0.0; 64 * 15];
    isa.run(
        #[inline(always)]
        || {
            for first in (0..64).step_by(I::PANEL_ROWS) {
                let (nibbles, plane) =
                    (isa.quads_load(&packed[4 * first..]), isa.quads_load(&plane[4 * first..]));
                let [low, high] = isa.quads_nibbles(nibbles);
                for bit in 0..8 {
                    let sum =
                        isa.quads_dot(isa.lane_ints_splat(5), isa.quads_fifth_bit(low, plane, bit), &other);
                    let at = 64 * usize::from(bit) + first;
                    isa.lanes_store(isa.lanes_from_ints(sum), &mut seen[at..]);
                }
                let sum = isa.quads_dot(isa.lane_ints_splat(0), high, &other);
                isa.lanes_store(isa.lanes_from_ints(sum), &mut seen[64 * 8 + first..]);
                isa.lanes_store(isa.lanes_of_halves(&halves[first..]), &mut seen[64 * 9 + first..]);
                let (halves, bytes) =
                    (isa.lanes_of_halves(&halves[first..]), isa.lanes_of_bytes(&bytes[first..]));
                isa.lanes_store(bytes, &mut seen[64 * 10 + first..]);
                isa.lanes_store(isa.lanes_add(halves, bytes), &mut seen[64 * 11 + first..]);
                isa.lanes_store(isa.lanes_larger(halves, bytes), &mut seen[64 * 12 + first..]);
                let above = isa.lanes_where_above(bytes, isa.lanes_splat(3.0), halves);
                isa.lanes_store(above, &mut seen[64 * 13 + first..]);
                let power = isa.lanes_add(isa.lanes_splat(12_582_912.0), bytes);
                // -127 and -128 are outside of what powers may be.
                let power = isa.lanes_larger(power, isa.lanes_splat(12_582_912.0 - 126.0));
                let scaled = isa.lanes_times_power(isa.lanes_splat(1.5), power);
                isa.lanes_store(scaled, &mut seen[64 * 14 + first..]);
            }
        },
    );
    seen
}

fn quads_equal_scalar<I: Isa>() {
    let Some(isa) = I::new() else { return };
    for seed in 1..200 {
        assert_eq!(observe_quads(isa, seed), observe_quads(Scalar, seed), "{} with seed {seed}", I::NAME);
    }
}

#[test]
fn packed_quads_give_the_same_on_lanes_of_any_width() {
    for_each_isa!(quads_equal_scalar);
    // One quad by hand: 2, 5 and 8 with a fifth bit, 15.
    let mut packed = [0; 32];
    packed[..4].copy_from_slice(&[2, 5, 8, 15]);
    let mut plane = [0; 32];
    plane[2] = 0x80;
    let quads = Scalar.quads_fifth_bit(packed, plane, 7);
    assert_eq!(Scalar.quads_dot([0; 8], quads, &[1, 2, 3, 0xff])[0], 2 + 10 + 72 - 15);
}

/// What panel operations give for `N` vectors from quad `first` on, and what they should give.
fn observe_vectors<I: Isa, const N: usize>(
    isa: I,
    seed: u64,
    first: usize,
    signed: bool,
) -> (Vec<i64>, Vec<i64>) {
    let mut random = Bytes(seed);
    let (width, most) = (4 * I::PANEL_ROWS, if signed || I::WIDE_UNSIGNED { 255 } else { 127 });
    let quads: Vec<u8> = (0..(8 - first) * width).map(|_| random.next() & most).collect();
    let others: [[u8; 32]; N] =
        std::array::from_fn(|_| random.array(|byte| if byte == 128 { 127 } else { byte }));
    let quad = |at: usize| others.map(|other| [0, 1, 2, 3].map(|i| other[4 * at + i]));
    let interleaved: [_; 8] = std::array::from_fn(quad);
    let mut got = vec![0.0; N * I::PANEL_ROWS];
    isa.run(
        #[inline(always)]
        || {
            let mut sums = std::array::from_fn(|n| isa.lane_ints_splat(n as i32));
            isa.quads_dots(&mut sums, &quads, &interleaved[first..], signed);
            for (sum, out) in sums.into_iter().zip(got.chunks_exact_mut(I::PANEL_ROWS)) {
                isa.lanes_store(isa.lanes_from_ints(sum), out);
            }
        },
    );
    let value = |byte: u8| if signed { i64::from(byte as i8) } else { i64::from(byte) };
    let wanted = |n: usize, row: usize| -> i64 {
        let product = |i: usize| {
            let weight = value(quads[i / 4 * width + 4 * row + i % 4]);
            weight * i64::from(others[n][4 * first + i] as i8)
        };
        n as i64 + (0..4 * (8 - first)).map(product).sum::<i64>()
    };
    let places = (0..N).flat_map(|n| (0..I::PANEL_ROWS).map(move |row| (n, row)));
    (got.iter().map(|value| *value as i64).collect(), places.map(|(n, row)| wanted(n, row)).collect())
}

fn vectors_are_sums_of_products<I: Isa>() {
    let Some(isa) = I::new() else { return };
    for seed in 1..50 {
        for (first, signed) in [(0, false), (0, true), (4, false), (4, true)] {
            let (seen, wanted) = observe_vectors::<I, 1>(isa, seed, first, signed);
            assert_eq!(seen, wanted, "{} with seed {seed}", I::NAME);
            let (seen, wanted) = observe_vectors::<I, 4>(isa, seed, first, signed);
            assert_eq!(seen, wanted, "{} with seed {seed}", I::NAME);
        }
    }
}

#[test]
fn panels_of_several_vectors_are_exact() {
    vectors_are_sums_of_products::<Scalar>();
    for_each_isa!(vectors_are_sums_of_products);
}

fn panels_are_sums_of_products<I: Isa>() {
    let Some(isa) = I::new() else { return };
    for seed in 1..200 {
        let (seen, wanted) = observe_panel(isa, seed);
        assert_eq!(seen, wanted, "{} with seed {seed}", I::NAME);
    }
}

#[test]
fn panel_products_are_exact() {
    panels_are_sums_of_products::<Scalar>();
    for_each_isa!(panels_are_sums_of_products);
}
