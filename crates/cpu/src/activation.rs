//! Activations in 8 bits, as the integer kernels read them.

use crate::codec::LANES;

/// Values of a block that share one scale.
pub(crate) const BLOCK: usize = 32;

/// One vector of activations: signed bytes with a scale per 32 values.
///
/// `value[i] ~ scale[i / 32] * quants[i]`, the quants within -127..=127: -128 would overflow the signed kernels.
/// All are filled up with zeros to a multiple of [`LANES`] groups.
#[derive(Debug, Clone, Default)]
pub struct Activation {
    len: usize,
    pub(crate) quants: Vec<[u8; BLOCK]>,
    pub(crate) scales: Vec<[f32; LANES]>,
    /// Minus 128 times the sum of the quants: what weights with 128 added to them add to products.
    pub(crate) shifts: Vec<[i32; LANES]>,
    /// The scale times the sum of the quants, which is what a minimum is multiplied with.
    pub(crate) sums: Vec<[f32; LANES]>,
    /// The same of the first and the last 16 values of each group.
    pub(crate) half_sums: Vec<[[f32; LANES]; 2]>,
}

impl Activation {
    /// Quantises `values`.
    ///
    /// # Panics
    /// If the length isn't a multiple of 32: rows of quantised weights always are.
    #[inline(always)]
    pub fn quantise(&mut self, values: &[f32]) {
        assert!(values.len().is_multiple_of(BLOCK), "{} values are no whole blocks of {BLOCK}", values.len());
        self.len = values.len();
        let chunks = values.len().div_ceil(BLOCK * LANES);
        self.quants.resize(chunks * LANES, [0; BLOCK]);
        self.scales.resize(chunks, [0.0; LANES]);
        self.shifts.resize(chunks, [0; LANES]);
        self.sums.resize(chunks, [0.0; LANES]);
        self.half_sums.resize(chunks, [[0.0; LANES]; 2]);
        let (blocks, _) = values.as_chunks::<BLOCK>();
        for (index, block) in blocks.iter().enumerate() {
            self.quantise_block(index, block);
        }
        for index in blocks.len()..chunks * LANES {
            self.quantise_block(index, &[0.0; BLOCK]);
        }
    }

    #[inline(always)]
    fn quantise_block(&mut self, index: usize, block: &[f32; BLOCK]) {
        let Block { quants, scale, sums: [low, high] } = Block::quantise(block);
        let (chunk, lane) = (index / LANES, index % LANES);
        self.quants[index] = quants;
        self.scales[chunk][lane] = scale;
        self.shifts[chunk][lane] = -128 * (low + high);
        self.sums[chunk][lane] = scale * (low + high) as f32;
        self.half_sums[chunk][0][lane] = scale * low as f32;
        self.half_sums[chunk][1][lane] = scale * high as f32;
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values that the kernels see: `scale * quant`.
    pub fn values(&self) -> Vec<f32> {
        let blocks = self.quants.iter().zip(self.scales.as_flattened()).take(self.len / BLOCK);
        blocks.flat_map(|(quants, scale)| quants.map(|quant| f32::from(quant as i8) * scale)).collect()
    }
}

/// Values that share one scale.
pub(crate) struct Block {
    pub(crate) quants: [u8; BLOCK],
    pub(crate) scale: f32,
    /// Of the first and the last 16 quants.
    pub(crate) sums: [i32; 2],
}

impl Block {
    #[inline(always)]
    pub(crate) fn quantise(values: &[f32; BLOCK]) -> Self {
        let scale = largest(values) / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut quants = [0; BLOCK];
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = rounded(value * inverse);
        }
        let mut sums = [0i32; 2];
        for i in 0..BLOCK / 2 {
            sums[0] += i32::from(quants[i] as i8);
            sums[1] += i32::from(quants[i + BLOCK / 2] as i8);
        }
        Self { quants, scale, sums }
    }
}

/// The largest magnitude of a multiple of eight values.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    for part in values.as_chunks::<8>().0 {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane = lane.max(value.abs());
        }
    }
    lanes.iter().fold(0.0, |largest, lane| largest.max(*lane))
}

/// A number of magnitude up to 127, rounded to the nearest integer, ties to even, as a signed byte.
///
/// Adding 1.5 * 2^23 leaves the integer in the low bits; unlike a conversion, which must saturate, that is one
/// vector addition.
#[inline(always)]
pub(crate) fn rounded(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_within_half_a_step() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut activation = Activation::default();
        activation.quantise(&values);
        for (i, (value, seen)) in values.iter().zip(activation.values()).enumerate() {
            assert!(
                (value - seen).abs() <= activation.scales.as_flattened()[i / BLOCK] * 0.5001,
                "{i}: {value} {seen}"
            );
        }
    }

    #[test]
    fn zeros_stay_zeros_and_infinite_values_do_not_panic() {
        let mut activation = Activation::default();
        activation.quantise(&[0.0; 32]);
        assert_eq!(activation.values(), [0.0; 32]);
        activation.quantise(&[f32::INFINITY; 32]);
        assert_eq!(activation.len(), 32);
    }
}
