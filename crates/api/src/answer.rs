//! Answers of both completion routes, whole and in chunks.

use serde_json::{Value, json};

/// Which of the two routes is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

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
}

impl Usage {
    fn json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}

/// What stays the same over all chunks of one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Which route.
    pub shape: Shape,
    /// Unique name of the answer.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Whether chunks carry a `usage` field.
    pub include_usage: bool,
}

impl Answer {
    fn envelope(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn chunk(&self, choices: Value, usage: Value) -> Value {
        let object = match self.shape {
            Shape::Chat => "chat.completion.chunk",
            Shape::Text => "text_completion",
        };
        let mut chunk = self.envelope(object, choices);
        if self.include_usage {
            chunk["usage"] = usage;
        }
        chunk
    }

    /// The chunk before any text; text completions have none.
    pub fn opening(&self) -> Option<Value> {
        let choices = json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
            "finish_reason": null}]);
        (self.shape == Shape::Chat).then(|| self.chunk(choices, Value::Null))
    }

    /// A chunk with more text.
    pub fn text(&self, text: &str) -> Value {
        let choice = match self.shape {
            Shape::Chat => {
                json!({"index": 0, "delta": {"content": text}, "logprobs": null, "finish_reason": null})
            }
            Shape::Text => json!({"index": 0, "text": text, "logprobs": null, "finish_reason": null}),
        };
        self.chunk(json!([choice]), Value::Null)
    }

    /// The chunk that says why the answer ended: `stop` or `length`.
    pub fn closing(&self, reason: &str) -> Value {
        let choice = match self.shape {
            Shape::Chat => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}),
            Shape::Text => json!({"index": 0, "text": "", "logprobs": null, "finish_reason": reason}),
        };
        self.chunk(json!([choice]), Value::Null)
    }

    /// The chunk with the usage, if it was asked for.
    pub fn usage(&self, usage: Usage) -> Option<Value> {
        self.include_usage.then(|| self.chunk(json!([]), usage.json()))
    }

    /// The whole answer at once.
    pub fn whole(&self, text: &str, reason: &str, usage: Usage) -> Value {
        let (object, choice) = match self.shape {
            Shape::Chat => (
                "chat.completion",
                json!({"index": 0, "message": {"role": "assistant", "content": text, "refusal": null},
                    "logprobs": null, "finish_reason": reason}),
            ),
            Shape::Text => (
                "text_completion",
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason}),
            ),
        };
        let mut whole = self.envelope(object, json!([choice]));
        whole["usage"] = usage.json();
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_in_chunks_only_when_asked_for() {
        let mut answer = Answer {
            shape: Shape::Chat,
            id: "a".into(),
            created: 1,
            model: "m".into(),
            include_usage: false,
        };
        assert!(answer.text("x").get("usage").is_none());
        assert!(answer.usage(Usage::default()).is_none());
        answer.include_usage = true;
        assert!(answer.text("x")["usage"].is_null());
        assert_eq!(
            answer.usage(Usage { prompt: 2, cached: 1, completion: 3, reasoning: 0 }).unwrap()["usage"]["total_tokens"],
            5
        );
    }
}
