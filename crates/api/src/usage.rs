//! What a request used, as the completion routes report it.

use serde_json::{Value, json};

/// What a request used, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: usize,
    /// Of the prompt, with reused state.
    pub cached: usize,
    /// Of the answer.
    pub completion: usize,
    /// Of the answer, spent on thinking.
    pub reasoning: usize,
    /// The precision that keys and values were reduced to since memory was short.
    pub reduced_kv: Option<&'static str>,
}

impl Usage {
    /// Adds the usage of another answer to the same prompt.
    pub fn add_answer(&mut self, other: Self) {
        self.completion += other.completion;
        self.reasoning += other.reasoning;
        self.reduced_kv = self.reduced_kv.or(other.reduced_kv);
    }

    /// The `usage` object of chat and text completions.
    pub fn json(self) -> Value {
        let mut usage = json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        });
        if let Some(precision) = self.reduced_kv {
            usage["memory"] = json!({"kv_precision": precision});
        }
        usage
    }
}
