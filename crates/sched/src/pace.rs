//! How long steps take, learnt from steps.

use std::time::Duration;

/// Weight of the newest measurement.
const NEWEST: f64 = 0.2;
/// A measurement counts at most this multiple of the mean, so that one hiccup does not set the pace.
const OUTLIER: f64 = 4.0;
/// Fewest prompt tokens of a step that has any, so that no prompt starves.
pub(crate) const LEAST_CHUNK: usize = 16;

#[derive(Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 = Some(match self.0 {
            None => value,
            Some(old) => old + NEWEST * (value.min(old * OUTLIER) - old),
        });
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Seconds of a step that only decodes.
    decode: Mean,
    /// Seconds that one prompt token adds to a step.
    prompt_token: Mean,
    /// Seconds between the ends of requests.
    interval: Mean,
    last_end: Option<Duration>,
}

impl Pace {
    pub(crate) fn record(&mut self, took: Duration, prompt_tokens: usize, decoding: usize) {
        let took = took.as_secs_f64();
        match (prompt_tokens, decoding) {
            (0, 0) => {}
            (0, _) => self.decode.add(took),
            (tokens, decoding) => {
                let base = if decoding > 0 { self.decode.0.unwrap_or(0.0) } else { 0.0 };
                self.prompt_token.add((took - base).max(0.0) / tokens as f64);
            }
        }
    }

    /// Prompt tokens for a step in which somebody decodes.
    pub(crate) fn chunk(&self, goal: Duration, factor: f64, most: usize) -> usize {
        let least = LEAST_CHUNK.min(most);
        let Some(token) = self.prompt_token.0.filter(|&token| token > 0.0) else { return least };
        let base = self.decode.0.unwrap_or(0.0);
        let goal = goal.as_secs_f64().max(base * factor);
        (((goal - base) / token) as usize).clamp(least, most)
    }

    pub(crate) fn record_end(&mut self, now: Duration) {
        if let Some(last) = self.last_end.replace(now) {
            self.interval.add(now.saturating_sub(last).as_secs_f64());
        }
    }

    /// Time until `ahead` requests have ended.
    pub(crate) fn wait(&self, ahead: usize) -> Duration {
        Duration::from_secs_f64((self.interval.0.unwrap_or(1.0) * ahead as f64).min(1e6))
    }
}
