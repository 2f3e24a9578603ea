//! Renders any template on any conversation: it ends, in bounded memory, with a text or an error.
#![no_main]

use lichen_text::ChatTemplate;
use serde_json::{Map, Value, json};

libfuzzer_sys::fuzz_target!(|input: (&str, &str, bool)| {
    let (source, text, prompt) = input;
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    // Text that is JSON is a conversation of any form; other text is what a user says.
    let messages = serde_json::from_str(text).unwrap_or_else(|_| {
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": text},
            {"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": 1.5, "y": [text]}}}
            ]},
            {"role": "tool", "content": "2"},
        ])
    });
    let tools: Option<Value> = prompt.then(|| json!([{"type": "function", "function": {"name": "f"}}]));
    if let Err(error) = template.with_clock(|| 0).render(&messages, tools.as_ref(), prompt, &Map::new()) {
        let _ = error.to_string();
    }
});
