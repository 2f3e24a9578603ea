//! What each kernel of the table gives on this machine. `bench/README.md` tells how to read it.
//!
//! Without `--bench`, as `cargo test` runs it, each benchmark runs once on little input.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed benchmark")]
#![allow(missing_docs, reason = "criterion's macros make functions without them")]

mod attention;
mod matrices;
mod memory;

use criterion::{Criterion, criterion_group, criterion_main};
use std::time::Duration;

/// Whether this run is a test: nothing is timed, and input is small.
pub(crate) fn is_test() -> bool {
    let mut arguments = std::env::args();
    !arguments.any(|argument| argument == "--bench") || std::env::args().any(|argument| argument == "--test")
}

/// Numbers around zero that no two places share.
pub(crate) fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * 1.37).sin() * (1.0 + (i % 97) as f32 / 50.0)).collect()
}

/// Short measurements: there are hundreds of them.
fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .without_plots()
}

criterion_group! {
    name = kernels;
    config = criterion();
    targets = memory::bandwidth, matrices::decode, matrices::panels, attention::decode, attention::prefill
}
criterion_main!(kernels);
