//! Bodies that no client of good will sends.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_api::{parse_count_tokens, parse_messages, parse_responses};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Words that the parsers look for, as keys and as values.
const WORDS: [&str; 38] = [
    "messages",
    "input",
    "system",
    "role",
    "content",
    "type",
    "text",
    "user",
    "assistant",
    "developer",
    "message",
    "tool_use",
    "tool_result",
    "tool_use_id",
    "search_result",
    "thinking",
    "reasoning",
    "summary",
    "function_call",
    "function_call_output",
    "function",
    "call_id",
    "arguments",
    "output",
    "name",
    "id",
    "title",
    "source",
    "tools",
    "tool_choice",
    "input_schema",
    "parameters",
    "format",
    "output_config",
    "effort",
    "include",
    "max_tokens",
    "x-anthropic-billing-header: cch=0",
];

fn word() -> impl Strategy<Value = String> {
    prop::sample::select(&WORDS[..]).prop_map(str::to_owned)
}

fn object(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec((word(), value), 0..6);
    fields.prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>()))
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |value| {
        prop_oneof![prop::collection::vec(value.clone(), 0..4).prop_map(Value::Array), object(value)]
    })
}

/// A body whose fields are likely to be read.
fn body() -> impl Strategy<Value = Value> {
    let message = || prop::collection::vec(object(json_value()), 1..3);
    (object(json_value()), message(), message()).prop_map(|(mut body, messages, items)| {
        body["max_tokens"] = json!(1);
        body["messages"] = json!(messages);
        body["input"] = json!(items);
        body
    })
}

proptest! {
    #[test]
    fn any_body_is_taken_or_refused_with_400(body in body()) {
        let body = body.to_string();
        let errors = [
            parse_messages(body.as_bytes()).err(),
            parse_count_tokens(body.as_bytes()).err(),
            parse_responses(body.as_bytes()).err(),
        ];
        for error in errors.into_iter().flatten() {
            prop_assert_eq!(error.status(), 400);
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    let deep = "[".repeat(1 << 20);
    for body in [format!("{{\"messages\":{deep}"), format!("{{\"input\":{deep}")] {
        assert_eq!(parse_messages(body.as_bytes()).unwrap_err().status(), 400);
        assert_eq!(parse_responses(body.as_bytes()).unwrap_err().status(), 400);
    }
}
