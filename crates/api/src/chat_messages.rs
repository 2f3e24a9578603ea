//! The messages of a chat request, brought into the form that chat templates expect.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::{Error, without_nonce};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Checks a conversation and brings it into the form that chat templates expect: text parts joined, `developer`
/// (which most templates refuse) as `system`, arguments of tool calls as objects. Order and wording stay.
///
/// # Errors
/// [`Error::InvalidRequest`] naming the message.
pub fn check_messages(messages: Option<Value>) -> Result<Value, Error> {
    let list = match messages {
        Some(Value::Array(list)) if !list.is_empty() => list,
        _ => return Err(Error::invalid("messages", "must be an array of at least one message")),
    };
    let mut names: Vec<(String, String)> = Vec::new();
    let mut checked = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        checked.push(check_message(index, message, &mut names)?);
    }
    Ok(Value::Array(checked))
}

/// Whether the last message is the assistant's own beginning.
pub(crate) fn continues(messages: &Value) -> bool {
    let last = messages.as_array().and_then(|list| list.last());
    last.is_some_and(|last| {
        last["role"] == "assistant" && last.get("tool_calls").is_none() && last["content"] != ""
    })
}

/// `names` are the ids and names of the calls so far: templates want the name with a result, clients send the id only.
fn check_message(index: usize, message: Value, names: &mut Vec<(String, String)>) -> Result<Value, Error> {
    let Value::Object(mut message) = message else {
        return Err(Error::invalid(format!("messages[{index}]"), "must be an object with role and content"));
    };
    let role = match message.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role) if ROLES.contains(&role) => role,
        _ => {
            let reason = format!("must be one of {}", ROLES.join(", "));
            return Err(Error::invalid(format!("messages[{index}].role"), reason));
        }
    }
    .to_owned();
    let mut content = check_content(index, &role, &mut message)?;
    if index == 0
        && role == "system"
        && let Cow::Owned(stable) = without_nonce(&content)
    {
        content = stable;
    }
    match role.as_str() {
        "assistant" => check_calls(index, &mut message, names)?,
        "tool" => name_result(&mut message, names),
        _ => {}
    }
    message.insert("role".into(), Value::String(role));
    message.insert("content".into(), Value::String(content));
    Ok(Value::Object(message))
}

fn check_content(index: usize, role: &str, message: &mut Map<String, Value>) -> Result<String, Error> {
    match message.remove("content") {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Array(parts)) => join_parts(index, &parts),
        // An assistant that only called tools has no content.
        None | Some(Value::Null) if role == "assistant" => Ok(String::new()),
        _ => Err(Error::invalid(
            format!("messages[{index}].content"),
            "must be a string or an array of text parts",
        )),
    }
}

fn join_parts(index: usize, parts: &[Value]) -> Result<String, Error> {
    let mut joined = String::new();
    for (at, part) in parts.iter().enumerate() {
        let text = match part["type"].as_str() {
            Some("text") => part["text"].as_str(),
            Some("refusal") => part["refusal"].as_str(),
            _ => None,
        };
        let Some(text) = text else {
            let param = format!("messages[{index}].content[{at}]");
            return Err(Error::invalid(
                param,
                "must be a text part; this model takes no images, audio or files",
            ));
        };
        joined.push_str(text);
    }
    Ok(joined)
}

fn check_calls(
    index: usize,
    message: &mut Map<String, Value>,
    names: &mut Vec<(String, String)>,
) -> Result<(), Error> {
    let param = || format!("messages[{index}].tool_calls");
    let calls = match message.remove("tool_calls") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(calls)) => calls,
        Some(_) => return Err(Error::invalid(param(), "must be an array")),
    };
    if calls.is_empty() {
        return Ok(());
    }
    let mut checked = Vec::with_capacity(calls.len());
    for (at, mut call) in calls.into_iter().enumerate() {
        let wrong = |what: &str, reason: &str| Error::invalid(format!("{}[{at}].{what}", param()), reason);
        let Some(name) = call["function"]["name"].as_str().map(str::to_owned) else {
            return Err(wrong("function.name", "must be a string"));
        };
        let arguments = match call["function"]["arguments"].take() {
            Value::Null => json!({}),
            Value::Object(arguments) => Value::Object(arguments),
            Value::String(text) if text.trim().is_empty() => json!({}),
            Value::String(text) => match serde_json::from_str(&text) {
                Ok(Value::Object(arguments)) => Value::Object(arguments),
                // A model's broken JSON comes back from its client; the template shows it as it was.
                _ => Value::String(text),
            },
            _ => return Err(wrong("function.arguments", "must be a JSON object in a string")),
        };
        let id = call["id"].as_str().unwrap_or_default().to_owned();
        names.push((id.clone(), name.clone()));
        checked.push(json!({"id": id, "type": "function",
            "function": {"name": name, "arguments": arguments}}));
    }
    message.insert("tool_calls".into(), Value::Array(checked));
    Ok(())
}

fn name_result(message: &mut Map<String, Value>, names: &[(String, String)]) {
    let id = message.get("tool_call_id").and_then(Value::as_str);
    let known = id.and_then(|id| names.iter().rev().find(|(call, _)| call == id));
    if let Some((_, name)) = known
        && !message.get("name").is_some_and(Value::is_string)
    {
        message.insert("name".into(), Value::String(name.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_brought_into_template_form() {
        let messages = check_messages(Some(json!([
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": null, "tool_calls": []},
        ])))
        .unwrap();
        assert_eq!(messages[0], json!({"role": "system", "content": "be brief"}));
        assert_eq!(messages[1], json!({"role": "assistant", "content": ""}));
    }

    #[test]
    fn tool_calls_have_objects_and_results_have_names() {
        let call = |arguments: Value| {
            json!({"id": "c1", "type": "function",
            "function": {"name": "add", "arguments": arguments}})
        };
        let messages = check_messages(Some(json!([
            {"role": "assistant", "content": null, "tool_calls": [call(json!("{\"a\": 1}"))]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]},
            {"role": "assistant", "tool_calls": [call(json!("{broken"))]},
        ])))
        .unwrap();
        assert_eq!(messages[0]["tool_calls"][0], call(json!({"a": 1})));
        assert_eq!((&messages[1]["name"], &messages[1]["content"]), (&json!("add"), &json!("2")));
        assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{broken");
        assert!(!continues(&messages));
    }

    #[test]
    fn a_bad_message_is_named() {
        let at = |message| {
            let error = check_messages(Some(json!([message]))).unwrap_err();
            error.body()["error"]["param"].as_str().unwrap().to_owned()
        };
        assert_eq!(at(json!("hi")), "messages[0]");
        assert_eq!(at(json!({"role": "king", "content": ""})), "messages[0].role");
        assert_eq!(at(json!({"role": "user"})), "messages[0].content");
        assert_eq!(at(json!({"role": "assistant", "tool_calls": 3})), "messages[0].tool_calls");
        assert_eq!(
            at(json!({"role": "assistant", "tool_calls": [{}]})),
            "messages[0].tool_calls[0].function.name"
        );
        let image =
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]});
        assert_eq!(at(image), "messages[0].content[0]");
    }
}
