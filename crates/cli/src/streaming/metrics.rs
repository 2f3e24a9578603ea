//! What `/metrics` tells of streamed weights.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::streamer::{Shared, Streamer};

/// One metric: name, type, help, and rows of labels and value.
pub(crate) type Metric = (&'static str, &'static str, &'static str, Vec<(String, f64)>);

/// The models of a process whose weights are streamed.
#[derive(Clone, Default)]
pub(crate) struct Streams(Arc<Mutex<Vec<Weak<Shared>>>>);

impl Streams {
    pub(crate) fn add(&self, streamer: &Streamer) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(streamer.shared()));
    }

    fn running(&self) -> Vec<Arc<Shared>> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|stream| stream.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// None if no weights are streamed.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let streams = self.running();
        if streams.is_empty() {
            return Vec::new();
        }
        let rows = |value: fn(&Shared) -> Option<f64>| {
            let row = |stream: &Arc<Shared>| Some((format!("{{model={:?}}}", stream.name), value(stream)?));
            streams.iter().filter_map(row).collect::<Vec<_>>()
        };
        let (counter, gauge) = ("counter", "gauge");
        vec![
            (
                "lichen_planned_stream_bytes_total",
                counter,
                "Bytes of weights read from disk because they don't fit.",
                rows(|stream| Some(stream.read.load(Ordering::Relaxed) as f64)),
            ),
            (
                "lichen_weights_hot_bytes",
                gauge,
                "Bytes of such weights that stay in memory.",
                rows(|stream| Some(stream.hot.load(Ordering::Relaxed) as f64)),
            ),
            (
                "lichen_streamed_passes_total",
                counter,
                "Forward passes over such weights.",
                rows(|stream| Some(stream.passes().count as f64)),
            ),
            (
                "lichen_streamed_pass_seconds_total",
                counter,
                "Time that these passes took.",
                rows(|stream| Some(stream.passes().took.as_secs_f64())),
            ),
            (
                "lichen_predicted_passes_per_second",
                gauge,
                "Passes a second as predicted before the load.",
                rows(|stream| Some(stream.forecast?.tokens_per_second())),
            ),
        ]
    }
}
