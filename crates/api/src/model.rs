//! `GET /v1/models`: one entry, a superset of what OpenAI, Anthropic and local servers put there.

use serde_json::{Value, json};

/// A loaded model as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// Its name in requests.
    pub id: String,
    /// When it was loaded, Unix time in seconds.
    pub created: u64,
    /// Most tokens of prompt and answer together. Agents compute their compaction from it.
    pub context_cap: usize,
    /// `ready`, `loading`, `draining` or `failed`.
    pub state: &'static str,
}

impl ModelCard {
    /// The entry.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "model",
            "type": "model",
            "created": self.created,
            "owned_by": "lichen",
            "name": self.id,
            "display_name": self.id,
            "max_model_len": self.context_cap,
            "context_length": self.context_cap,
            "context_window": self.context_cap,
            "max_output_tokens": self.context_cap,
            "limit": {"context": self.context_cap, "output": self.context_cap},
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "capabilities": ["completion", "chat"],
            "state": self.state,
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
