//! Which calls and which texts an answer may consist of, over HTTP: the constraint that reaches the engine.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::Arc;

use common::{Act, Scripted, Server, follows};
use lichen_generate::FinishReason;
use serde_json::{Value, json};

const STOP: Act = Act::Finish(FinishReason::Stop);
/// Shows tools and has no marks for calls.
const UNMARKED: &str = "{{ tools }}{% for message in messages %}{{ message.content }}{% endfor %}";

fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

fn parameters() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
        "additionalProperties": false})
}

/// Posts a request that succeeds and tells which texts may answer it.
async fn asked(path: &str, body: Value) -> (Arc<Scripted>, impl Fn(&str) -> bool) {
    let engine = Scripted::new([STOP]);
    let server = Server::start(&engine).await;
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let constraint = engine.last().constraint;
    (engine, move |text: &str| constraint.clone().is_none_or(|constraint| follows(constraint, text)))
}

fn chat(choice: Value) -> Value {
    let tool =
        |name: &str| json!({"type": "function", "function": {"name": name, "parameters": parameters()}});
    json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("add"), tool("multiply")],
        "tool_choice": choice})
}

fn responses(choice: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "name": name, "parameters": parameters()});
    json!({"input": "hi", "tools": [tool("add"), tool("multiply")], "tool_choice": choice})
}

fn anthropic(choice: Value) -> Value {
    let tool = |name: &str| json!({"name": name, "input_schema": parameters()});
    json!({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool("add"), tool("multiply")], "tool_choice": choice})
}

/// The choice among `add` alone in both of OpenAI's dialects, with path and body.
fn only_add(mode: &str) -> [(&'static str, Value); 2] {
    let nested = json!([{"type": "function", "function": {"name": "add"}}]);
    let flat = json!([{"type": "function", "name": "add"}]);
    let nested = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": nested}});
    let flat = json!({"type": "allowed_tools", "mode": mode, "tools": flat});
    [("/v1/chat/completions", chat(nested)), ("/v1/responses", responses(flat))]
}

#[tokio::test]
async fn only_allowed_tools_are_called() {
    for (path, body) in only_add("auto") {
        let (_, allows) = asked(path, body).await;
        assert!(allows("No need."));
        assert!(allows(&call("add", "{\"a\": 1}")));
        assert!(!allows(&call("multiply", "{\"a\": 1}")), "{path}");
    }
    for (path, body) in only_add("required") {
        let (_, allows) = asked(path, body).await;
        assert!(!allows("No need."));
        assert!(allows(&call("add", "{\"a\": 1}")));
        assert!(!allows(&call("multiply", "{\"a\": 1}")), "{path}");
    }
}

#[tokio::test]
async fn tools_that_are_not_allowed_now_stay_in_the_prompt() {
    let engine = Scripted::new([STOP]);
    let server = Server::templated(&engine, "{{ tools }}<tool_call>").await;
    let [(path, limited), _] = only_add("auto");
    assert_eq!(server.post(path, limited).await.status, 200);
    let prompt = engine.last_prompt();
    assert_eq!(server.post(path, chat(json!("auto"))).await.status, 200);
    assert!(prompt.contains("multiply"));
    assert_eq!(prompt, engine.last_prompt());
}

#[tokio::test]
async fn a_call_of_a_tool_that_is_not_allowed_is_told_as_text() {
    let said: &'static str = Box::leak(call("multiply", "{\"a\": 1}").into_boxed_str());
    let server = Server::start(&Scripted::new([Act::Say(said), STOP])).await;
    let [(path, body), _] = only_add("auto");
    let message = server.post(path, body).await.json()["choices"][0]["message"].clone();
    assert_eq!((&message["content"], message.get("tool_calls")), (&json!(said), None));
}

#[tokio::test]
async fn anthropics_choices_are_followed() {
    let path = "/v1/messages";
    let add = call("add", "{\"a\": 1}");
    let (_, auto) = asked(path, anthropic(json!({"type": "auto"}))).await;
    assert!(auto("No need.") && auto(&add) && !auto(&call("add", "{}")));
    let (_, any) = asked(path, anthropic(json!({"type": "any"}))).await;
    assert!(!any("No need.") && any(&add) && any(&call("multiply", "{\"a\": 1}")));
    let (_, named) = asked(path, anthropic(json!({"type": "tool", "name": "add"}))).await;
    assert!(!named("No need.") && named(&add) && !named(&call("multiply", "{\"a\": 1}")));
    let (engine, none) = asked(path, anthropic(json!({"type": "none"}))).await;
    assert!(none("No need.") && engine.last().constraint.is_none());
}

#[tokio::test]
async fn one_answer_calls_one_tool_if_it_may_not_call_several() {
    let two = format!("{}\n{}", call("add", "{\"a\": 1}"), call("multiply", "{\"a\": 2}"));
    for kind in ["auto", "any"] {
        let (_, several) = asked("/v1/messages", anthropic(json!({"type": kind}))).await;
        assert!(several(&two));
        let choice = json!({"type": kind, "disable_parallel_tool_use": true});
        let (_, single) = asked("/v1/messages", anthropic(choice)).await;
        assert!(!single(&two) && single(&call("add", "{\"a\": 1}")), "{kind}");
    }
    let mut body = chat(json!("auto"));
    body["parallel_tool_calls"] = json!(false);
    assert!(!asked("/v1/chat/completions", body).await.1(&two));
}

/// A request for a format in each dialect, with tools and the given choice.
fn formatted(choice: &str) -> [(&'static str, Value); 3] {
    let mut in_chat = chat(json!(choice));
    in_chat["response_format"] =
        json!({"type": "json_schema", "json_schema": {"name": "sum", "schema": schema()}});
    let mut in_responses = responses(json!(choice));
    in_responses["text"] = json!({"format": {"type": "json_schema", "name": "sum", "schema": schema()}});
    let choice = if choice == "required" { "any" } else { choice };
    let mut in_messages = anthropic(json!({"type": choice}));
    in_messages["output_config"] = json!({"format": {"type": "json_schema", "schema": schema()}});
    [("/v1/chat/completions", in_chat), ("/v1/responses", in_responses), ("/v1/messages", in_messages)]
}

#[tokio::test]
async fn with_a_format_and_tools_the_answer_is_either_text_of_the_format_or_calls() {
    for (path, body) in formatted("auto") {
        let (_, allows) = asked(path, body).await;
        assert!(allows("{\"sum\": 3}"), "{path}");
        assert!(allows(&call("add", "{\"a\": 1}")), "{path}");
        for neither in ["No need.", "{\"sum\": \"3\"}", "{}", &call("add", "{\"a\": \"1\"}"), ""] {
            assert!(!allows(neither), "{path}: {neither}");
        }
    }
}

#[tokio::test]
async fn a_forced_call_leaves_no_text_to_format_and_no_tools_leave_text_alone() {
    for (path, body) in formatted("required") {
        let (_, allows) = asked(path, body).await;
        assert!(allows(&call("add", "{\"a\": 1}")) && !allows("{\"sum\": 3}"), "{path}");
    }
    for (path, body) in formatted("none") {
        let (_, allows) = asked(path, body).await;
        assert!(!allows(&call("add", "{\"a\": 1}")) && allows("{\"sum\": 3}"), "{path}");
    }
}

#[tokio::test]
async fn a_call_quoted_in_a_text_of_the_format_is_no_call() {
    let said = r#"["<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>"]"#;
    let server = Server::start(&Scripted::new([Act::Say(said), STOP])).await;
    let mut body = chat(json!("auto"));
    body["response_format"] = json!({"type": "json_object"});
    let choice = server.post("/v1/chat/completions", body).await.json()["choices"][0].clone();
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(said), &json!("stop")));
}

#[tokio::test]
async fn a_format_with_tools_is_refused_where_calls_have_no_mark() {
    let server = Server::templated(&Scripted::new([STOP]), UNMARKED).await;
    for (path, body) in formatted("auto") {
        let reply = server.post(path, body).await;
        let message = reply.error()["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.status, 400, "{message}");
        assert!(message.contains("response_format") && message.contains("tools"), "{message}");
    }
    for choice in ["required", "none"] {
        for (path, body) in formatted(choice) {
            assert_eq!(server.post(path, body).await.status, 200, "{path} {choice}");
        }
    }
}
