//! Which precisions of keys and values a model bears: measured on a text, and held against what is thought harmless.

use lichen_backend::{Executor, ExecutorError, KvPrecision, PageSet};
use lichen_op::Batch;

/// Tokens before those that are compared: five pages, of which three are sealed.
const CONTEXT: usize = 320;
/// Tokens that are compared.
const COMPARED: usize = 32;
/// Tokens of a step that computes context. Steps are short: between two of them a measurement can be called off.
const STEP: usize = 16;
/// Compared tokens of a step: rows of logits are large.
const ROWS: usize = 8;
/// The number of the sequence of a measurement.
const SEQUENCE: u64 = u64::MAX;

/// The divergences of a model's precisions from half precision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KvGate {
    divergences: Vec<(KvPrecision, f64)>,
    /// Whether precisions that have not been measured are left out.
    careful: bool,
}

impl KvGate {
    /// Tokens of text that a measurement takes.
    pub const TOKENS: usize = CONTEXT + COMPARED;
    /// The precisions that are measured, from fine to coarse.
    pub const MEASURED: [KvPrecision; 3] = [KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];

    /// The largest mean divergence from half precision at which a precision is used, in nats.
    pub fn budget(precision: KvPrecision) -> f64 {
        match precision {
            KvPrecision::Q4 => 2e-2,
            KvPrecision::Q5 => 1e-2,
            KvPrecision::Q8 => 1e-3,
            KvPrecision::F16 | KvPrecision::F32 => f64::INFINITY,
        }
    }

    /// A gate from divergences that are known, in nats. What has not been measured is allowed.
    pub fn new(divergences: Vec<(KvPrecision, f64)>) -> Self {
        Self { divergences, careful: false }
    }

    /// The gate of a model that has not been measured yet: no precision below 8 bits, which have been harmless for all
    /// models so far.
    pub fn unmeasured() -> Self {
        Self { divergences: Vec::new(), careful: true }
    }

    /// Measures on [`KvGate::TOKENS`] tokens of a text; a shorter one begins again. A sequence is computed at the
    /// precision that `executor` writes pages in, and then brought from precision to precision as a running one would
    /// be. The executor should compute in single precision: rounding of activations would drown what is measured.
    ///
    /// Before each step `go_on` is asked; `None` if it says no.
    ///
    /// # Errors
    /// If the backend fails.
    pub fn measure(
        executor: &mut dyn Executor,
        text: &[u32],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, ExecutorError> {
        let tokens: Vec<u32> = text.iter().copied().cycle().take(Self::TOKENS).collect();
        executor.set_kv_precision(KvPrecision::F32);
        let measured = divergences(&mut Steps { executor, go_on }, &tokens);
        executor.drop_sequence(SEQUENCE);
        match measured {
            Ok(divergences) => Ok(Some(Self::new(divergences))),
            Err(Ended::CalledOff) => Ok(None),
            Err(Ended::Failed(error)) => Err(error),
        }
    }

    /// Bytes of logits that a measurement keeps.
    pub fn logit_bytes(vocab: usize) -> u64 {
        ((COMPARED + ROWS) * vocab * size_of::<f32>()) as u64
    }

    /// The measured divergence of a precision in nats.
    pub fn divergence(&self, precision: KvPrecision) -> Option<f64> {
        self.divergences
            .iter()
            .find(|(measured, _)| *measured == precision)
            .map(|(_, divergence)| *divergence)
    }

    /// Whether a precision is within its budget.
    pub fn allows(&self, precision: KvPrecision) -> bool {
        match self.divergence(precision) {
            // No number is no divergence that could be borne.
            Some(divergence) => divergence <= Self::budget(precision),
            None => !self.careful || precision >= KvPrecision::Q8,
        }
    }

    /// This precision, or the next finer one that is allowed.
    pub fn at_least(&self, precision: KvPrecision) -> KvPrecision {
        let finer = KvPrecision::ALL.into_iter().filter(|finer| *finer >= precision);
        finer.into_iter().find(|finer| self.allows(*finer)).unwrap_or(KvPrecision::F16)
    }
}

/// Why a measurement gave nothing.
enum Ended {
    CalledOff,
    Failed(ExecutorError),
}

impl From<ExecutorError> for Ended {
    fn from(error: ExecutorError) -> Self {
        Self::Failed(error)
    }
}

/// The steps of a measurement.
struct Steps<'a> {
    executor: &'a mut dyn Executor,
    go_on: &'a mut dyn FnMut() -> bool,
}

impl Steps<'_> {
    fn run(&mut self, past: usize, tokens: &[u32], compared: bool) -> Result<Vec<f32>, Ended> {
        if !(self.go_on)() {
            return Err(Ended::CalledOff);
        }
        let mut batch = Batch::default();
        batch.push(SEQUENCE, past, tokens, compared);
        let mut logits = Vec::new();
        self.executor.run(&batch, &mut logits)?;
        Ok(logits)
    }

    /// The logits of the compared tokens, some rows at a time.
    fn compared(&mut self, tokens: &[u32]) -> impl Iterator<Item = Result<Vec<f32>, Ended>> {
        let parts = tokens[CONTEXT..].chunks(ROWS).enumerate();
        parts.map(|(step, part)| self.run(CONTEXT + step * ROWS, part, true))
    }
}

fn divergences(steps: &mut Steps<'_>, tokens: &[u32]) -> Result<Vec<(KvPrecision, f64)>, Ended> {
    for (step, part) in tokens[..CONTEXT].chunks(STEP).enumerate() {
        steps.run(step * STEP, part, false)?;
    }
    let reference = steps.compared(tokens).collect::<Result<Vec<_>, _>>()?;
    let vocab = steps.executor.vocab();
    let mut measured = Vec::new();
    for precision in KvGate::MEASURED {
        steps.executor.requantise(PageSet::Sequence(SEQUENCE), precision)?;
        let mut sum = 0.0;
        for (logits, reference) in steps.compared(tokens).zip(&reference) {
            let logits = logits?;
            let rows = reference.chunks_exact(vocab).zip(logits.chunks_exact(vocab));
            sum += rows.map(|(reference, logits)| divergence(reference, logits)).sum::<f64>();
        }
        measured.push((precision, sum / COMPARED as f64));
    }
    Ok(measured)
}

/// How far the predictions of `logits` are from those of `reference`: the Kullback-Leibler divergence of their
/// distributions in nats.
pub fn divergence(reference: &[f32], logits: &[f32]) -> f64 {
    let ((largest, sum), (other_largest, other_sum)) = (normaliser(reference), normaliser(logits));
    let terms = reference.iter().zip(logits).map(|(&reference, &logit)| {
        let logarithm = f64::from(reference - largest) - sum;
        logarithm.exp() * (logarithm - (f64::from(logit - other_largest) - other_sum))
    });
    // Rounding may leave a little less than nothing; what is no number stays none.
    let sum: f64 = terms.sum();
    if sum < 0.0 { 0.0 } else { sum }
}

/// The largest logit, and the logarithm of the sum of all exponentials relative to it.
fn normaliser(logits: &[f32]) -> (f32, f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
    (largest, sum.ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use KvPrecision::{F16, Q4, Q5, Q8};

    #[test]
    fn what_is_over_its_budget_gives_way_to_the_next_finer() {
        let gate = |q8, q5, q4| KvGate::new(vec![(Q8, q8), (Q5, q5), (Q4, q4)]);
        let good = gate(1e-5, 1e-3, 4e-3);
        assert_eq!([Q4, Q5, Q8, F16].map(|asked| good.at_least(asked)), [Q4, Q5, Q8, F16]);
        let coarse = gate(1e-5, 1.0, 2.0);
        assert_eq!([Q4, Q5, Q8, F16].map(|asked| coarse.at_least(asked)), [Q8, Q8, Q8, F16]);
        let broken = gate(f64::NAN, 1.0, f64::INFINITY);
        assert_eq!([Q4, Q5, Q8, F16].map(|asked| broken.at_least(asked)), [F16; 4]);
        assert_eq!(KvGate::default().at_least(Q4), Q4, "what nobody asks for is allowed");
        let unmeasured = KvGate::unmeasured();
        assert_eq!([Q4, Q5, Q8, F16].map(|asked| unmeasured.at_least(asked)), [Q8, Q8, Q8, F16]);
    }

    #[test]
    fn the_divergence_is_that_of_the_definition() {
        let (p, q) = ([0.5f32, 0.5], [0.25f32, 0.75]);
        let wanted = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((divergence(&p.map(f32::ln), &q.map(f32::ln)) - wanted).abs() < 1e-6);
        assert!(divergence(&[1.0, -2.0, 0.5], &[11.0, 8.0, 10.5]) < 1e-6, "a shift changes nothing");
        assert!(divergence(&[f32::NAN, 0.0], &[1.0, 0.0]).is_nan());
    }
}
