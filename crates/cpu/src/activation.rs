//! Activations in 8 bits, as the integer kernels read them.

/// Values of a block that share one scale.
pub(crate) const BLOCK: usize = 32;

/// One vector of activations: signed bytes with a scale per 32 values.
///
/// `value[i] ~ scale[i / 32] * quants[i]`, the quants within -127..=127: -128 would overflow the signed kernels.
#[derive(Debug, Clone, Default)]
pub struct Activation {
    pub(crate) quants: Vec<[u8; BLOCK]>,
    pub(crate) scales: Vec<f32>,
    /// Per 16 values: the sum of their quants.
    pub(crate) quant_sums: Vec<[i32; 2]>,
    /// Per 16 values: their scale times the sum of their quants, which is what a minimum is multiplied with.
    pub(crate) sums: Vec<[f32; 2]>,
}

impl Activation {
    /// Quantises `values`.
    ///
    /// # Panics
    /// If the length isn't a multiple of 32: rows of quantised weights always are.
    #[inline(always)]
    pub fn quantise(&mut self, values: &[f32]) {
        assert!(values.len().is_multiple_of(BLOCK), "{} values are no whole blocks of {BLOCK}", values.len());
        self.quants.clear();
        self.scales.clear();
        self.quant_sums.clear();
        self.sums.clear();
        for block in values.as_chunks::<BLOCK>().0 {
            let largest = largest(block);
            let scale = largest / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let mut quants = [0; BLOCK];
            for (quant, value) in quants.iter_mut().zip(block) {
                *quant = rounded(value * inverse);
            }
            let mut sums = [0i32; 2];
            for i in 0..BLOCK / 2 {
                sums[0] += i32::from(quants[i] as i8);
                sums[1] += i32::from(quants[i + BLOCK / 2] as i8);
            }
            self.sums.push([scale * sums[0] as f32, scale * sums[1] as f32]);
            self.quant_sums.push(sums);
            self.scales.push(scale);
            self.quants.push(quants);
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.quants.len() * BLOCK
    }

    /// Whether it holds no value.
    pub fn is_empty(&self) -> bool {
        self.quants.is_empty()
    }

    /// The values that the kernels see: `scale * quant`.
    pub fn values(&self) -> Vec<f32> {
        let blocks = self.quants.iter().zip(&self.scales);
        blocks.flat_map(|(quants, scale)| quants.map(|quant| f32::from(quant as i8) * scale)).collect()
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
            assert!((value - seen).abs() <= activation.scales[i / BLOCK] * 0.5001, "{i}: {value} {seen}");
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
