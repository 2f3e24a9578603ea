//! A request that is too large, and what would fit.

use serde_json::{Value, json};

/// A request and the room there is for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TurnSize {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens asked for.
    pub requested_tokens: usize,
    /// Most tokens of prompt and answer together.
    pub context_cap: usize,
    /// Bytes of keys and values that one token takes.
    pub kv_bytes_per_token: u64,
    /// What memory has to do with it, where that is watched.
    pub memory: Option<TurnMemory>,
}

/// The memory for one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnMemory {
    /// Bytes of keys and values that must be promised to it, at the precision of promises.
    pub kv_bytes_needed: u64,
    /// Bytes that can be promised now.
    pub kv_bytes_available: u64,
    /// Bytes that could be promised if nothing else ran.
    pub kv_bytes_alone: u64,
    /// Bytes that one token takes at the precision of promises.
    pub kv_bytes_per_token_floor: u64,
    /// The precision of promises.
    pub floor: &'static str,
    /// The longest prompt, with as many tokens asked for, that would be admitted now; 0 if none.
    pub max_prompt_tokens_now: u64,
    /// The longest prompt, with as many tokens asked for, that would be admitted if nothing else ran; 0 if none.
    pub max_prompt_tokens_alone: u64,
    /// The most tokens that could be asked for with this prompt if nothing else ran; 0 if none.
    pub max_requested_tokens_alone: u64,
    /// Bytes that are this process's.
    pub limit_bytes: u64,
    /// Where that limit comes from.
    pub limit_source: String,
    /// How short memory is: `normal`, `watch`, `tight` or `critical`.
    pub level: &'static str,
}

impl TurnMemory {
    /// Bytes of the whole process if the request were taken: what stays, what is kept free, and its keys and values.
    pub(crate) fn need_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.kv_bytes_alone).saturating_add(self.kv_bytes_needed)
    }
}

impl TurnSize {
    /// What would fit, in words.
    pub(crate) fn suggestion(&self) -> String {
        let (prompt, requested) = match &self.memory {
            Some(memory) => (memory.max_prompt_tokens_alone, memory.max_requested_tokens_alone),
            None => {
                let left = |tokens| self.context_cap.saturating_sub(tokens) as u64;
                (left(self.requested_tokens), left(self.prompt_tokens))
            }
        };
        match (prompt, requested) {
            (0, 0) => "shorten the prompt and ask for fewer tokens".to_owned(),
            (prompt, 0) => format!("shorten the prompt to at most {prompt} tokens"),
            (0, requested) => format!("ask for at most {requested} tokens"),
            _ => {
                format!("ask for at most {requested} tokens or shorten the prompt to at most {prompt} tokens")
            }
        }
    }

    /// All numbers, for `error.details`.
    pub(crate) fn details(&self) -> Value {
        let kv_bytes = |tokens: usize| self.kv_bytes_per_token.saturating_mul(tokens as u64);
        let mut details = json!({
            "prompt_tokens": self.prompt_tokens,
            "requested_tokens": self.requested_tokens,
            "ctx_cap": self.context_cap,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_needed": kv_bytes(self.prompt_tokens.saturating_add(self.requested_tokens)),
            "kv_bytes_available": kv_bytes(self.context_cap),
            "suggestion": self.suggestion(),
            "retryable": false,
        });
        if let Some(memory) = &self.memory {
            details["kv_bytes_needed"] = json!(memory.kv_bytes_needed);
            details["kv_bytes_available"] = json!(memory.kv_bytes_available);
            details["kv_bytes_alone"] = json!(memory.kv_bytes_alone);
            details["kv_bytes_per_token_floor"] = json!(memory.kv_bytes_per_token_floor);
            details["kv_precision_floor"] = json!(memory.floor);
            details["max_prompt_tokens_now"] = json!(memory.max_prompt_tokens_now);
            details["max_prompt_tokens_alone"] = json!(memory.max_prompt_tokens_alone);
            details["max_requested_tokens_alone"] = json!(memory.max_requested_tokens_alone);
            details["limit"] = json!({"bytes": memory.limit_bytes, "source": memory.limit_source});
            details["level"] = json!(memory.level);
        }
        details
    }

    /// As [`TurnSize::details`], for a request that can never fit into memory.
    pub(crate) fn impossible_details(&self) -> Value {
        let mut details = self.details();
        if let Some(memory) = &self.memory {
            details["need_bytes"] = json!(memory.need_bytes());
            details["limit_bytes"] = json!(memory.limit_bytes);
        }
        details
    }
}
