//! How far predictions are from those they are compared with.

/// Sums over compared tokens.
#[derive(Debug, Default)]
pub(crate) struct Divergence {
    count: usize,
    sum: f64,
    largest: f64,
    agreeing: usize,
}

impl Divergence {
    /// Compares the logits of one token with those of `reference`: the Kullback-Leibler divergence of their
    /// distributions in nats, and whether the best token is the same.
    pub(crate) fn add(&mut self, reference: &[f32], logits: &[f32]) {
        let ((largest, sum), (other_largest, other_sum)) = (normaliser(reference), normaliser(logits));
        let divergence: f64 = reference
            .iter()
            .zip(logits)
            .map(|(&reference, &logit)| {
                let logarithm = f64::from(reference - largest) - sum;
                logarithm.exp() * (logarithm - (f64::from(logit - other_largest) - other_sum))
            })
            .sum();
        self.count += 1;
        // Rounding may leave a little less than nothing.
        self.sum += divergence.max(0.0);
        self.largest = self.largest.max(divergence);
        self.agreeing += usize::from(best(reference) == best(logits));
    }
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.count.max(1) as f64;
        let (mean, agreeing) = (self.sum / count, 100.0 * self.agreeing as f64 / count);
        write!(f, "mean {mean:.6}, largest {:.4}, same best token {agreeing:.2} %", self.largest)
    }
}

/// The largest logit, and the logarithm of the sum of all exponentials relative to it.
fn normaliser(logits: &[f32]) -> (f32, f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    (largest, sum.ln())
}

fn best(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_do_not_diverge_and_a_shift_changes_nothing() {
        let mut divergence = Divergence::default();
        divergence.add(&[1.0, -2.0, 0.5], &[11.0, 8.0, 10.5]);
        assert!(divergence.sum.abs() < 1e-6 && divergence.agreeing == 1);
    }

    #[test]
    fn the_divergence_is_that_of_the_definition() {
        let mut divergence = Divergence::default();
        let (p, q) = ([0.5f32, 0.5], [0.25f32, 0.75]);
        divergence.add(&p.map(f32::ln), &q.map(f32::ln));
        let wanted = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((divergence.sum - wanted).abs() < 1e-6, "{}", divergence.sum);
        divergence.add(&[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!((divergence.count, divergence.agreeing), (2, 1), "{divergence}");
    }
}
