//! Parameters that are written as plain text and become JSON by the schema of the tool.

use serde_json::{Map, Value};

use super::events::Events;
use super::json_scan::is_json;
use super::mark::MarkScan;

/// How many references and alternatives of a schema are followed.
const MAX_SCHEMAS: usize = 64;

/// JSON types that a parameter may have by its schema. Empty: any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParameterTypes(Vec<String>);

impl ParameterTypes {
    /// The types of the parameter `key`. `parameters` is the schema of all parameters.
    pub(super) fn of(parameters: &Value, key: &str) -> Self {
        let mut budget = MAX_SCHEMAS;
        Self(types(&parameters["properties"][key], parameters, &mut budget))
    }

    /// Whether the text as it stands is the value.
    pub(super) fn is_string(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|name| name == "string")
    }

    /// Whether some text that is no JSON may be the value.
    pub(super) fn may_be_string(&self) -> bool {
        self.0.is_empty() || self.has("string")
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|other| other == name)
    }

    /// The JSON text of a value that was written as `text`.
    fn json(&self, text: &str) -> String {
        // Templates in Python write these words for the values of JSON, and models learn them.
        let json = match text.trim() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other => other,
        };
        let words = json != text.trim();
        let fits = match json.as_bytes().first() {
            _ if !self.has("string") => true,
            _ if words => false,
            Some(b'{') => self.has("object"),
            Some(b'[') => self.has("array"),
            Some(b't' | b'f') => self.has("boolean"),
            Some(b'n') => self.has("null"),
            Some(b'"') => true,
            _ => self.has("number") || self.has("integer"),
        };
        if fits && !self.is_string() && is_json(json) {
            json.to_owned()
        } else {
            Value::from(text).to_string()
        }
    }
}

/// `budget`: how many more schemas may be looked at.
fn types(schema: &Value, root: &Value, budget: &mut usize) -> Vec<String> {
    let Some(left) = budget.checked_sub(1) else { return Vec::new() };
    *budget = left;
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
        return root.pointer(path).map_or_else(Vec::new, |schema| types(schema, root, budget));
    }
    match &schema["type"] {
        Value::String(name) => return vec![name.clone()],
        Value::Array(list) => return list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => {}
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| type_of(value).to_owned()).collect();
    }
    let alternatives = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    let all: Vec<_> = alternatives.into_iter().flatten().map(|schema| types(schema, root, budget)).collect();
    if all.iter().any(Vec::is_empty) { Vec::new() } else { all.concat() }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The schema of one parameter as a document of its own, with the definitions that it may refer to.
pub(super) fn own_schema(parameters: &Value, key: &str) -> Value {
    let mut schema: Map<String, Value> =
        parameters["properties"][key].as_object().cloned().unwrap_or_default();
    for definitions in ["$defs", "definitions"] {
        if let Some(all) = parameters.get(definitions) {
            schema.insert(definitions.to_owned(), all.clone());
        }
    }
    Value::Object(schema)
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Reads a value up to its closing mark. A string is told as it comes, anything else at its end. One line
/// break after the opening mark and one before the closing mark are not part of the value.
#[derive(Debug)]
pub(super) struct ParameterReader {
    key: String,
    types: ParameterTypes,
    /// What stands before the key in JSON.
    separator: &'static str,
    scan: MarkScan,
    close: &'static str,
    /// Text that has not been told.
    held: String,
    at_start: bool,
}

impl ParameterReader {
    /// `first`: no other parameter of the call comes before it.
    pub(super) fn begin(
        key: String,
        types: ParameterTypes,
        first: bool,
        close: &'static str,
        events: &mut Events,
    ) -> Self {
        let separator = if first { "" } else { ", " };
        let (scan, held) = (MarkScan::default(), String::new());
        let reader = Self { key, types, separator, scan, close, held, at_start: true };
        if reader.types.is_string() {
            events.arguments(&reader.prefix());
            events.arguments("\"");
        }
        reader
    }

    fn prefix(&self) -> String {
        format!("{}{}: ", self.separator, Value::from(self.key.as_str()))
    }

    /// Takes a character, and says whether the closing mark is complete.
    pub(super) fn push(&mut self, c: char, events: &mut Events) -> bool {
        let mut released = String::new();
        let ended = self.scan.push(c, &[self.close], &mut released).is_some();
        let text = match released.strip_prefix('\n').filter(|_| self.at_start) {
            Some(rest) => rest,
            None => &released,
        };
        self.at_start &= released.is_empty();
        self.held.push_str(text);
        match (self.types.is_string(), ended) {
            (true, _) => self.tell_string(ended, events),
            (false, true) => {
                let text = self.held.strip_suffix('\n').unwrap_or(&self.held);
                events.arguments(&(self.prefix() + &self.types.json(text)));
            }
            (false, false) => {}
        }
        ended
    }

    /// Tells what is there of a string. A line break at its end may still be the one before the closing mark.
    fn tell_string(&mut self, ended: bool, events: &mut Events) {
        let text = self.held.strip_suffix('\n').unwrap_or(&self.held);
        let told = text.len();
        events.arguments(&escaped(text));
        self.held.drain(..told);
        if ended {
            events.arguments("\"");
        }
    }

    /// Ends a value that broke off. What was not told is text, after the mark `open` if that was not told
    /// either.
    pub(super) fn finish(&mut self, open: &str, events: &mut Events) {
        let rest = std::mem::take(&mut self.held) + &self.scan.take();
        if self.types.is_string() {
            events.arguments("\"}");
            events.text(&rest);
        } else {
            events.arguments("}");
            events.text(&format!("{open}{}>{rest}", self.key));
        }
    }
}
