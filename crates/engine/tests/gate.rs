//! A model that doesn't bear coarse keys and values keeps finer ones.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, ExecutorError, KvPrecision, PageSet};
use lichen_engine::{EngineConfig, KvGate};
use lichen_op::Batch;

const VOCAB: usize = 16;

/// Predicts the token after the last, unless its keys and values are coarser than it bears.
struct Fragile {
    bears: KvPrecision,
    stored: KvPrecision,
    fails: bool,
}

impl Executor for Fragile {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        if self.fails {
            return Err(ExecutorError("no".to_owned()));
        }
        let shift = if self.stored < self.bears { 2 } else { 1 };
        let row = |&row: &usize| {
            let next = (batch.tokens[row] as usize + shift) % VOCAB;
            (0..VOCAB).map(move |token| if token == next { 9.0 } else { 0.0 })
        };
        *logits = batch.outputs.iter().flat_map(row).collect();
        Ok(())
    }

    fn requantise(&mut self, _pages: PageSet, precision: KvPrecision) -> Result<u64, ExecutorError> {
        self.stored = precision;
        Ok(0)
    }

    fn drop_sequence(&mut self, _sequence: u64) {
        self.stored = KvPrecision::F16;
    }
}

fn config(bears: KvPrecision, kv_precision: KvPrecision) -> EngineConfig {
    let mut model = Fragile { bears, stored: KvPrecision::F16, fails: false };
    let kv_gate = KvGate::measure(&mut model, &[1, 2, 3], &mut || true).unwrap().unwrap();
    EngineConfig { kv_gate, kv_precision, ..EngineConfig::default() }
}

#[test]
fn promises_are_made_in_the_coarsest_precision_that_the_model_bears() {
    use KvPrecision::{F16, F32, Q4, Q5, Q8};
    for bears in [Q4, Q5, Q8, F16] {
        let config = config(bears, F16);
        assert_eq!(config.kv_floor(), bears);
        assert_eq!(config.kv_at_most(Q5), bears.max(Q5), "and pages are sealed in no coarser one");
    }
    assert_eq!(config(Q8, Q4).kv_floor(), Q4, "what the operator asks for is used");
    assert_eq!(config(Q8, F32).kv_floor(), F32);
}

#[test]
fn a_backend_that_fails_gives_no_verdict() {
    let mut model = Fragile { bears: KvPrecision::Q4, stored: KvPrecision::F16, fails: true };
    assert!(KvGate::measure(&mut model, &[1], &mut || true).is_err());
}

#[test]
fn a_measurement_can_be_called_off_before_each_step() {
    let measure = |steps: usize| {
        let mut model = Fragile { bears: KvPrecision::Q4, stored: KvPrecision::F16, fails: false };
        let mut left = steps;
        let mut go_on = || left.checked_sub(1).map(|fewer| left = fewer).is_some();
        (KvGate::measure(&mut model, &[1], &mut go_on).unwrap(), left, model.stored)
    };
    let (gate, unused, _) = measure(1000);
    assert!(gate.is_some());
    let needed = 1000 - unused;
    for steps in 0..needed {
        assert_eq!(measure(steps), (None, 0, KvPrecision::F16), "nothing is left of its sequence");
    }
    assert!(measure(needed).0.is_some());
}
