//! `POST /v1/chat/completions`: the request.

use serde_json::{Map, Value};

use crate::fields::is_empty;
use crate::{Error, Fields, Sampling, StreamOptions};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// A checked chat request.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// The conversation, ready for a chat template: an array of objects whose `content` is a string.
    pub messages: Value,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How the answer is delivered.
    pub delivery: StreamOptions,
}

impl ChatRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::parse(body)?;
        refuse_unsupported(&fields)?;
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            sampling: Sampling::read(&fields)?,
            delivery: StreamOptions::read(&fields)?,
            messages: check_messages(fields.take("messages"))?,
        })
    }
}

fn refuse_unsupported(fields: &Fields) -> Result<(), Error> {
    for name in
        ["tools", "functions", "logprobs", "top_logprobs", "audio", "prediction", "web_search_options"]
    {
        fields.refuse_unless(name, is_empty)?;
    }
    let passive = |value: &Value| matches!(value.as_str(), Some("none" | "auto"));
    fields.refuse_unless("tool_choice", passive)?;
    fields.refuse_unless("function_call", passive)?;
    fields.refuse_unless("response_format", |format| format["type"] == "text")?;
    fields.refuse_unless("modalities", |kinds| *kinds == serde_json::json!(["text"]))
}

/// Checks a conversation and brings it into the form that chat templates expect: text parts joined, `developer`
/// (which most templates refuse) as `system`. Order and wording stay.
///
/// # Errors
/// [`Error::InvalidRequest`] naming the message.
pub fn check_messages(messages: Option<Value>) -> Result<Value, Error> {
    match messages {
        Some(Value::Array(list)) if !list.is_empty() => {
            let checked: Result<Vec<_>, _> =
                list.into_iter().enumerate().map(|(index, message)| check_message(index, message)).collect();
            Ok(Value::Array(checked?))
        }
        _ => Err(Error::invalid("messages", "must be an array of at least one message")),
    }
}

fn check_message(index: usize, message: Value) -> Result<Value, Error> {
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
    let content = check_content(index, &role, &mut message)?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(extra: Value) -> Result<ChatRequest, Error> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        ChatRequest::parse(body.to_string().as_bytes())
    }

    #[test]
    fn what_clients_send_by_habit_is_accepted() {
        let request = parse(json!({
            "tools": [], "tool_choice": "auto", "n": 1, "logprobs": false, "response_format": {"type": "text"},
            "user": "u", "store": true, "metadata": {}, "prompt_cache_key": "k", "reasoning_effort": "low",
            "parallel_tool_calls": true, "max_tokens": 5, "max_completion_tokens": 7, "stop": "x", "seed": -1,
            "top_k": -1, "stream": true, "stream_options": {"include_usage": true}, "temperature": null,
        }))
        .unwrap();
        assert_eq!(request.sampling.max_tokens, Some(7));
        assert_eq!(request.sampling.stop, ["x"]);
        assert_eq!(request.sampling.seed, Some(u64::MAX));
        assert_eq!(request.sampling.top_k, Some(0));
        assert_eq!(request.sampling.temperature, None);
        assert!(request.delivery.stream && request.delivery.include_usage);
    }

    #[test]
    fn what_would_be_lost_is_refused_by_name() {
        let cases = [
            ("tools", json!([{"type": "function"}])),
            ("tool_choice", json!("required")),
            ("response_format", json!({"type": "json_object"})),
            ("n", json!(2)),
            ("logprobs", json!(true)),
            ("logit_bias", json!({"1": 200})),
            ("logit_bias", json!({"one": 2})),
            ("temperature", json!(2.5)),
            ("top_p", json!("high")),
            ("max_tokens", json!(0)),
            ("stop", json!([""])),
            ("stream_options", json!(true)),
            ("messages", json!([])),
        ];
        for (name, value) in cases {
            let error = parse(json!({name: value})).unwrap_err();
            assert_eq!((error.status(), &error.body()["error"]["param"]), (400, &json!(name)));
        }
    }

    #[test]
    fn messages_are_brought_into_template_form() {
        let messages = check_messages(Some(json!([
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "assistant", "content": null, "tool_calls": []},
        ])))
        .unwrap();
        assert_eq!(messages[0], json!({"role": "system", "content": "be brief"}));
        assert_eq!(messages[1]["content"], "");
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
        let image =
            json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]});
        assert_eq!(at(image), "messages[0].content[0]");
    }
}
