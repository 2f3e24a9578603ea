//! The conversation of a Responses request in the form that chat templates expect.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::nested::{kind, list, required_text};
use crate::{Error, Reply};

/// The messages of `input`, a text or items.
pub(crate) fn conversation(input: Option<Value>) -> Result<Vec<Value>, Error> {
    let items = match input {
        Some(Value::String(text)) => return Ok(vec![json!({"role": "user", "content": text})]),
        Some(items @ Value::Array(_)) => list(Some(items), "input")?,
        _ => return Err(Error::invalid("input", "must be a string or an array of items")),
    };
    let mut reader = Reader::default();
    for (index, item) in items.iter().enumerate() {
        reader.item(item, &format!("input[{index}]"))?;
    }
    Ok(reader.out)
}

/// An answer as a message of the conversation that follows it.
pub fn assistant_message(reply: &Reply) -> Value {
    let mut message = json!({"role": "assistant", "content": reply.text});
    if !reply.reasoning.is_empty() {
        message["reasoning_content"] = Value::String(reply.reasoning.clone());
    }
    for call in &reply.calls {
        add_call(&mut message, &call.id, &call.name, &call.arguments);
    }
    message
}

#[derive(Default)]
struct Reader {
    out: Vec<Value>,
    /// Thinking that belongs to the next message of the assistant.
    thinking: Option<String>,
    /// Names of the functions by the id of the call.
    called: HashMap<String, String>,
}

impl Reader {
    fn item(&mut self, item: &Value, at: &str) -> Result<(), Error> {
        match &item["type"] {
            Value::Null if item["role"].is_string() => self.message(item, at),
            _ => match kind(item, at)? {
                "message" => self.message(item, at),
                "reasoning" => self.reasoning(item, at),
                "function_call" => self.function_call(item, at),
                "function_call_output" => self.function_call_output(item, at),
                "item_reference" => Err(Error::invalid(
                    at,
                    "is an item_reference, and items are not kept here; send the item",
                )),
                other => {
                    let reason = format!("an item of type '{other}' is not taken here; leave it out");
                    Err(Error::invalid(at, reason))
                }
            },
        }
    }

    fn message(&mut self, item: &Value, at: &str) -> Result<(), Error> {
        let role = match required_text(item, "role", at)? {
            role @ ("user" | "assistant" | "system") => role,
            // Most templates refuse this role.
            "developer" => "system",
            _ => {
                let reason = "must be one of user, assistant, system, developer";
                return Err(Error::invalid(format!("{at}.role"), reason));
            }
        };
        let content = text_of(&item["content"], &format!("{at}.content"))?;
        let mut message = json!({"role": role, "content": content});
        let thinking = self.thinking.take();
        if let Some(thinking) = thinking.filter(|_| role == "assistant") {
            message["reasoning_content"] = Value::String(thinking);
        }
        self.out.push(message);
        Ok(())
    }

    fn reasoning(&mut self, item: &Value, at: &str) -> Result<(), Error> {
        let mut texts = Vec::new();
        for field in ["content", "summary"] {
            let at = format!("{at}.{field}");
            for (index, part) in list(Some(item[field].clone()), &at)?.iter().enumerate() {
                texts.push(required_text(part, "text", &format!("{at}[{index}]"))?.to_owned());
            }
            // A summary is what is left where the thinking itself is not shown.
            if !texts.is_empty() {
                break;
            }
        }
        if !texts.is_empty() {
            texts.splice(..0, self.thinking.take());
            self.thinking = Some(texts.join("\n\n"));
        }
        Ok(())
    }

    /// Calls that follow the assistant's text or each other are one message.
    fn function_call(&mut self, item: &Value, at: &str) -> Result<(), Error> {
        let id = required_text(item, "call_id", at)?;
        let name = required_text(item, "name", at)?;
        let arguments = required_text(item, "arguments", at)?;
        let continues =
            self.thinking.is_none() && self.out.last().is_some_and(|last| last["role"] == "assistant");
        if !continues {
            let mut message = json!({"role": "assistant", "content": ""});
            if let Some(thinking) = self.thinking.take() {
                message["reasoning_content"] = Value::String(thinking);
            }
            self.out.push(message);
        }
        if let Some(message) = self.out.last_mut() {
            add_call(message, id, name, arguments);
        }
        self.called.insert(id.to_owned(), name.to_owned());
        Ok(())
    }

    fn function_call_output(&mut self, item: &Value, at: &str) -> Result<(), Error> {
        let id = required_text(item, "call_id", at)?;
        let output = text_of(&item["output"], &format!("{at}.output"))?;
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": output});
        if let Some(name) = self.called.get(id) {
            message["name"] = Value::String(name.clone());
        }
        self.thinking = None;
        self.out.push(message);
        Ok(())
    }
}

fn add_call(message: &mut Value, id: &str, name: &str, arguments: &str) {
    let arguments = match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        _ if arguments.trim().is_empty() => json!({}),
        // The arguments of a call that was cut off come back as they were; the template shows them so.
        _ => Value::from(arguments),
    };
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    match &mut message["tool_calls"] {
        Value::Array(calls) => calls.push(call),
        none => *none = json!([call]),
    }
}

/// A text, or the texts of text parts put together.
fn text_of(content: &Value, at: &str) -> Result<String, Error> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(Error::invalid(at, "must be a string or an array of parts")),
    };
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        let at = format!("{at}[{index}]");
        joined.push_str(match kind(part, &at)? {
            "input_text" | "output_text" | "text" => required_text(part, "text", &at)?,
            "refusal" => required_text(part, "refusal", &at)?,
            other => {
                let reason = format!("'{other}' is not taken: this model takes no images, audio or files");
                return Err(Error::invalid(at, reason));
            }
        });
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Call;

    fn read(items: Value) -> Result<Vec<Value>, Error> {
        conversation(Some(items))
    }

    fn call(id: &str, arguments: Value) -> Value {
        json!({"id": id, "type": "function", "function": {"name": "time", "arguments": arguments}})
    }

    #[test]
    fn items_become_the_messages_of_a_template() {
        let messages = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Time?"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "short"}],
                "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "x"},
            {"type": "message", "role": "assistant", "id": "m", "status": "completed",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "a", "name": "time", "arguments": "{\"at\":\"Rome\"}"},
            {"type": "function_call", "call_id": "b", "name": "time", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": "noon"},
            {"type": "function_call_output", "call_id": "b",
                "output": [{"type": "input_text", "text": "one"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "again"}]},
            {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"},
        ]))
        .unwrap();
        assert_eq!(
            messages,
            [
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "Time?"}),
                json!({"role": "assistant", "content": "I look.", "reasoning_content": "hm",
                    "tool_calls": [call("a", json!({"at": "Rome"})), call("b", json!({}))]}),
                json!({"role": "tool", "tool_call_id": "a", "name": "time", "content": "noon"}),
                json!({"role": "tool", "tool_call_id": "b", "name": "time", "content": "one"}),
                json!({"role": "assistant", "content": "", "reasoning_content": "again",
                    "tool_calls": [call("c", json!({}))]}),
            ]
        );
    }

    #[test]
    fn an_answer_joins_the_conversation_as_the_message_it_would_be_sent_back_as() {
        let reply = Reply {
            reasoning: "hm".into(),
            text: "I look.".into(),
            calls: vec![Call { id: "a".into(), name: "time".into(), arguments: "{\"at\":1}".into() }],
            ..Reply::default()
        };
        let sent_back = read(json!([
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "a", "name": "time", "arguments": "{\"at\":1}"},
        ]));
        assert_eq!([assistant_message(&reply)], *sent_back.unwrap());
    }

    #[test]
    fn arguments_that_were_cut_off_stay_as_they_were() {
        let cut = read(
            json!([{"type": "function_call", "call_id": "a", "name": "time", "arguments": "{\"at\": ["}]),
        );
        assert_eq!(cut.unwrap()[0]["tool_calls"], json!([call("a", json!("{\"at\": ["))]));
    }

    #[test]
    fn a_bad_item_is_named() {
        let user = |part: Value| json!([{"role": "user", "content": [part]}]);
        let cases = [
            (json!(3), "input"),
            (json!(["hi"]), "input[0]"),
            (json!([{"role": "king", "content": ""}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (user(json!({"type": "input_image", "image_url": "u"})), "input[0].content[0]"),
            (user(json!({"type": "input_file", "file_id": "f"})), "input[0].content[0]"),
            (user(json!({"type": "input_text"})), "input[0].content[0].text"),
            (json!([{"type": "item_reference", "id": "i"}]), "input[0]"),
            (json!([{"type": "web_search_call", "id": "i"}]), "input[0]"),
            (json!([{"type": "function_call", "name": "f", "arguments": "{}"}]), "input[0].call_id"),
            (json!([{"type": "function_call", "call_id": "a", "name": "f"}]), "input[0].arguments"),
            (json!([{"type": "function_call_output", "call_id": "a"}]), "input[0].output"),
            (json!([{"type": "reasoning", "summary": "s"}]), "input[0].summary"),
        ];
        for (items, name) in cases {
            assert_eq!(read(items).unwrap_err().body()["error"]["param"], name);
        }
    }
}
