//! Who runs next, and whose state is kept. Pure: no clock, no thread, no device; time comes in as a duration since some
//! start, and a seeded simulation drives it (`tests/simulation.rs`).
//!
//! [`Scheduler`] is continuous batching (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, OSDI 2024) and fair
//! shares per key (Sheng et al., OSDI 2024). [`PrefixTree`] is a radix tree over tokens whose nodes are KV pages
//! (RadixAttention, SGLang).

mod fairness;
mod pace;
mod prefix_tree;
mod scheduler;

pub use prefix_tree::{Found, PrefixTree};
pub use scheduler::{Arrival, Limits, Progress, Scheduler, State, Step, Work};
