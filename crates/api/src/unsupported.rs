//! Fields of OpenAI's routes, and of the servers that extend them, that are known and not supported: an answer that
//! ignores them would not be what was asked for.

use serde_json::Value;

use crate::fields::is_empty;
use crate::{Error, Fields};

/// The way to ask for a structure that is supported.
const FORMAT: &str = "is not supported by this server; use response_format or grammar";
const UNSUPPORTED: &str = "is not supported by this server; leave it out";

/// A field, whether a value of it asks for nothing, and the way out.
type Row = (&'static str, fn(&Value) -> bool, &'static str);

/// Of text and chat completions alike.
const COMMON: [Row; 20] = [
    ("guided_json", is_empty, FORMAT),
    ("guided_regex", is_empty, FORMAT),
    ("guided_choice", is_empty, FORMAT),
    ("guided_grammar", is_empty, FORMAT),
    ("structured_outputs", is_empty, FORMAT),
    ("json_schema", is_empty, FORMAT),
    ("kv", is_empty, UNSUPPORTED),
    ("min_tokens", is_empty, UNSUPPORTED),
    ("stop_token_ids", is_empty, "is not supported by this server; use stop"),
    ("bad_words", is_empty, "is not supported by this server; use logit_bias"),
    ("prompt_logprobs", is_empty, UNSUPPORTED),
    ("use_beam_search", is_empty, UNSUPPORTED),
    (
        "truncate_prompt_tokens",
        is_empty,
        "is not supported by this server: nothing is cut from a prompt here",
    ),
    ("mirostat", is_empty, UNSUPPORTED),
    ("dry_multiplier", is_empty, UNSUPPORTED),
    ("xtc_probability", is_empty, UNSUPPORTED),
    ("top_a", is_empty, UNSUPPORTED),
    ("typical_p", is_one, UNSUPPORTED),
    ("tfs_z", is_one, UNSUPPORTED),
    ("lora", is_empty, UNSUPPORTED),
];

/// Of chat completions.
const CHAT: [Row; 8] = [
    ("functions", is_empty, "is not supported by this server; use tools"),
    ("function_call", is_passive, "is not supported by this server; use tool_choice"),
    ("audio", is_empty, UNSUPPORTED),
    ("modalities", is_text, "asks for more than text, and this server answers in text; leave it out"),
    ("web_search_options", is_empty, UNSUPPORTED),
    ("documents", is_empty, "is not supported by this server; put the documents into a message"),
    ("chat_template", is_empty, "is not supported by this server: the model's own template is used"),
    ("echo", is_empty, UNSUPPORTED),
];

/// Refuses what text completions don't support.
pub(crate) fn refuse_unsupported(fields: &Fields) -> Result<(), Error> {
    refuse(fields, &COMMON)
}

/// Refuses what chat completions don't support.
pub(crate) fn refuse_unsupported_in_chat(fields: &Fields) -> Result<(), Error> {
    refuse(fields, &COMMON)?;
    refuse(fields, &CHAT)
}

fn refuse(fields: &Fields, rows: &[Row]) -> Result<(), Error> {
    let asks = |(name, asks_nothing, _): &&Row| fields.get(name).is_some_and(|value| !asks_nothing(value));
    match rows.iter().find(asks) {
        Some((name, _, reason)) => Err(Error::invalid(*name, *reason)),
        None => Ok(()),
    }
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_passive(value: &Value) -> bool {
    matches!(value.as_str(), Some("none" | "auto"))
}

fn is_text(kinds: &Value) -> bool {
    *kinds == serde_json::json!(["text"])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The field that a body is refused for, in text and in chat completions.
    fn refused(body: &Value) -> [Option<Value>; 2] {
        let fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let named = |result: Result<(), Error>| result.err().map(|e| e.body()["error"]["param"].clone());
        [named(refuse_unsupported(&fields)), named(refuse_unsupported_in_chat(&fields))]
    }

    #[test]
    fn what_is_known_and_not_supported_is_refused_by_name() {
        for (name, ..) in COMMON {
            assert_eq!(refused(&json!({name: "x"})), [Some(json!(name)), Some(json!(name))]);
        }
        for (name, ..) in CHAT {
            assert_eq!(refused(&json!({name: ["x"]})), [None, Some(json!(name))]);
        }
    }

    #[test]
    fn values_that_ask_for_nothing_are_accepted() {
        let body = json!({
            "guided_json": null, "min_tokens": 0, "stop_token_ids": [], "use_beam_search": false, "mirostat": 0,
            "typical_p": 1, "tfs_z": 1.0, "functions": [], "function_call": "auto", "modalities": ["text"],
            "audio": {}, "new_field": {"a": 1},
        });
        assert_eq!(refused(&body), [None, None]);
    }
}
