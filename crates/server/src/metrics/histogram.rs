//! How often durations of which size came.

/// Upper bounds in seconds, from a millisecond to ten minutes; a bound belongs to its bucket.
const BOUNDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0,
];

/// Durations in buckets.
#[derive(Debug, Clone, Default)]
pub(super) struct Histogram {
    /// One for each bound, and one for what is larger than all.
    counts: [u64; BOUNDS.len() + 1],
    sum: f64,
}

impl Histogram {
    /// Adds a duration in seconds.
    pub(super) fn observe(&mut self, seconds: f64) {
        self.counts[BOUNDS.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += seconds;
    }

    /// The sum of all durations in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Each bound with the number of durations up to it; the last has no bound.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let bounds = BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.counts).scan(0, |total, (bound, count)| {
            *total += count;
            Some((bound, *total))
        })
    }
}
