//! The objects that a response is made of.

use serde_json::{Value, json};

use crate::blocks::Block;
use crate::{Error, TokenLogprob, Usage};

/// Stands for a probability of zero, whose logarithm JSON can't write.
const LEAST_LOGPROB: f32 = -9999.0;

/// How far an item or a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

impl Status {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// The id of the item at an index, from the response's id without its prefix.
pub(crate) fn item_id(response: &str, index: usize, block: &Block) -> String {
    let prefix = match block {
        Block::Thinking(_) => "rs",
        Block::Text { .. } => "msg",
        Block::Call(_) => "fc",
    };
    let name = response.strip_prefix("resp_").unwrap_or(response);
    format!("{prefix}_{name}_{index}")
}

/// An output item; one in progress has no content yet.
pub(crate) fn item(id: &str, block: &Block, status: Status) -> Value {
    let content = match status {
        Status::InProgress => Vec::new(),
        _ => part(block).into_iter().collect(),
    };
    let status = status.name();
    match block {
        Block::Thinking(_) => {
            json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
        }
        Block::Text { .. } => {
            json!({"type": "message", "id": id, "role": "assistant", "content": content, "status": status})
        }
        Block::Call(call) => json!({
            "type": "function_call", "id": id, "call_id": call.id, "name": call.name,
            "arguments": call.arguments, "status": status,
        }),
    }
}

/// The content part of an item; calls have none.
pub(crate) fn part(block: &Block) -> Option<Value> {
    match block {
        Block::Thinking(text) => Some(json!({"type": "reasoning_text", "text": text})),
        Block::Text { text, logprobs } => Some(json!({
            "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs_json(logprobs),
        })),
        Block::Call(_) => None,
    }
}

pub(crate) fn logprobs_json(logprobs: &[TokenLogprob]) -> Value {
    let entry = |token: &str, bytes: &[u8], logprob: f32| {
        let logprob = logprob.max(LEAST_LOGPROB);
        json!({"token": token, "bytes": bytes, "logprob": logprob})
    };
    let with_alternatives = |chosen: &TokenLogprob| {
        let top = chosen.top.iter().map(|(token, bytes, logprob)| entry(token, bytes, *logprob));
        let mut object = entry(&chosen.token, &chosen.bytes, chosen.logprob);
        object["top_logprobs"] = top.collect();
        object
    };
    logprobs.iter().map(with_alternatives).collect()
}

pub(crate) fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// The code of a failed response, in OpenAI's words where it has one.
pub(crate) fn error_code(error: &Error) -> &'static str {
    match error {
        Error::InvalidRequest { .. } => "invalid_prompt",
        Error::ContextOverBudget(_) => error.code(),
        Error::QueueFull { .. } => "rate_limit_exceeded",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_numbers_even_of_impossible_tokens() {
        let logprob = TokenLogprob {
            token: "a".into(),
            bytes: vec![97],
            logprob: -0.5,
            top: vec![("b".into(), vec![98], f32::NEG_INFINITY)],
        };
        let expected = json!([{"token": "a", "bytes": [97], "logprob": -0.5,
            "top_logprobs": [{"token": "b", "bytes": [98], "logprob": -9999.0}]}]);
        assert_eq!(logprobs_json(&[logprob]), expected);
    }

    #[test]
    fn ids_of_items_follow_from_the_response() {
        let text = Block::Text { text: String::new(), logprobs: vec![] };
        assert_eq!(item_id("resp_7", 0, &Block::Thinking(String::new())), "rs_7_0");
        assert_eq!(item_id("resp_7", 1, &text), "msg_7_1");
    }
}
