//! Conversations with several system messages, and with some that aren't the first, under templates that differ in
//! what they take.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Act, Scripted, Server};
use lichen_generate::FinishReason;
use serde_json::{Value, json};

const STOP: Act = Act::Finish(FinishReason::Stop);

/// Takes any role anywhere.
const LENIENT: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
/// Takes a system message as the first only, then user and assistant in turns.
const STRICT: &str = "\
{%- if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% set turns = messages[1:] %}
{%- else %}{% set turns = messages %}{% endif %}
{%- for m in turns %}
{%- if m.role == 'system' %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}
{%- generation %}[{{ m.role }}]{{ m.content }}{% endgeneration %}
{%- endfor %}";
/// Takes no system message at all.
const WITHOUT: &str = "\
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}[{{ m.role }}]{{ m.content }}
{%- endfor %}";
/// Shows a system message if it is the first, and leaves out others.
const FORGETFUL: &str = "\
{%- for m in messages %}
{%- if m.role != 'system' or loop.first %}[{{ m.role }}]{{ m.content }}{% endif %}
{%- endfor %}";

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The prompt of a chat request, and that `/apply-template` says the same.
async fn prompt(template: &str, messages: Value) -> String {
    let engine = Scripted::new([STOP]);
    let server = Server::templated(&engine, template).await;
    let reply = server.post("/v1/chat/completions", json!({"messages": messages})).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let applied = server.post("/apply-template", json!({"messages": messages})).await.json();
    assert_eq!(applied["prompt"], engine.last_prompt());
    engine.last_prompt()
}

#[tokio::test]
async fn system_messages_at_the_beginning_are_one() {
    let messages = json!([
        message("system", "a"),
        message("developer", "b"),
        message("system", ""),
        message("user", "c")
    ]);
    for template in [LENIENT, STRICT, FORGETFUL] {
        assert_eq!(prompt(template, messages.clone()).await, "[system]a\n\nb[user]c");
    }
    assert_eq!(prompt(WITHOUT, messages).await, "[user]a\n\nb\n\nc");
}

#[tokio::test]
async fn a_system_message_amid_the_conversation_stays_where_the_template_takes_it() {
    let messages = json!([message("system", "a"), message("user", "b"), message("system", "c")]);
    assert_eq!(prompt(LENIENT, messages).await, "[system]a[user]b[system]c");
}

#[tokio::test]
async fn a_system_message_amid_the_conversation_joins_the_first_where_the_template_does_not_take_it() {
    let messages = json!([
        message("system", "a"),
        message("user", "b"),
        message("system", "c"),
        message("user", "d"),
        message("assistant", "e"),
        message("developer", "f"),
        message("user", "g"),
    ]);
    for template in [STRICT, FORGETFUL] {
        let joined = "[system]a\n\nc\n\nf[user]b\n\nd[assistant]e[user]g";
        assert_eq!(prompt(template, messages.clone()).await, joined);
    }
    assert_eq!(prompt(WITHOUT, messages).await, "[user]a\n\nc\n\nf\n\nb\n\nd[assistant]e[user]g");
}

#[tokio::test]
async fn a_conversation_of_system_messages_alone_is_taken() {
    let messages = json!([message("system", "a"), message("system", "b")]);
    assert_eq!(prompt(STRICT, messages.clone()).await, "[system]a\n\nb");
    assert_eq!(prompt(WITHOUT, messages).await, "[user]a\n\nb");
}

#[tokio::test]
async fn user_messages_that_follow_each_other_are_left_alone() {
    let messages = json!([message("user", "a"), message("user", "b"), message("system", "c")]);
    assert_eq!(prompt(FORGETFUL, messages).await, "[system]c[user]a[user]b");
}

#[tokio::test]
async fn a_conversation_that_no_form_saves_is_refused_with_the_first_complaint() {
    let server = Server::templated(&Scripted::new([STOP]), STRICT).await;
    let messages = json!([message("user", "a"), message("user", "b"), message("system", "c")]);
    let reply = server.post("/v1/chat/completions", json!({"messages": messages})).await;
    let error = reply.error();
    assert_eq!((reply.status, &error["param"]), (400, &json!("messages")));
    assert!(error["message"].as_str().unwrap().contains("Roles must alternate."), "{error}");
}

#[tokio::test]
async fn a_system_turn_of_anthropics_messages_and_a_developer_item_of_responses_are_taken() {
    let engine = Scripted::new([STOP]);
    let server = Server::templated(&engine, STRICT).await;
    let turns = json!([message("user", "b"), message("system", "c")]);
    let body = json!({"max_tokens": 9, "system": "a", "messages": turns});
    assert_eq!(server.post("/v1/messages", body.clone()).await.status, 200);
    assert_eq!(engine.last_prompt(), "[system]a\n\nc[user]b");
    let counted = server.post("/v1/messages/count_tokens", body).await.json();
    assert_eq!(counted["input_tokens"], engine.last().prompt.len());
    let body = json!({"instructions": "a", "input": [message("developer", "b"), message("user", "c")]});
    assert_eq!(server.post("/v1/responses", body).await.status, 200);
    assert_eq!(engine.last_prompt(), "[system]a\n\nb[user]c");
}
