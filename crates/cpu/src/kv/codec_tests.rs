//! What rounding costs, and that nothing that is written makes a bad page.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes that are aligned as a page is.
struct Aligned(Vec<u64>);

impl Aligned {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(8)])
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }
}

/// Keys `[channel][token]` and values `[token][channel]` of a head.
type Both = (Vec<f32>, Vec<f32>);

fn converted(shape: HeadShape, from: (KvPrecision, &mut Aligned), to: KvPrecision) -> Aligned {
    let (precision, bytes) = from;
    let mut out = Aligned::new(shape.bytes(to));
    let head = Head::new(precision, shape, bytes.bytes(shape.bytes(precision)));
    convert(&head, shape, to, out.bytes(shape.bytes(to)));
    out
}

fn single(shape: HeadShape, numbers: &Both) -> Aligned {
    let mut out = Aligned::new(shape.bytes(KvPrecision::F32));
    let both: Vec<f32> = numbers.0.iter().chain(&numbers.1).copied().collect();
    out.bytes(shape.bytes(KvPrecision::F32)).copy_from_slice(bytemuck::cast_slice(&both));
    out
}

/// The head in this precision and what it decodes to.
fn there_and_back(shape: HeadShape, numbers: &Both, precision: KvPrecision) -> (Aligned, Both) {
    let mut stored = converted(shape, (KvPrecision::F32, &mut single(shape, numbers)), precision);
    let mut back = converted(shape, (precision, &mut stored), KvPrecision::F32);
    let floats: &[f32] = bytemuck::cast_slice(back.bytes(shape.bytes(KvPrecision::F32)));
    let (keys, values) = floats.split_at(floats.len() / 2);
    let numbers = (keys.to_vec(), values.to_vec());
    (stored, numbers)
}

/// Heads whose channels have an offset and a spread of their own, padded with zeros.
fn numbers() -> impl Strategy<Value = (HeadShape, Both)> {
    let head_dims = prop_oneof![Just(8usize), Just(40), Just(64), Just(80), Just(128)];
    head_dims.prop_flat_map(|head_dim| {
        let channels = vec((-300.0f32..300.0, 0.0f32..8.0), head_dim);
        let units = vec(-1.0f32..1.0, 2 * head_dim * PAGE_TOKENS);
        (channels, units).prop_map(move |(channels, units)| {
            let shape = HeadShape::new(head_dim);
            let len = shape.stride * PAGE_TOKENS;
            let (mut keys, mut values) = (vec![0.0; len], vec![0.0; len]);
            let (of_keys, of_values) = units.split_at(head_dim * PAGE_TOKENS);
            for (dim, (offset, spread)) in channels.iter().enumerate() {
                for token in 0..PAGE_TOKENS {
                    let at = dim * PAGE_TOKENS + token;
                    keys[at] = offset + spread * of_keys[at];
                    values[token * shape.stride + dim] = spread * of_values[at];
                }
            }
            (shape, (keys, values))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn keys_come_back_within_half_a_step((shape, numbers) in numbers()) {
        for (precision, levels) in [(KvPrecision::Q8, 255.0), (KvPrecision::Q5, 31.0), (KvPrecision::Q4, 15.0)] {
            let (mut stored, back) = there_and_back(shape, &numbers, precision);
            let head = Head::new(precision, shape, stored.bytes(shape.bytes(precision)));
            for channel in 0..shape.stride {
                let tokens = channel * PAGE_TOKENS..(channel + 1) * PAGE_TOKENS;
                let step = f16::from_bits(head.parts.steps[channel]).to_f32();
                let (wanted, found) = (&numbers.0[tokens.clone()], &back.0[tokens]);
                let spread = wanted.iter().fold(f32::MIN, |a, &b| a.max(b)) - wanted.iter().fold(f32::MAX, |a, &b| a.min(b));
                // The minimum is rounded to half precision, which widens the range by up to a quarter at 300.
                prop_assert!(step <= (spread + 0.26) / levels * 1.01, "{step} of {spread}");
                for (wanted, found) in wanted.iter().zip(found) {
                    prop_assert!((wanted - found).abs() <= step * 0.501 + 1e-4, "{precision}: {wanted} {found} by {step}");
                }
            }
        }
    }

    #[test]
    fn values_in_eight_bits_come_back_within_half_a_step((shape, numbers) in numbers()) {
        let (mut stored, back) = there_and_back(shape, &numbers, KvPrecision::Q8);
        let head = Head::new(KvPrecision::Q8, shape, stored.bytes(shape.bytes(KvPrecision::Q8)));
        for (at, (wanted, found)) in numbers.1.iter().zip(&back.1).enumerate() {
            let (token, channel) = (at / shape.stride, at % shape.stride);
            let scale = f16::from_bits(head.parts.scales[channel / GROUP * PAGE_TOKENS + token]).to_f32();
            prop_assert!((wanted - found).abs() <= scale * 0.501, "{wanted} {found} by {scale}");
        }
    }

    /// The transform keeps lengths, so the error of a token is that of its rounded values.
    #[test]
    fn values_in_four_bits_lose_a_tenth((shape, numbers) in numbers()) {
        for precision in [KvPrecision::Q5, KvPrecision::Q4] {
            let (_, back) = there_and_back(shape, &numbers, precision);
            let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
            let error = length(&mut numbers.1.iter().zip(&back.1).map(|(a, b)| a - b));
            let whole = length(&mut numbers.1.iter().copied());
            prop_assert!(error <= 0.1 * whole, "{precision}: {error} of {whole}");
        }
    }

    #[test]
    fn from_five_bits_to_four_no_value_is_rounded_again((shape, numbers) in numbers()) {
        let (mut five, back) = there_and_back(shape, &numbers, KvPrecision::Q5);
        let mut four = converted(shape, (KvPrecision::Q5, &mut five), KvPrecision::Q4);
        let mut again = converted(shape, (KvPrecision::Q4, &mut four), KvPrecision::F32);
        let floats: &[f32] = bytemuck::cast_slice(again.bytes(shape.bytes(KvPrecision::F32)));
        prop_assert_eq!(&floats[floats.len() / 2..], &back.1[..]);
    }

    #[test]
    fn half_precision_is_rounded_down_or_up_as_asked(value in -65504.0f32..65504.0) {
        let (below, above) = (at_most(value).to_f32(), at_least(value).to_f32());
        prop_assert!(below <= value && value <= above);
        prop_assert!(above - below <= (value.abs() * 1e-3).max(6.2e-8), "{value}: {below} {above}");
    }

    #[test]
    fn turning_twice_changes_nothing(values in vec(-9.0f32..9.0, 64), log in 0u32..7) {
        let mut turned = values.clone();
        rotate(&mut turned, 1 << log);
        rotate(&mut turned, 1 << log);
        for (value, turned) in values.iter().zip(turned) {
            prop_assert!((value - turned).abs() < 1e-5);
        }
    }
}

#[test]
fn infinite_numbers_and_no_numbers_make_finite_scales() {
    let shape = HeadShape::new(64);
    let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -1e30, 1e-30, -0.0, 5.0];
    let numbers: Vec<f32> = (0..shape.stride * PAGE_TOKENS).map(|i| strange[i * 7 / 5 % 8]).collect();
    for numbers in [numbers, vec![f32::NAN; shape.stride * PAGE_TOKENS]] {
        for precision in [KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4] {
            let (mut stored, _) = there_and_back(shape, &(numbers.clone(), numbers.clone()), precision);
            let head = Head::new(precision, shape, stored.bytes(shape.bytes(precision)));
            assert!(crate::kv::is_finite(&head), "{precision}");
        }
    }
}

#[test]
fn zeros_stay_zeros() {
    let shape = HeadShape::new(40);
    let zeros = || vec![0.0; shape.stride * PAGE_TOKENS];
    for precision in KvPrecision::ALL {
        let (_, back) = there_and_back(shape, &(zeros(), zeros()), precision);
        assert_eq!(back, (zeros(), zeros()), "{precision}");
    }
}
