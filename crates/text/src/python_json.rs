//! JSON as Python's `json.dumps` writes it, for the `tojson` filter of chat templates.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Nesting beyond which a value is refused, as the recursion limit of Python does.
const MAX_DEPTH: usize = 500;

/// Most spaces of indentation per level that a template gets.
const MAX_INDENT: usize = 64;

struct Style {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `value | tojson(indent=…, separators=…, sort_keys=…)`, with `ensure_ascii` off and nothing escaped for HTML.
pub(crate) fn tojson(
    _: &State,
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let indent = match indent.filter(|indent| !indent.is_none() && !indent.is_undefined()) {
        Some(indent) => Some(usize::try_from(indent)?.min(MAX_INDENT)),
        None => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(invalid("tojson takes two separators, for items and for keys")),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut json = String::new();
    write(&mut json, value, &Style { indent, item_separator, key_separator, sort_keys }, 0)?;
    Ok(Value::from(json))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn write(json: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid("tojson got a value that is nested too deep"));
    }
    match value.kind() {
        ValueKind::None => json.push_str("null"),
        ValueKind::Bool => json.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => json.push_str(&value.to_string()),
        ValueKind::String => write_string(json, value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            write_items(json, ['[', ']'], items, style, depth, |json, item| {
                write(json, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            write_items(json, ['{', '}'], keys, style, depth, |json, key| {
                write_key(json, &key)?;
                json.push_str(&style.key_separator);
                write(json, &value.get_item(&key)?, style, depth + 1)
            })?;
        }
        _ => return Err(invalid("tojson got a value that JSON does not have, such as an undefined one")),
    }
    Ok(())
}

/// Python turns the keys that JSON does not allow into strings.
fn write_key(json: &mut String, key: &Value) -> Result<(), Error> {
    match key.kind() {
        ValueKind::String => write_string(json, key.as_str().unwrap_or_default()),
        ValueKind::None => json.push_str("\"null\""),
        ValueKind::Bool => json.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
        ValueKind::Number => write_string(json, &key.to_string()),
        _ => return Err(invalid("tojson got a key that is not a string, a number, a boolean or none")),
    }
    Ok(())
}

fn write_items(
    json: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = Value>,
    style: &Style,
    depth: usize,
    mut write_item: impl FnMut(&mut String, Value) -> Result<(), Error>,
) -> Result<(), Error> {
    json.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            json.push_str(&style.item_separator);
        }
        empty = false;
        new_line(json, style, depth + 1);
        write_item(json, item)?;
    }
    if !empty {
        new_line(json, style, depth);
    }
    json.push(close);
    Ok(())
}

fn new_line(json: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = style.indent {
        json.push('\n');
        json.extend(std::iter::repeat_n(' ', indent * depth));
    }
}

fn write_string(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            '\0'..='\u{1f}' => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => json.push(c),
        }
    }
    json.push('"');
}
