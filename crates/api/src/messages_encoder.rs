//! Anthropic `POST /v1/messages`: the answer, whole and as a stream of named events.

use serde_json::{Map, Value, json};

use crate::blocks::{Block, Blocks, Step, blocks_of};
use crate::{Encoder, Error, Finish, Piece, Reply, Sse, Usage, anthropic_error};

/// Encodes the one answer to a messages request.
///
/// Blocks are numbered from 0 and one is open at a time. A stream keeps the order in which the model wrote;
/// the whole answer is thinking, text, tool calls.
#[derive(Debug)]
pub struct MessagesEncoder {
    id: String,
    model: String,
    blocks: Blocks,
    called: bool,
    finish: Option<Finish>,
}

impl MessagesEncoder {
    /// For the message of this id (`msg_…`) from this model.
    pub fn new(id: impl Into<String>, model: impl Into<String>) -> Self {
        Self { id: id.into(), model: model.into(), blocks: Blocks::default(), called: false, finish: None }
    }

    fn message(&self, content: Vec<Value>, stop: &Stop, usage: Usage) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": stop.reason, "stop_sequence": stop.text, "usage": usage_json(usage),
        })
    }

    fn events(&mut self, steps: Vec<Step>) -> Vec<Sse> {
        steps.into_iter().flat_map(|step| self.step(step)).collect()
    }

    fn step(&mut self, step: Step) -> Vec<Sse> {
        match step {
            Step::Open(index, block) => {
                self.called |= matches!(block, Block::Call(_));
                let block = block_json(&block, "");
                vec![event("content_block_start", json!({"index": index, "content_block": block}))]
            }
            Step::More(index, piece) => {
                delta(piece).map(|delta| block_delta(index, &delta)).into_iter().collect()
            }
            Step::Close(index, block) => {
                let mut events = Vec::new();
                if matches!(block, Block::Thinking(_)) {
                    events
                        .push(block_delta(index, &json!({"type": "signature_delta", "signature": self.id})));
                }
                events.push(event("content_block_stop", json!({"index": index})));
                events
            }
        }
    }
}

impl Encoder for MessagesEncoder {
    fn start(&mut self, prompt_tokens: usize) -> Vec<Sse> {
        let usage = Usage { prompt: prompt_tokens, ..Usage::default() };
        let message = self.message(Vec::new(), &Stop::default(), usage);
        vec![event("message_start", json!({"message": message}))]
    }

    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Sse> {
        let steps = self.blocks.push(piece);
        self.events(steps)
    }

    fn end(&mut self, _choice: usize, finish: Finish) -> Vec<Sse> {
        self.finish = Some(finish);
        let steps = self.blocks.finish();
        self.events(steps)
    }

    fn finish(&mut self, usage: Usage) -> Vec<Sse> {
        let stop = Stop::of(self.finish.as_ref(), self.called);
        let delta = json!({"stop_reason": stop.reason, "stop_sequence": stop.text});
        vec![
            event("message_delta", json!({"delta": delta, "usage": usage_json(usage)})),
            event("message_stop", json!({})),
        ]
    }

    fn error(&mut self, error: &Error) -> Vec<Sse> {
        vec![Sse::named("error", &self.error_body(error))]
    }

    fn ping(&self) -> Option<Sse> {
        Some(event("ping", json!({})))
    }

    fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        let none = Reply::default();
        let reply = replies.first().unwrap_or(&none);
        let content = blocks_of(reply).iter().map(|block| block_json(block, &self.id)).collect();
        self.message(content, &Stop::of(reply.finish.as_ref(), !reply.calls.is_empty()), usage)
    }

    fn error_body(&self, error: &Error) -> Value {
        anthropic_error(error, &self.id)
    }
}

/// Why an answer ended, in Anthropic's words.
#[derive(Default)]
struct Stop {
    reason: Option<&'static str>,
    text: Option<String>,
}

impl Stop {
    fn of(finish: Option<&Finish>, called: bool) -> Self {
        let reason = finish.map(|finish| match finish {
            Finish::Stop if !called => "end_turn",
            Finish::Stop | Finish::ToolCalls => "tool_use",
            Finish::StopText(_) => "stop_sequence",
            Finish::Length => "max_tokens",
        });
        let text = match finish {
            Some(Finish::StopText(text)) => Some(text.clone()),
            _ => None,
        };
        Self { reason, text }
    }
}

/// An event whose data repeats its name as `type`.
fn event(name: &'static str, mut data: Value) -> Sse {
    data["type"] = Value::from(name);
    Sse::named(name, &data)
}

fn block_delta(index: usize, delta: &Value) -> Sse {
    event("content_block_delta", json!({"index": index, "delta": delta}))
}

fn delta(piece: Piece) -> Option<Value> {
    Some(match piece {
        Piece::Reasoning(text) => json!({"type": "thinking_delta", "thinking": text}),
        Piece::Text { text, .. } => json!({"type": "text_delta", "text": text}),
        Piece::ToolArguments { fragment, .. } => {
            json!({"type": "input_json_delta", "partial_json": fragment})
        }
        Piece::ToolStart { .. } => return None,
    })
}

/// The signature only has to be there: clients send thinking back unread, and nothing here checks it.
fn block_json(block: &Block, signature: &str) -> Value {
    match block {
        Block::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": signature}),
        Block::Text { text, .. } => json!({"type": "text", "text": text}),
        Block::Call(call) => {
            // Arguments that the limit of tokens cut off are no JSON; an object is what clients can read.
            let input: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
        }
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blocks::tests::{any_order, arguments, start, text};

    const USAGE: Usage = Usage { prompt: 10, cached: 4, completion: 7, reasoning: 2, reduced_kv: None };

    fn stream(pieces: &[Piece], finish: Finish) -> Vec<Value> {
        let mut encoder = MessagesEncoder::new("msg_1", "m");
        let mut events = encoder.start(10);
        events.extend(encoder.ping());
        for piece in pieces {
            events.extend(encoder.piece(0, piece.clone()));
        }
        events.extend(encoder.end(0, finish));
        events.extend(encoder.finish(USAGE));
        let read = |event: Sse| {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(data["type"], event.event.unwrap());
            data
        };
        events.into_iter().map(read).collect()
    }

    /// Puts a message together as Anthropic's clients do: blocks are appended on start, then found by index.
    fn accumulate(events: &[Value]) -> Value {
        let append = |target: &mut Value, more: &Value| {
            *target = json!(format!("{}{}", target.as_str().unwrap(), more.as_str().unwrap()));
        };
        let mut message = Value::Null;
        let mut inputs: Vec<String> = Vec::new();
        for event in events {
            let index = event["index"].as_u64().unwrap_or(0) as usize;
            match event["type"].as_str().unwrap() {
                "message_start" => {
                    assert!(message.is_null(), "a message starts once");
                    message = event["message"].clone();
                }
                "content_block_start" => {
                    let content = message["content"].as_array_mut().unwrap();
                    assert_eq!(content.len(), index);
                    content.push(event["content_block"].clone());
                    inputs.push(String::new());
                }
                "content_block_delta" => {
                    let (block, delta) = (&mut message["content"][index], &event["delta"]);
                    match (block["type"].as_str().unwrap(), delta["type"].as_str().unwrap()) {
                        ("text", "text_delta") => append(&mut block["text"], &delta["text"]),
                        ("thinking", "thinking_delta") => append(&mut block["thinking"], &delta["thinking"]),
                        ("thinking", "signature_delta") => block["signature"] = delta["signature"].clone(),
                        ("tool_use", "input_json_delta") => {
                            inputs[index].push_str(delta["partial_json"].as_str().unwrap());
                        }
                        other => panic!("clients drop {other:?}"),
                    }
                }
                "content_block_stop" if !inputs[index].is_empty() => {
                    message["content"][index]["input"] = serde_json::from_str(&inputs[index]).unwrap();
                }
                "message_delta" => {
                    for name in ["stop_reason", "stop_sequence"] {
                        message[name] = event["delta"][name].clone();
                    }
                    message["usage"] = event["usage"].clone();
                }
                _ => {}
            }
        }
        message
    }

    fn whole(pieces: &[Piece], finish: Finish) -> Value {
        let mut reply = Reply { finish: Some(finish), ..Reply::default() };
        pieces.iter().cloned().for_each(|piece| reply.push(piece));
        MessagesEncoder::new("msg_1", "m").whole(&[reply], USAGE)
    }

    #[test]
    fn a_stream_adds_up_to_the_whole_answer() {
        let think = Piece::Reasoning("hm".into());
        let call = [start(0), arguments(0, "{\"a\""), arguments(0, ":1}"), start(1), arguments(1, "{}")];
        let orders: [Vec<Piece>; 6] = [
            vec![],
            vec![text(""), text("hi")],
            vec![think.clone(), text("a"), text("b")],
            vec![text("I look."), call[0].clone(), call[1].clone(), call[2].clone()],
            [vec![think.clone()], call.to_vec()].concat(),
            [vec![think, text("I look.")], call.to_vec()].concat(),
        ];
        for pieces in orders {
            for finish in [Finish::Stop, Finish::StopText("END".into()), Finish::Length] {
                let streamed = accumulate(&stream(&pieces, finish.clone()));
                assert_eq!(streamed, whole(&pieces, finish), "{pieces:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_order_of_pieces_gives_the_content_of_the_whole(pieces in any_order()) {
            let streamed = accumulate(&stream(&pieces, Finish::ToolCalls));
            let whole = whole(&pieces, Finish::ToolCalls);
            let field = |message: &Value, name: &str| -> String {
                let blocks = message["content"].as_array().unwrap();
                blocks.iter().filter_map(|block| block[name].as_str()).collect()
            };
            let calls = |message: &Value| -> Vec<Value> {
                let blocks = message["content"].as_array().unwrap();
                blocks.iter().filter(|block| block["type"] == "tool_use").cloned().collect()
            };
            prop_assert_eq!(field(&streamed, "text"), field(&whole, "text"));
            prop_assert_eq!(field(&streamed, "thinking"), field(&whole, "thinking"));
            prop_assert_eq!(calls(&streamed), calls(&whole));
            prop_assert_eq!(&streamed["stop_reason"], "tool_use");
        }
    }

    #[test]
    fn the_events_of_a_thinking_answer_come_in_order() {
        let events = stream(&[Piece::Reasoning("hm".into()), text("hi")], Finish::Stop);
        let names: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "message_start",
                "ping",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
        );
        assert_eq!(events[4]["delta"], json!({"type": "signature_delta", "signature": "msg_1"}));
    }

    #[test]
    fn reused_tokens_are_counted_apart() {
        let usage = &whole(&[text("hi")], Finish::Stop)["usage"];
        assert_eq!((&usage["input_tokens"], &usage["cache_read_input_tokens"]), (&json!(6), &json!(4)));
        assert_eq!(usage["output_tokens"], 7);
    }

    #[test]
    fn a_call_that_was_cut_off_has_an_input_that_clients_can_read() {
        let message = whole(&[start(0), arguments(0, "{\"a\": [1,")], Finish::Length);
        assert_eq!(message["content"][0]["input"], json!({}));
        assert_eq!(message["stop_reason"], "max_tokens");
    }

    #[test]
    fn a_failure_in_the_stream_is_an_error_event() {
        let events = MessagesEncoder::new("msg_1", "m").error(&Error::DeadlineExceeded { seconds: 5 });
        assert_eq!(events[0].event, Some("error"));
        let data: Value = serde_json::from_str(&events[0].data).unwrap();
        assert_eq!((&data["type"], &data["error"]["type"]), (&json!("error"), &json!("timeout_error")));
    }
}
