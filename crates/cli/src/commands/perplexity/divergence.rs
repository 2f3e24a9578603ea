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
        let divergence = lichen_engine::divergence(reference, logits);
        self.count += 1;
        self.sum += divergence;
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

fn best(logits: &[f32]) -> Option<usize> {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_and_agreement_are_counted_by_token() {
        let mut divergence = Divergence::default();
        divergence.add(&[1.0, -2.0, 0.5], &[11.0, 8.0, 10.5]);
        assert!(divergence.sum.abs() < 1e-6 && divergence.agreeing == 1);
        divergence.add(&[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!((divergence.count, divergence.agreeing), (2, 1), "{divergence}");
    }
}
