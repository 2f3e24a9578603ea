//! Reads fields of objects inside a body; `at` is the path of the object, such as `messages[2].content[0]`.

use serde_json::{Value, json};

use crate::{Error, Tool, ToolChoice};

/// Longest name of a tool in bytes, as both Anthropic and OpenAI allow.
const LONGEST_TOOL_NAME: usize = 128;

/// A text that must be there.
pub(crate) fn required_text<'a>(object: &'a Value, field: &str, at: &str) -> Result<&'a str, Error> {
    object[field].as_str().ok_or_else(|| Error::invalid(format!("{at}.{field}"), "must be a string"))
}

/// The `type` of a block, part or item.
pub(crate) fn kind<'a>(object: &'a Value, at: &str) -> Result<&'a str, Error> {
    object["type"].as_str().ok_or_else(|| Error::invalid(at, "must be an object with a type"))
}

/// A list; absent or `null` is empty.
pub(crate) fn list(value: Option<Value>, at: &str) -> Result<Vec<Value>, Error> {
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(Error::invalid(at, "must be an array")),
    }
}

/// A JSON Schema that is an object.
pub(crate) fn schema(object: &Value, field: &str, at: &str) -> Result<Value, Error> {
    match &object[field] {
        schema @ Value::Object(_) => Ok(schema.clone()),
        _ => Err(Error::invalid(format!("{at}.{field}"), "must be a JSON Schema object")),
    }
}

/// A tool's name, description and the schema in `schema_field`.
pub(crate) fn tool(object: &Value, schema_field: &str, at: &str) -> Result<Tool, Error> {
    let name = required_text(object, "name", at)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !(1..=LONGEST_TOOL_NAME).contains(&name.len()) || !name.bytes().all(plain) {
        let reason = format!("must be 1 to {LONGEST_TOOL_NAME} letters, digits, '_' or '-'");
        return Err(Error::invalid(format!("{at}.name"), reason));
    }
    let description = match &object["description"] {
        Value::Null => None,
        _ => Some(required_text(object, "description", at)?.to_owned()),
    };
    let parameters = match &object[schema_field] {
        Value::Null => json!({"type": "object", "properties": {}}),
        _ => schema(object, schema_field, at)?,
    };
    Ok(Tool { name: name.to_owned(), description, parameters })
}

/// Checks that tool names differ and that the choice can be met.
pub(crate) fn check_tools(tools: &[Tool], choice: &ToolChoice) -> Result<(), Error> {
    let mut names = std::collections::HashSet::new();
    if let Some((index, tool)) = tools.iter().enumerate().find(|(_, tool)| !names.insert(tool.name.as_str()))
    {
        let reason = format!("'{}' is the name of an earlier tool; names must differ", tool.name);
        return Err(Error::invalid(format!("tools[{index}].name"), reason));
    }
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(Error::invalid("tool_choice", "asks for a tool call, but tools is empty"))
        }
        ToolChoice::Named(name) if !names.contains(name.as_str()) => {
            Err(Error::invalid("tool_choice.name", format!("'{name}' is not among the tools")))
        }
        _ => Ok(()),
    }
}

/// Reads `mode` and `tools` of an `allowed_tools` choice, checked against the tools there are. `name_of` finds the
/// name in an entry; `at` is the path of the object.
pub(crate) fn allowed_tools(
    object: &Value,
    at: &str,
    tools: &[Tool],
    name_of: fn(&Value) -> &Value,
) -> Result<(ToolChoice, Option<Vec<String>>), Error> {
    let choice = match object["mode"].as_str() {
        Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        _ => return Err(Error::invalid(format!("{at}.mode"), "must be auto or required")),
    };
    let entries = list(Some(object["tools"].clone()), &format!("{at}.tools"))?;
    if entries.is_empty() {
        return Err(Error::invalid(format!("{at}.tools"), "must name at least one tool"));
    }
    let read = |(index, entry): (usize, &Value)| {
        let wrong = |reason: String| Err(Error::invalid(format!("{at}.tools[{index}]"), reason));
        match name_of(entry).as_str().filter(|_| entry["type"] == "function") {
            Some(name) if tools.iter().any(|tool| tool.name == name) => Ok(name.to_owned()),
            Some(name) => wrong(format!("'{name}' is not among the tools")),
            None => wrong("must be a function with a name".to_owned()),
        }
    };
    let names = entries.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    Ok((choice, Some(names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Result<Tool, Error> {
        tool(&json!({"name": name}), "parameters", "tools[0]")
    }

    #[test]
    fn a_tool_needs_a_plain_name() {
        assert!(named("get-weather_2").is_ok());
        for name in ["", "get weather", "é", &"x".repeat(129)] {
            assert_eq!(named(name).unwrap_err().body()["error"]["param"], "tools[0].name");
        }
    }

    #[test]
    fn a_choice_that_no_tool_meets_is_refused() {
        let tools = [named("a").unwrap(), named("b").unwrap()];
        assert!(check_tools(&tools, &ToolChoice::Named("b".into())).is_ok());
        assert!(check_tools(&tools, &ToolChoice::Named("c".into())).is_err());
        assert!(check_tools(&[], &ToolChoice::Required).is_err());
        assert!(check_tools(&[named("a").unwrap(), named("a").unwrap()], &ToolChoice::Auto).is_err());
    }
}
