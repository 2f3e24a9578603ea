//! OpenAI `POST /v1/responses`: the answer, whole and as a stream of numbered events.

use serde_json::{Map, Value, json};

use crate::blocks::{Block, Blocks, Step, blocks_of};
use crate::responses_output::{Status, error_code, item, item_id, logprobs_json, part, usage_json};
use crate::{Encoder, Error, Finish, Piece, Reply, Sse, Usage};

/// What stays the same over all events of one response.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseEnvelope {
    /// Unique name (`resp_…`).
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The fields of the request that the response repeats.
    pub echo: Map<String, Value>,
}

impl ResponseEnvelope {
    fn response(&self, status: Status, output: Vec<Value>) -> Value {
        let mut response = self.echo.clone();
        let reason = (status == Status::Incomplete).then(|| json!({"reason": "max_output_tokens"}));
        let own = [
            ("id", json!(self.id)),
            ("object", json!("response")),
            ("created_at", json!(self.created)),
            ("model", json!(self.model)),
            ("status", json!(status.name())),
            ("background", json!(false)),
            ("error", Value::Null),
            ("incomplete_details", json!(reason)),
            ("output", Value::Array(output)),
            ("usage", Value::Null),
        ];
        for (name, value) in own {
            response.insert(name.to_owned(), value);
        }
        Value::Object(response)
    }
}

/// Encodes the one answer to a responses request.
///
/// A stream keeps the order in which the model wrote; the whole answer is thinking, text, function calls.
#[derive(Debug)]
pub struct ResponsesEncoder {
    envelope: ResponseEnvelope,
    blocks: Blocks,
    /// The item that is open.
    item_id: String,
    output: Vec<Value>,
    status: Status,
    sequence_number: u64,
}

impl ResponsesEncoder {
    /// For one response.
    pub fn new(envelope: ResponseEnvelope) -> Self {
        Self {
            envelope,
            blocks: Blocks::default(),
            item_id: String::new(),
            output: Vec::new(),
            status: Status::InProgress,
            sequence_number: 0,
        }
    }

    /// An event whose data repeats its name as `type`.
    fn event(&mut self, name: &'static str, mut data: Value) -> Sse {
        data["type"] = Value::from(name);
        data["sequence_number"] = Value::from(self.sequence_number);
        self.sequence_number += 1;
        Sse::named(name, &data)
    }

    /// An event about the open item.
    fn item_event(&mut self, name: &'static str, index: usize, mut data: Value) -> Sse {
        data["item_id"] = Value::from(self.item_id.as_str());
        data["output_index"] = Value::from(index);
        self.event(name, data)
    }

    /// An event about the only content part of the open item.
    fn part_event(&mut self, name: &'static str, index: usize, mut data: Value) -> Sse {
        data["content_index"] = Value::from(0);
        self.item_event(name, index, data)
    }

    fn response_event(&mut self, name: &'static str, response: Value) -> Sse {
        self.event(name, json!({"response": response}))
    }

    fn open(&mut self, index: usize, block: &Block) -> Vec<Sse> {
        self.item_id = item_id(&self.envelope.id, index, block);
        let item = item(&self.item_id, block, Status::InProgress);
        let mut events =
            vec![self.event("response.output_item.added", json!({"output_index": index, "item": item}))];
        if let Some(part) = part(block) {
            events.push(self.part_event("response.content_part.added", index, json!({"part": part})));
        }
        events
    }

    fn more(&mut self, index: usize, piece: Piece) -> Option<Sse> {
        Some(match piece {
            Piece::Reasoning(text) => {
                self.part_event("response.reasoning_text.delta", index, json!({"delta": text}))
            }
            Piece::Text { text, logprobs } => {
                let data = json!({"delta": text, "logprobs": logprobs_json(&logprobs)});
                self.part_event("response.output_text.delta", index, data)
            }
            Piece::ToolArguments { fragment, .. } => {
                self.item_event("response.function_call_arguments.delta", index, json!({"delta": fragment}))
            }
            Piece::ToolStart { .. } => return None,
        })
    }

    fn close(&mut self, index: usize, block: &Block, status: Status) -> Vec<Sse> {
        let mut events = vec![match block {
            Block::Thinking(text) => {
                self.part_event("response.reasoning_text.done", index, json!({"text": text}))
            }
            Block::Text { text, logprobs } => {
                let data = json!({"text": text, "logprobs": logprobs_json(logprobs)});
                self.part_event("response.output_text.done", index, data)
            }
            Block::Call(call) => {
                let data = json!({"arguments": call.arguments, "name": call.name});
                self.item_event("response.function_call_arguments.done", index, data)
            }
        }];
        if let Some(part) = part(block) {
            events.push(self.part_event("response.content_part.done", index, json!({"part": part})));
        }
        let item = item(&self.item_id, block, status);
        self.output.push(item.clone());
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        events
    }

    /// The events of steps; `last` is the status of the item that the last step closes, if it closes one.
    fn events(&mut self, steps: Vec<Step>, last: Status) -> Vec<Sse> {
        let count = steps.len();
        let mut events = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Open(index, block) => events.extend(self.open(index, &block)),
                Step::More(index, piece) => events.extend(self.more(index, piece)),
                Step::Close(index, block) => {
                    let status = if at + 1 == count { last } else { Status::Completed };
                    events.extend(self.close(index, &block, status));
                }
            }
        }
        events
    }
}

impl Encoder for ResponsesEncoder {
    fn start(&mut self, _prompt_tokens: usize) -> Vec<Sse> {
        let response = self.envelope.response(Status::InProgress, Vec::new());
        let created = self.response_event("response.created", response.clone());
        vec![created, self.response_event("response.in_progress", response)]
    }

    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Sse> {
        let steps = self.blocks.push(piece);
        self.events(steps, Status::Completed)
    }

    fn end(&mut self, _choice: usize, finish: Finish) -> Vec<Sse> {
        self.status = status_of(Some(&finish));
        let steps = self.blocks.finish();
        self.events(steps, self.status)
    }

    fn finish(&mut self, usage: Usage) -> Vec<Sse> {
        let name = match self.status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        let output = std::mem::take(&mut self.output);
        let mut response = self.envelope.response(self.status, output);
        response["usage"] = usage_json(usage);
        vec![self.response_event(name, response)]
    }

    fn error(&mut self, error: &Error) -> Vec<Sse> {
        let (code, message) = (error_code(error), error.to_string());
        let param = error.body()["error"]["param"].take();
        let data = json!({"code": code, "message": message, "param": param});
        let output = std::mem::take(&mut self.output);
        let mut response = self.envelope.response(Status::Failed, output);
        response["error"] = json!({"code": code, "message": message});
        vec![self.event("error", data), self.response_event("response.failed", response)]
    }

    fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        let none = Reply::default();
        let reply = replies.first().unwrap_or(&none);
        let status = status_of(reply.finish.as_ref());
        let blocks = blocks_of(reply);
        let items = blocks.iter().enumerate().map(|(index, block)| {
            let status = if index + 1 == blocks.len() { status } else { Status::Completed };
            item(&item_id(&self.envelope.id, index, block), block, status)
        });
        let mut response = self.envelope.response(status, items.collect());
        response["usage"] = usage_json(usage);
        response
    }
}

fn status_of(finish: Option<&Finish>) -> Status {
    match finish {
        None | Some(Finish::Length) => Status::Incomplete,
        Some(Finish::Stop | Finish::StopText(_) | Finish::ToolCalls) => Status::Completed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TokenLogprob;
    use crate::blocks::tests::{any_order, arguments, start, text};

    const USAGE: Usage = Usage { prompt: 10, cached: 4, completion: 7, reasoning: 2, reduced_kv: None };

    fn encoder() -> ResponsesEncoder {
        let echo =
            Map::from_iter([("temperature".into(), json!(0.5)), ("tool_choice".into(), json!("auto"))]);
        ResponsesEncoder::new(ResponseEnvelope { id: "resp_1".into(), created: 5, model: "m".into(), echo })
    }

    fn read(events: Vec<Sse>) -> Vec<Value> {
        let read = |event: Sse| {
            let data: Value = serde_json::from_str(&event.data).unwrap();
            assert_eq!(data["type"], event.event.unwrap());
            data
        };
        events.into_iter().map(read).collect()
    }

    fn stream(pieces: &[Piece], finish: Finish) -> Vec<Value> {
        let mut encoder = encoder();
        let mut events = encoder.start(10);
        for piece in pieces {
            events.extend(encoder.piece(0, piece.clone()));
        }
        events.extend(encoder.end(0, finish));
        events.extend(encoder.finish(USAGE));
        read(events)
    }

    fn whole(pieces: &[Piece], finish: Finish) -> Value {
        let mut reply = Reply { finish: Some(finish), ..Reply::default() };
        pieces.iter().cloned().for_each(|piece| reply.push(piece));
        encoder().whole(&[reply], USAGE)
    }

    /// Puts the output together from the deltas alone, as clients that show an answer do.
    fn accumulate(events: &[Value]) -> Vec<Value> {
        let mut output: Vec<Value> = Vec::new();
        for event in events {
            let index = event["output_index"].as_u64().unwrap_or(0) as usize;
            let mut append = |field: fn(&mut Value) -> &mut Value| {
                assert_eq!(output[index]["id"], event["item_id"]);
                let field = field(&mut output[index]);
                *field = json!(format!("{}{}", field.as_str().unwrap(), event["delta"].as_str().unwrap()));
            };
            match event["type"].as_str().unwrap() {
                "response.output_item.added" => {
                    assert_eq!(output.len(), index);
                    output.push(event["item"].clone());
                }
                "response.content_part.added" => {
                    output[index]["content"].as_array_mut().unwrap().push(event["part"].clone());
                }
                "response.output_text.delta" | "response.reasoning_text.delta" => {
                    append(|item| &mut item["content"][0]["text"]);
                }
                "response.function_call_arguments.delta" => append(|item| &mut item["arguments"]),
                "response.output_item.done" => {
                    output[index]["status"] = event["item"]["status"].clone();
                    assert_eq!(output[index], event["item"]);
                }
                _ => {}
            }
        }
        output
    }

    #[test]
    fn a_stream_ends_with_the_whole_response() {
        let think = Piece::Reasoning("hm".into());
        let call = [start(0), arguments(0, "{\"a\""), arguments(0, ":1}"), start(1), arguments(1, "{}")];
        let orders: [Vec<Piece>; 5] = [
            vec![],
            vec![text(""), text("hi")],
            vec![think.clone(), text("a"), text("b")],
            [vec![think.clone()], call.to_vec()].concat(),
            [vec![think, text("I look.")], call.to_vec()].concat(),
        ];
        for pieces in orders {
            for finish in [Finish::Stop, Finish::ToolCalls, Finish::Length] {
                let events = stream(&pieces, finish.clone());
                assert_eq!(events[events.len() - 1]["response"], whole(&pieces, finish), "{pieces:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn deltas_add_up_to_the_items_in_any_order(pieces in any_order()) {
            let events = stream(&pieces, Finish::ToolCalls);
            for (number, event) in events.iter().enumerate() {
                prop_assert_eq!(&event["sequence_number"], number);
            }
            let output = accumulate(&events);
            prop_assert_eq!(&json!(output), &events[events.len() - 1]["response"]["output"]);
            let whole = whole(&pieces, Finish::ToolCalls);
            let text = |output: &[Value], kind: &str| -> String {
                let items = output.iter().filter(|item| item["type"] == kind);
                items.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
            };
            let calls = |output: &[Value]| -> Vec<(Value, Value)> {
                let items = output.iter().filter(|item| item["type"] == "function_call");
                items.map(|item| (item["call_id"].clone(), item["arguments"].clone())).collect()
            };
            let items = whole["output"].as_array().unwrap();
            prop_assert_eq!(text(&output, "message"), text(items, "message"));
            prop_assert_eq!(text(&output, "reasoning"), text(items, "reasoning"));
            prop_assert_eq!(calls(&output), calls(items));
        }
    }

    #[test]
    fn the_events_of_an_answer_with_a_call_come_in_order() {
        let events = stream(&[text("hi"), start(0), arguments(0, "{}")], Finish::ToolCalls);
        let names: Vec<_> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap().trim_start_matches("response."))
            .collect();
        assert_eq!(
            names,
            [
                "created",
                "in_progress",
                "output_item.added",
                "content_part.added",
                "output_text.delta",
                "output_text.done",
                "content_part.done",
                "output_item.done",
                "output_item.added",
                "function_call_arguments.delta",
                "function_call_arguments.done",
                "output_item.done",
                "completed",
            ]
        );
    }

    #[test]
    fn a_response_that_was_cut_off_says_so() {
        let response = whole(&[Piece::Reasoning("hm".into()), text("and")], Finish::Length);
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        assert_eq!(response["output"][0]["status"], "completed");
        assert_eq!(response["output"][1]["status"], "incomplete");
        assert_eq!(stream(&[text("and")], Finish::Length).pop().unwrap()["type"], "response.incomplete");
    }

    #[test]
    fn a_response_repeats_the_request_and_counts_its_tokens() {
        let response = whole(&[text("hi")], Finish::Stop);
        assert_eq!((&response["temperature"], &response["tool_choice"]), (&json!(0.5), &json!("auto")));
        assert_eq!(response["usage"]["total_tokens"], 17);
        assert_eq!(response["usage"]["input_tokens_details"]["cached_tokens"], 4);
        assert_eq!(response["output"][0]["id"], "msg_1_0");
    }

    #[test]
    fn log_probabilities_are_in_deltas_and_in_the_item() {
        let logprobs = vec![TokenLogprob { token: "a".into(), bytes: vec![97], logprob: -0.5, top: vec![] }];
        let events = stream(&[Piece::Text { text: "a".into(), logprobs }], Finish::Stop);
        let delta = events.iter().find(|event| event["type"] == "response.output_text.delta").unwrap();
        assert_eq!(delta["logprobs"][0]["logprob"], -0.5);
        assert_eq!(
            events[events.len() - 1]["response"]["output"][0]["content"][0]["logprobs"],
            delta["logprobs"]
        );
    }

    #[test]
    fn a_failure_in_the_stream_fails_the_response() {
        let mut encoder = encoder();
        encoder.start(1);
        let events = read(encoder.error(&Error::QueueFull { queued: 1, limit: 1, estimate: 1 }));
        assert_eq!((&events[0]["type"], &events[0]["sequence_number"]), (&json!("error"), &json!(2)));
        assert_eq!(events[1]["response"]["status"], "failed");
        assert_eq!(events[1]["response"]["error"]["code"], "rate_limit_exceeded");
    }
}
