//! One exchange of request and answer: its name, who asked, and what it leaves in the access log and the metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lichen_api::Error;
use lichen_generate::Usage;
use serde_json::{Map, Value, json};

use crate::metrics::{Traffic, seconds_per_token};

/// Takes each line of the access log, a JSON object without a line end.
pub type AccessLog = Arc<dyn Fn(&str) + Send + Sync>;

/// One exchange. The last clone to go writes the line: for a stream that is when the client has it all or has gone.
#[derive(Clone)]
pub(crate) struct Exchange(Arc<Inner>);

struct Inner {
    id: String,
    key: u64,
    begun: Instant,
    /// The path as it is routed, such as `/v1/models/{id}`.
    route: String,
    /// The model that was lent.
    model: OnceLock<String>,
    traffic: Arc<Traffic>,
    log: Option<AccessLog>,
    line: Mutex<Map<String, Value>>,
}

impl Exchange {
    /// `key` is the number of the API key that was used.
    pub(crate) fn new(
        id: String,
        key: u64,
        route: String,
        traffic: Arc<Traffic>,
        log: Option<AccessLog>,
    ) -> Self {
        let (model, line) = (OnceLock::new(), Mutex::default());
        Self(Arc::new(Inner { id, key, begun: Instant::now(), route, model, traffic, log, line }))
    }

    /// Names the exchange, for finding it in logs.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    /// Who asks.
    pub(crate) fn key(&self) -> u64 {
        self.0.key
    }

    /// Adds a field to the line.
    pub(crate) fn note(&self, name: &str, value: impl Into<Value>) {
        if self.0.log.is_some() {
            let mut line = self.0.line.lock().unwrap_or_else(PoisonError::into_inner);
            line.insert(name.to_owned(), value.into());
        }
    }

    /// Takes note of the model that was lent.
    pub(crate) fn note_model(&self, model: &str) {
        self.note("model", model);
        // A request gets one model; the first stays.
        let _ = self.0.model.set(model.to_owned());
    }

    /// Takes note of the response that begins.
    pub(crate) fn note_status(&self, status: u16) {
        self.note("status", status);
        self.0.traffic.responded(&self.0.route, status);
    }

    /// Takes note of why there is no answer, or none to its end.
    pub(crate) fn note_error(&self, error: &Error) {
        self.note("error", error.code());
        self.0.traffic.failed(error);
    }

    /// Adds what an answer used, with the time to its first token and the mean time between its tokens.
    pub(crate) fn note_usage(&self, usage: &Usage) {
        self.note("prompt_tokens", usage.prompt_tokens);
        self.note("cached_tokens", usage.cached_tokens);
        self.note("completion_tokens", usage.completion_tokens);
        self.note("queue_s", seconds(usage.queue_time.as_secs_f64()));
        self.note("ttft_s", seconds(usage.time_to_first_token.as_secs_f64()));
        if let Some(between) = seconds_per_token(usage) {
            self.note("itl_s", seconds(between));
        }
        if let Some(model) = self.0.model.get() {
            self.0.traffic.answered(model, &self.0.route, usage);
        }
    }
}

/// Seconds to the microsecond.
fn seconds(value: f64) -> Value {
    json!((value * 1e6).round() / 1e6)
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(model) = self.model.get() {
            self.traffic.ended(model, &self.route, self.begun.elapsed());
        }
        let Some(log) = &self.log else { return };
        let mut line = Map::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
        line.insert("time".into(), seconds(now));
        line.insert("request_id".into(), json!(self.id));
        line.append(self.line.get_mut().unwrap_or_else(PoisonError::into_inner));
        line.insert("duration_s".into(), seconds(self.begun.elapsed().as_secs_f64()));
        log(&Value::Object(line).to_string());
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exchange").field(&self.0.id).finish()
    }
}

/// A name that does not repeat: time in microseconds plus a counter.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
    format!("{prefix}-{time:x}{:06x}", COUNTER.fetch_add(1, Ordering::Relaxed))
}
