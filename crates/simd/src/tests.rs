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

/// Dot products of `bytes` with ones, lane by lane, which shows all bytes of a vector.
fn shown<I: Isa>(isa: I, bytes: I::Bytes) -> Vec<f32> {
    (0..4)
        .flat_map(|position| {
            let picks: [u8; 32] = std::array::from_fn(|i| u8::from(i % 4 == position));
            lanes(isa, isa.dot_signed(bytes, isa.load(&picks)))
        })
        .collect()
}

fn lanes<I: Isa>(isa: I, ints: I::Ints) -> Vec<f32> {
    (0..8)
        .map(|lane| {
            let pick: [f32; 8] = std::array::from_fn(|i| f32::from(u8::from(i == lane)));
            isa.sum(isa.multiply_add_ints(isa.splat(0.0), ints, isa.load_floats(&pick)))
        })
        .collect()
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
            let sum = isa.multiply_add(isa.halves(0.3, -7.7), isa.load_floats(&floats), isa.splat(1.1));
            seen.push(isa.sum(sum));
            isa.prefetch(&any, 1 << 20);
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

#[cfg(target_arch = "x86_64")]
#[test]
fn avx2_equals_scalar() {
    equals_scalar::<crate::Avx2>();
}

#[cfg(target_arch = "x86_64")]
#[test]
fn avx512_vnni_equals_scalar() {
    equals_scalar::<crate::Avx512Vnni>();
}
