//! The conversation of an Anthropic request in the form that chat templates expect.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::Error;
use crate::nested::{kind, list, required_text};
use crate::nonce::without_nonce;

/// Between two text blocks of one message.
const BETWEEN_BLOCKS: &str = "\n\n";

/// The text of `system`, a string or text blocks, the same for every request of a conversation.
pub(crate) fn system_text(system: Option<Value>) -> Result<Option<String>, Error> {
    let text = match system {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(blocks) => texts(list(Some(blocks), "system")?, "system")?,
    };
    Ok(Some(without_nonce(&text).into_owned()))
}

/// The messages, and whether the last one is the assistant's beginning of the answer.
pub(crate) fn conversation(system: Option<String>, messages: Option<Value>) -> Result<(Value, bool), Error> {
    let messages = list(messages, "messages")?;
    if messages.is_empty() {
        return Err(Error::invalid("messages", "must be an array of at least one message"));
    }
    let last = messages.len() - 1;
    let mut reader = Reader::default();
    reader.out.extend(system.map(|text| json!({"role": "system", "content": text})));
    for (index, message) in messages.into_iter().enumerate() {
        reader.message(message, &format!("messages[{index}]"))?;
    }
    let end = &reader.out[reader.out.len() - 1];
    if end["tool_calls"].is_array() {
        let reason = "ends with a tool_use block; its tool_result must follow in a user message";
        return Err(Error::invalid(format!("messages[{last}]"), reason));
    }
    let continues = end["role"] == "assistant" && end["content"] != "";
    Ok((Value::Array(reader.out), continues))
}

#[derive(Default)]
struct Reader {
    out: Vec<Value>,
    /// Names of the tools by the id of the call.
    called: HashMap<String, String>,
}

impl Reader {
    fn message(&mut self, mut message: Value, at: &str) -> Result<(), Error> {
        let content = message.get_mut("content").map(Value::take);
        let at_content = format!("{at}.content");
        let blocks = match content {
            Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
            Some(blocks @ Value::Array(_)) => list(Some(blocks), &at_content)?,
            _ => return Err(Error::invalid(at_content, "must be a string or an array of blocks")),
        };
        match message["role"].as_str() {
            Some("user") => self.user(blocks, &at_content),
            Some("assistant") => self.assistant(blocks, &at_content),
            Some("system") => {
                let text = texts(blocks, &at_content)?;
                self.out.push(json!({"role": "system", "content": text}));
                Ok(())
            }
            _ => Err(Error::invalid(format!("{at}.role"), "must be one of user, assistant, system")),
        }
    }

    /// Results of tools come before the text, as they answer the message before.
    fn user(&mut self, blocks: Vec<Value>, at: &str) -> Result<(), Error> {
        let mut text = Vec::new();
        let mut results = 0;
        for (index, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            if kind(&block, &at)? == "tool_result" {
                self.tool_result(block, &at)?;
                results += 1;
            } else {
                text.push(text_of(&block, &at)?);
            }
        }
        if !text.is_empty() || results == 0 {
            self.out.push(json!({"role": "user", "content": text.join(BETWEEN_BLOCKS)}));
        }
        Ok(())
    }

    fn tool_result(&mut self, mut block: Value, at: &str) -> Result<(), Error> {
        let content = block.get_mut("content").map(Value::take);
        let id = required_text(&block, "tool_use_id", at)?;
        let at_content = format!("{at}.content");
        let text = match content {
            Some(Value::String(text)) => text,
            content => texts(list(content, &at_content)?, &at_content)?,
        };
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": text});
        if let Some(name) = self.called.get(id) {
            message["name"] = Value::String(name.clone());
        }
        self.out.push(message);
        Ok(())
    }

    fn assistant(&mut self, blocks: Vec<Value>, at: &str) -> Result<(), Error> {
        let (mut text, mut thinking, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for (index, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            match kind(&block, &at)? {
                "thinking" => thinking.push(required_text(&block, "thinking", &at)?.to_owned()),
                "redacted_thinking" => {}
                "tool_use" => calls.push(self.tool_use(block, &at)?),
                _ => text.push(text_of(&block, &at)?),
            }
        }
        let mut message = json!({"role": "assistant", "content": text.join(BETWEEN_BLOCKS)});
        if !thinking.is_empty() {
            message["reasoning_content"] = Value::String(thinking.join(BETWEEN_BLOCKS));
        }
        if !calls.is_empty() {
            message["tool_calls"] = Value::Array(calls);
        }
        self.out.push(message);
        Ok(())
    }

    fn tool_use(&mut self, mut block: Value, at: &str) -> Result<Value, Error> {
        let arguments = match block.get_mut("input").map(Value::take) {
            None | Some(Value::Null) => json!({}),
            Some(input @ Value::Object(_)) => input,
            Some(_) => return Err(Error::invalid(format!("{at}.input"), "must be an object")),
        };
        let id = required_text(&block, "id", at)?;
        let name = required_text(&block, "name", at)?;
        self.called.insert(id.to_owned(), name.to_owned());
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    }
}

fn texts(blocks: Vec<Value>, at: &str) -> Result<String, Error> {
    let read = |(index, block): (usize, Value)| text_of(&block, &format!("{at}[{index}]"));
    let texts: Vec<String> = blocks.into_iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok(texts.join(BETWEEN_BLOCKS))
}

/// The text of a block that is text.
fn text_of(block: &Value, at: &str) -> Result<String, Error> {
    match kind(block, at)? {
        "text" => Ok(required_text(block, "text", at)?.to_owned()),
        "search_result" => {
            let title = required_text(block, "title", at)?;
            let source = required_text(block, "source", at)?;
            let at_content = format!("{at}.content");
            // Its content is text blocks only, so this goes one level deep.
            let passages = list(Some(block["content"].clone()), &at_content)?;
            let mut lines = vec![format!("{title}\n{source}")];
            for (index, passage) in passages.iter().enumerate() {
                lines.push(required_text(passage, "text", &format!("{at_content}[{index}]"))?.to_owned());
            }
            Ok(lines.join(BETWEEN_BLOCKS))
        }
        "image" => Err(Error::invalid(at, "is an image, and this model takes no images; leave it out")),
        "document" => {
            Err(Error::invalid(at, "is a document, and this model takes no documents; send its text"))
        }
        other => {
            Err(Error::invalid(at, format!("a block of type '{other}' is not taken here; leave it out")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> Result<(Value, bool), Error> {
        conversation(None, Some(messages))
    }

    #[test]
    fn blocks_become_the_messages_of_a_template() {
        let (messages, continues) = read(json!([
            {"role": "user", "content": [
                {"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}},
                {"type": "search_result", "title": "T", "source": "s",
                    "content": [{"type": "text", "text": "x"}]},
            ]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"at": "Rome"}},
                {"type": "tool_use", "id": "b", "name": "time", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "text", "text": "Go on."},
                {"type": "tool_result", "tool_use_id": "a", "content": "sun"},
                {"type": "tool_result", "tool_use_id": "b", "is_error": true,
                    "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "clock"}]},
            ]},
            {"role": "system", "content": "Be brief."},
        ]))
        .unwrap();
        let call = |id, name, arguments: Value| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        assert_eq!(
            messages,
            json!([
                {"role": "user", "content": "Weather?\n\nT\ns\n\nx"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
                    "tool_calls": [call("a", "weather", json!({"at": "Rome"})),
                        call("b", "time", json!({}))]},
                {"role": "tool", "tool_call_id": "a", "name": "weather", "content": "sun"},
                {"role": "tool", "tool_call_id": "b", "name": "time", "content": "no\n\nclock"},
                {"role": "user", "content": "Go on."},
                {"role": "system", "content": "Be brief."},
            ])
        );
        assert!(!continues);
    }

    #[test]
    fn a_last_assistant_message_is_continued() {
        let (messages, continues) =
            read(json!([{"role": "user", "content": "A?"}, {"role": "assistant", "content": "{"}])).unwrap();
        assert_eq!(messages[1], json!({"role": "assistant", "content": "{"}));
        assert!(continues);
        let empty = json!([{"role": "user", "content": "A?"}, {"role": "assistant", "content": []}]);
        assert!(!read(empty).unwrap().1);
    }

    #[test]
    fn the_system_prompt_is_one_message_without_its_nonce() {
        let system = system_text(Some(json!([
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0a1b2;"},
            {"type": "text", "text": "Be kind."},
        ])));
        let system = system.unwrap().unwrap();
        assert_eq!(system, "x-anthropic-billing-header: cc_version=1; cch=00000;\n\nBe kind.");
    }

    #[test]
    fn a_bad_block_is_named() {
        let user = |block: Value| json!([{"role": "user", "content": [block]}]);
        let image = json!({"type": "image", "source": {"type": "url", "url": "u"}});
        let cases = [
            (json!([]), "messages"),
            (json!("hi"), "messages"),
            (json!(["hi"]), "messages[0].content"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (json!([{"role": "king", "content": ""}]), "messages[0].role"),
            (user(image.clone()), "messages[0].content[0]"),
            (user(json!({"type": "document"})), "messages[0].content[0]"),
            (user(json!({"type": "tool_reference", "tool_name": "t"})), "messages[0].content[0]"),
            (user(json!({"type": "from_the_future"})), "messages[0].content[0]"),
            (user(json!({"type": "tool_use", "id": "a", "name": "b"})), "messages[0].content[0]"),
            (user(json!("hi")), "messages[0].content[0]"),
            (user(json!({"type": "tool_result"})), "messages[0].content[0].tool_use_id"),
            (
                user(json!({"type": "tool_result", "tool_use_id": "a", "content": [image]})),
                "messages[0].content[0].content[0]",
            ),
            (
                json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]),
                "messages[0]",
            ),
        ];
        for (messages, name) in cases {
            assert_eq!(read(messages).unwrap_err().body()["error"]["param"], name);
        }
        let error = system_text(Some(json!([{"type": "image"}]))).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "system[0]");
    }
}
