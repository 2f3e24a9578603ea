//! Answers of `POST /v1/chat/completions`, whole and in chunks.

use serde_json::{Value, json};

use crate::{Call, Encoder, Error, Finish, Piece, Reply, Sse, TokenLogprob, Usage};

/// What stays the same over all chunks of one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatEncoder {
    /// Unique name of the answer.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// How many answers are given.
    pub choices: usize,
    /// Whether chunks carry a `usage` field.
    pub include_usage: bool,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
}

impl ChatEncoder {
    fn chunk(&self, choices: Value, usage: Value) -> Sse {
        let mut chunk = json!({"id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model, "choices": choices});
        if self.include_usage {
            chunk["usage"] = usage;
        }
        Sse::data(&chunk)
    }

    fn delta(&self, choice: usize, delta: Value, logprobs: Value, finish: Value) -> Sse {
        let choice = json!({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        self.chunk(json!([choice]), Value::Null)
    }

    fn logprobs(&self, tokens: &[TokenLogprob]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        let content: Vec<Value> = tokens.iter().map(logprob).collect();
        json!({"content": content, "refusal": null})
    }
}

fn logprob(token: &TokenLogprob) -> Value {
    let entry =
        |text: &str, bytes: &[u8], logprob: f32| json!({"token": text, "bytes": bytes, "logprob": logprob});
    let top: Vec<Value> = token.top.iter().map(|(text, bytes, p)| entry(text, bytes, *p)).collect();
    let mut value = entry(&token.token, &token.bytes, token.logprob);
    value["top_logprobs"] = Value::Array(top);
    value
}

fn tool_call(call: &Call) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

impl Encoder for ChatEncoder {
    fn start(&mut self, _prompt_tokens: usize) -> Vec<Sse> {
        let opening = json!({"role": "assistant", "content": ""});
        (0..self.choices)
            .map(|choice| self.delta(choice, opening.clone(), Value::Null, Value::Null))
            .collect()
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse> {
        let (delta, logprobs) = match piece {
            Piece::Text { text, logprobs } if text.is_empty() && logprobs.is_empty() => return Vec::new(),
            Piece::Text { text, logprobs } => (json!({"content": text}), self.logprobs(&logprobs)),
            Piece::Reasoning(text) => (json!({"reasoning_content": text}), Value::Null),
            Piece::ToolStart { index, id, name } => {
                let mut call = tool_call(&Call { id, name, arguments: String::new() });
                call["index"] = json!(index);
                (json!({"tool_calls": [call]}), Value::Null)
            }
            Piece::ToolArguments { index, fragment } => {
                let call = json!({"index": index, "function": {"arguments": fragment}});
                (json!({"tool_calls": [call]}), Value::Null)
            }
        };
        vec![self.delta(choice, delta, logprobs, Value::Null)]
    }

    fn end(&mut self, choice: usize, finish: Finish) -> Vec<Sse> {
        vec![self.delta(choice, json!({}), Value::Null, json!(finish.name()))]
    }

    fn finish(&mut self, usage: Usage) -> Vec<Sse> {
        let usage = self.include_usage.then(|| self.chunk(json!([]), usage.json()));
        usage.into_iter().chain([Sse::done()]).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Sse> {
        vec![Sse::data(&error.body())]
    }

    fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        let choices: Vec<Value> = replies
            .iter()
            .enumerate()
            .map(|(index, reply)| {
                let content = if reply.text.is_empty() && !reply.calls.is_empty() {
                    Value::Null
                } else {
                    json!(reply.text)
                };
                let mut message = json!({"role": "assistant", "content": content, "refusal": null});
                if !reply.reasoning.is_empty() {
                    message["reasoning_content"] = json!(reply.reasoning);
                }
                if !reply.calls.is_empty() {
                    message["tool_calls"] = reply.calls.iter().map(tool_call).collect();
                }
                let reason = reply.finish.as_ref().map(Finish::name);
                json!({"index": index, "message": message, "logprobs": self.logprobs(&reply.logprobs),
                "finish_reason": reason})
            })
            .collect();
        json!({"id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
            "choices": choices, "usage": usage.json()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder() -> ChatEncoder {
        ChatEncoder {
            id: "a".into(),
            created: 1,
            model: "m".into(),
            choices: 1,
            include_usage: false,
            logprobs: false,
        }
    }

    fn json_of(event: &Sse) -> Value {
        serde_json::from_str(&event.data).unwrap()
    }

    #[test]
    fn usage_is_in_chunks_only_when_asked_for() {
        let text = || Piece::Text { text: "x".into(), logprobs: Vec::new() };
        let mut plain = encoder();
        assert!(json_of(&plain.piece(0, text())[0]).get("usage").is_none());
        assert_eq!(plain.finish(Usage::default()).len(), 1);
        let mut counted = ChatEncoder { include_usage: true, ..encoder() };
        assert!(json_of(&counted.piece(0, text())[0])["usage"].is_null());
        let usage = Usage { prompt: 2, cached: 1, completion: 3, reasoning: 0, reduced_kv: None };
        assert_eq!(json_of(&counted.finish(usage)[0])["usage"]["total_tokens"], 5);
    }

    #[test]
    fn a_stream_of_calls_adds_up_to_the_whole() {
        let pieces = [
            Piece::Reasoning("hm".into()),
            Piece::ToolStart { index: 0, id: "c0".into(), name: "f".into() },
            Piece::ToolArguments { index: 0, fragment: "{\"a\":".into() },
            Piece::ToolArguments { index: 0, fragment: "1}".into() },
            Piece::ToolStart { index: 1, id: "c1".into(), name: "g".into() },
        ];
        let (mut streamed, mut reply) = (encoder(), Reply::default());
        let mut arguments = String::new();
        for piece in pieces {
            for event in streamed.piece(0, piece.clone()) {
                let call = &json_of(&event)["choices"][0]["delta"]["tool_calls"][0];
                if call["index"] == 0 {
                    arguments.push_str(call["function"]["arguments"].as_str().unwrap());
                }
            }
            reply.push(piece);
        }
        reply.finish = Some(Finish::ToolCalls);
        let whole = encoder().whole(&[reply], Usage::default());
        let choice = &whole["choices"][0];
        assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], arguments);
        assert_eq!(choice["message"]["tool_calls"][1]["id"], "c1");
        assert_eq!(choice["message"]["reasoning_content"], "hm");
        assert!(choice["message"]["content"].is_null());
        assert_eq!(choice["finish_reason"], "tool_calls");
    }

    #[test]
    fn log_probabilities_have_bytes_and_alternatives() {
        let encoder = ChatEncoder { logprobs: true, ..encoder() };
        let token = TokenLogprob {
            token: "é".into(),
            bytes: vec![195, 169],
            logprob: -0.5,
            top: vec![("e".into(), vec![101], -1.5)],
        };
        let value = encoder.logprobs(&[token]);
        assert_eq!(value["content"][0]["bytes"], json!([195, 169]));
        assert_eq!(value["content"][0]["top_logprobs"][0]["logprob"], -1.5);
    }
}
