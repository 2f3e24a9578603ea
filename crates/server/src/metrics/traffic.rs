//! What requests came, how they ended and how long they took.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lichen_api::Error;
use lichen_generate::Usage;

use super::exposition::Exposition;
use super::histogram::Histogram;

/// Most models with series of their own: names come from users, and every scrape carries all series.
const MOST_MODELS: usize = 1000;
/// The name for models beyond that.
const OTHER: &str = "other";

/// Counts of all requests since the start.
#[derive(Debug, Default)]
pub(crate) struct Traffic(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By route and status.
    requests: BTreeMap<(String, u16), u64>,
    /// By code.
    errors: BTreeMap<&'static str, u64>,
    /// By model and route.
    latencies: BTreeMap<String, BTreeMap<String, Latencies>>,
}

#[derive(Debug, Default)]
struct Latencies {
    request: Histogram,
    queue: Histogram,
    first_token: Histogram,
    per_token: Histogram,
}

/// A histogram under our name and under vLLM's, which dashboards and routers know.
struct Row {
    name: &'static str,
    alias: &'static str,
    help: &'static str,
    read: fn(&Latencies) -> &Histogram,
}

const ROWS: [Row; 4] = [
    Row {
        name: "lichen_request_duration_seconds",
        alias: "vllm:e2e_request_latency_seconds",
        help: "Time from the arrival of a request that got a model to the end of its response.",
        read: |latencies| &latencies.request,
    },
    Row {
        name: "lichen_queue_time_seconds",
        alias: "vllm:request_queue_time_seconds",
        help: "Time from the submission of a prompt to the first step on it.",
        read: |latencies| &latencies.queue,
    },
    Row {
        name: "lichen_time_to_first_token_seconds",
        alias: "vllm:time_to_first_token_seconds",
        help: "Time from the submission of a prompt to the first token of its answer.",
        read: |latencies| &latencies.first_token,
    },
    Row {
        name: "lichen_time_per_output_token_seconds",
        alias: "vllm:inter_token_latency_seconds",
        help: "Mean time of an answer between two of its tokens.",
        read: |latencies| &latencies.per_token,
    },
];

impl Traffic {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Counts are added one by one: there is no state in between.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A response has begun.
    pub(crate) fn responded(&self, route: &str, status: u16) {
        *self.lock().requests.entry((route.to_owned(), status)).or_default() += 1;
    }

    /// A request was refused or broke off.
    pub(crate) fn failed(&self, error: &Error) {
        *self.lock().errors.entry(error.code()).or_default() += 1;
    }

    /// An answer is complete. A request may have several.
    pub(crate) fn answered(&self, model: &str, route: &str, usage: &Usage) {
        let mut counts = self.lock();
        let latencies = counts.latencies(model, route);
        latencies.queue.observe(usage.queue_time.as_secs_f64());
        if usage.completion_tokens > 0 {
            latencies.first_token.observe(usage.time_to_first_token.as_secs_f64());
        }
        if let Some(seconds) = seconds_per_token(usage) {
            latencies.per_token.observe(seconds);
        }
    }

    /// The response to a request that got a model has ended.
    pub(crate) fn ended(&self, model: &str, route: &str, duration: Duration) {
        self.lock().latencies(model, route).request.observe(duration.as_secs_f64());
    }

    pub(super) fn write(&self, text: &mut Exposition) {
        let counts = self.lock();
        text.family("lichen_requests_total", "counter", "Requests by route and status of the response.");
        for ((route, status), count) in &counts.requests {
            let labels = [("route", route.as_str()), ("status", &status.to_string())];
            text.sample("lichen_requests_total", &labels, *count as f64);
        }
        text.family(
            "lichen_errors_total",
            "counter",
            "Requests refused or broken off, by code of the error.",
        );
        for (code, count) in &counts.errors {
            text.sample("lichen_errors_total", &[("code", code)], *count as f64);
        }
        for row in &ROWS {
            for (name, label) in [(row.name, "model"), (row.alias, "model_name")] {
                text.family(name, "histogram", row.help);
                for (model, routes) in &counts.latencies {
                    for (route, latencies) in routes {
                        let labels = [(label, model.as_str()), ("route", route)];
                        text.histogram(name, &labels, (row.read)(latencies));
                    }
                }
            }
        }
    }
}

/// The mean time between two tokens of an answer, for answers of more than one.
pub(crate) fn seconds_per_token(usage: &Usage) -> Option<f64> {
    let gaps = usage.completion_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(usage.decode_time.as_secs_f64() / gaps as f64)
}

impl Counts {
    fn latencies(&mut self, model: &str, route: &str) -> &mut Latencies {
        let known = self.latencies.contains_key(model) || self.latencies.len() < MOST_MODELS;
        let model = if known { model } else { OTHER };
        self.latencies.entry(model.to_owned()).or_default().entry(route.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_do_not_pile_up() {
        let traffic = Traffic::default();
        for number in 0..MOST_MODELS + 50 {
            traffic.ended(&format!("m{number}"), "/v1/chat/completions", Duration::from_millis(1));
        }
        let counts = traffic.lock();
        assert_eq!(counts.latencies.len(), MOST_MODELS + 1);
        assert_eq!(counts.latencies[OTHER]["/v1/chat/completions"].request.count(), 50);
    }

    #[test]
    fn an_answer_of_one_token_has_no_time_between_tokens() {
        let traffic = Traffic::default();
        let usage = |completion_tokens| Usage {
            completion_tokens,
            decode_time: Duration::from_secs(2),
            ..Usage::default()
        };
        for tokens in [0, 1, 5] {
            traffic.answered("m", "r", &usage(tokens));
        }
        let counts = traffic.lock();
        let latencies = &counts.latencies["m"]["r"];
        let counted = [&latencies.queue, &latencies.first_token, &latencies.per_token].map(Histogram::count);
        assert_eq!(counted, [3, 2, 1]);
        assert_eq!(latencies.per_token.sum(), 0.5);
    }
}
