//! `GET /v1/models`: one entry, a superset of what OpenAI, Anthropic and local servers put there.

use serde_json::{Value, json};

/// A model as clients see it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCard {
    /// Its name in requests.
    pub id: String,
    /// When it was loaded, Unix time in seconds; 0 if it isn't.
    pub created: u64,
    /// Most tokens of prompt and answer together, once that is known. Agents compute their compaction from it.
    pub context_cap: Option<usize>,
    /// `ready`, `loading`, `staging`, `draining`, `failed` or `absent`.
    pub state: &'static str,
    /// How much of the load is done, 0 to 1.
    pub progress: f32,
    /// Why it failed.
    pub failure: Option<String>,
    /// Requests that use it.
    pub in_flight: usize,
    /// Memory it takes or will take.
    pub bytes: u64,
    /// Replicas of this name.
    pub replicas: usize,
}

/// States from the best to the worst.
const STATES: [&str; 6] = ["ready", "loading", "staging", "draining", "failed", "absent"];

impl ModelCard {
    /// A model that a request would have loaded.
    pub fn absent(id: &str, bytes: u64) -> Self {
        Self {
            id: id.to_owned(),
            created: 0,
            context_cap: None,
            state: "absent",
            progress: 0.0,
            failure: None,
            in_flight: 0,
            bytes,
            replicas: 0,
        }
    }

    /// Adds another replica of the same name: the better state counts.
    pub fn join(&mut self, other: Self) {
        let (in_flight, bytes) = (self.in_flight + other.in_flight, self.bytes + other.bytes);
        let replicas = self.replicas + other.replicas;
        let rank = |card: &Self| STATES.iter().position(|state| *state == card.state);
        if rank(&other) < rank(self) {
            *self = other;
        }
        (self.in_flight, self.bytes, self.replicas) = (in_flight, bytes, replicas);
    }

    /// The entry: a superset of what OpenAI, Anthropic and local servers put there.
    pub fn json(&self) -> Value {
        let cap = self.context_cap;
        json!({
            "id": self.id,
            "object": "model",
            "type": "model",
            "created": self.created,
            "created_at": rfc3339(self.created),
            "owned_by": "lichen",
            "name": self.id,
            "display_name": self.id,
            "max_model_len": cap,
            "context_length": cap,
            "context_window": cap,
            "max_output_tokens": cap,
            "limit": {"context": cap, "output": cap},
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "capabilities": ["completion", "chat", "embeddings", "tools"],
            "state": self.state,
            "progress": self.progress,
            "failure": self.failure,
            "in_flight": self.in_flight,
            "bytes": self.bytes,
            "replicas": self.replicas,
            "status": {"value": if self.state == "ready" { "loaded" } else { self.state }},
        })
    }

    /// The list of all.
    pub fn list(cards: &[Self]) -> Value {
        let ends = |card: Option<&Self>| card.map(|card| card.id.clone());
        json!({
            "object": "list",
            "data": cards.iter().map(Self::json).collect::<Vec<_>>(),
            "has_more": false,
            "first_id": ends(cards.first()),
            "last_id": ends(cards.last()),
        })
    }
}

/// A time as Anthropic's clients expect it: UTC, to the second (proleptic Gregorian calendar; the days of a year are
/// counted from March, so that the leap day is its last).
fn rfc3339(unix: u64) -> String {
    let (days, second) = (unix / 86_400 + 719_468, unix % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(4_102_444_799), "2099-12-31T23:59:59Z");
    }

    #[test]
    fn the_readiest_replica_speaks_for_a_name() {
        let mut card =
            ModelCard { state: "loading", in_flight: 1, bytes: 5, replicas: 1, ..ModelCard::absent("m", 5) };
        card.join(ModelCard { state: "ready", in_flight: 2, replicas: 1, ..ModelCard::absent("m", 5) });
        assert_eq!((card.state, card.in_flight, card.bytes, card.replicas), ("ready", 3, 10, 2));
    }
}
