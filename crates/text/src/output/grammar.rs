//! Parts of the grammars of tool calls, in the Lark dialect of llguidance, which embeds JSON Schemas with
//! `%json`.

use serde_json::{Value, json};

use super::dialect::CallableTool;

/// A quoted text of Lark; it is escaped as in JSON.
pub(super) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// The rules of a grammar, as text.
#[derive(Debug, Default)]
pub(super) struct Grammar {
    rules: String,
}

impl Grammar {
    pub(super) fn rule(&mut self, name: &str, body: &str) {
        self.rules.push_str(&format!("{name}: {body}\n"));
    }

    /// One of the rules `NAME_0`, `NAME_1`, … for the tools in turn.
    pub(super) fn choice(&mut self, name: &'static str, count: usize) -> &'static str {
        let alternatives: Vec<String> = (0..count).map(|number| format!("{name}_{number}")).collect();
        self.rule(name, &alternatives.join(" | "));
        name
    }

    /// Objects with a name and arguments, as templates write them. `key` is the key of the arguments.
    pub(super) fn call_objects(&mut self, tools: &[CallableTool], key: &str) -> &'static str {
        for (number, tool) in tools.iter().enumerate() {
            let arguments = self.arguments(number, tool);
            let begin = literal(&format!(r#"{{"name": {}, "{key}": "#, literal(&tool.name)));
            self.rule(&format!("call_{number}"), &format!(r#"{begin} {arguments} "}}""#));
        }
        self.choice("call", tools.len())
    }

    /// The arguments of a tool. Each schema is a document of its own, so that references in it lead where
    /// they did.
    pub(super) fn arguments(&mut self, number: usize, tool: &CallableTool) -> String {
        let name = format!("arguments_{number}");
        let body = match arguments_schema(&tool.parameters) {
            Some(schema) => format!("%json {schema}"),
            None => literal("{}"),
        };
        self.rule(&name, &body);
        name
    }

    /// The grammar of calls that each consist of the mark `open` and the rule `body`.
    pub(super) fn start_marked(mut self, several: bool, begun: bool, open: &str) -> String {
        let first = if begun { "body".to_owned() } else { format!("{open} body") };
        let more = if several { format!(r#" ("\n"? {open} body)*"#) } else { String::new() };
        self.rule("start", &format!("{first}{more}"));
        self.rules
    }

    /// The grammar with this rule to start from.
    pub(super) fn start(mut self, body: &str) -> String {
        self.rule("start", body);
        self.rules
    }
}

/// The schema of a tool's arguments, which are always an object. Nothing for a tool that has no parameters.
fn arguments_schema(parameters: &Value) -> Option<Value> {
    const STRUCTURE: [&str; 6] =
        ["$ref", "anyOf", "oneOf", "allOf", "patternProperties", "additionalProperties"];
    let schema = parameters.as_object()?;
    let open = |key: &str| schema.get(key).is_some_and(|value| *value != json!(false));
    let has_properties =
        schema.get("properties").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
    if !has_properties && !STRUCTURE.iter().any(|key| open(key)) {
        return None;
    }
    let mut schema = schema.clone();
    if !["type", "$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| schema.contains_key(*key)) {
        schema.insert("type".to_owned(), json!("object"));
    }
    Some(Value::Object(schema))
}
