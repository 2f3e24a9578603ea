//! Lark grammars in the engine's dialect: limits, and JSON schemas within.

use crate::{GrammarError, json_schema};
use serde_json::Value;

/// Longest source.
const MOST_BYTES: usize = 256 << 10;
/// Deepest nesting of brackets.
const MOST_DEPTH: usize = 100;

/// `text` as a Lark string.
pub(crate) fn string(text: &str) -> String {
    // The engine's strings are JSON's, but for the delete character.
    Value::from(text).to_string().replace('\x7f', "\\u007f")
}

/// Checks limits and replaces each `%json` schema by one that enforces all it says.
pub(crate) fn check(source: &str) -> Result<String, GrammarError> {
    if source.len() > MOST_BYTES {
        return Err(GrammarError::too_large("bytes of a Lark grammar", MOST_BYTES));
    }
    let mut checked = String::with_capacity(source.len());
    let mut rest = source;
    let mut depth: usize = 0;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("%json") {
            let (schema, length) = json_prefix(after)?;
            checked.push_str("%json ");
            checked.push_str(&json_schema::lower(&schema)?);
            rest = &after[length..];
            continue;
        }
        match first {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MOST_DEPTH {
            return Err(GrammarError::too_large("the depth of brackets in a Lark grammar", MOST_DEPTH));
        }
        let length = token_length(rest).ok_or_else(|| {
            let line = source[..source.len() - rest.len()].matches('\n').count() + 1;
            GrammarError::invalid(format!("line {line}: {first} has no end"))
        })?;
        let (token, after) = rest.split_at(length);
        checked.push_str(token);
        rest = after;
    }
    Ok(checked)
}

fn json_prefix(text: &str) -> Result<(Value, usize), GrammarError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((value, values.byte_offset())),
        Some(Err(reason)) => Err(GrammarError::invalid(format!("after %json: {reason}"))),
        None => Err(GrammarError::invalid("a schema is missing after %json")),
    }
}

/// Length of the comment, string, regular expression or special token that `text` begins with, else of a
/// character; `None` if it has no end.
fn token_length(text: &str) -> Option<usize> {
    let first = text.chars().next()?;
    match first {
        '#' => Some(text.find('\n').unwrap_or(text.len())),
        '/' if text.starts_with("//") => Some(text.find('\n').unwrap_or(text.len())),
        '"' | '/' => quoted_length(text, first),
        '<' => text.find('>').map(|end| end + 1),
        _ => Some(first.len_utf8()),
    }
}

fn quoted_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (offset, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(offset + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_schemas_stays_as_it_is() {
        let source =
            "start: <[7]> \"%json {\" /a\\/(%json/ </x> // %json (((\n# %json\nx: (\"a\" | \"b\")*\n";
        assert_eq!(check(source).unwrap(), source);
    }

    #[test]
    fn what_a_schema_within_can_not_enforce_is_refused() {
        let refused = check("start: \"<call>\" %json {\"not\": {\"type\": \"null\"}}").unwrap_err();
        assert!(matches!(refused, GrammarError::Unsupported { construct, .. } if construct == "not"));
        let lenient =
            check("start: %json {\"x-guidance\": {\"lenient\": true}, \"type\": \"object\"}").unwrap();
        assert!(!lenient.contains("lenient"));
    }

    #[test]
    fn strings_that_do_not_end_and_deep_brackets_are_refused() {
        assert!(check("start: \"abc").unwrap_err().to_string().contains("line 1"));
        assert!(check("start: %json").is_err());
        assert!(matches!(check(&"(".repeat(101)), Err(GrammarError::TooLarge { .. })));
    }

    #[test]
    fn a_string_is_quoted() {
        assert_eq!(string("<a \"b\"\n\x7f>"), r#""<a \"b\"\n\u007f>""#);
    }
}
