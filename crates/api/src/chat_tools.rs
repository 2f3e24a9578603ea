//! The tools of a chat request and the choice among them.

use serde_json::{Value, json};

use crate::nested::allowed_tools;
use crate::{Error, Fields, Tool, ToolChoice};

/// Most tools of one request, as OpenAI allows.
const MOST_TOOLS: usize = 128;
/// Longest name of a tool, as OpenAI allows.
const LONGEST_NAME: usize = 64;

pub(crate) fn tools(fields: &mut Fields) -> Result<Vec<Tool>, Error> {
    let list = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.len() <= MOST_TOOLS => list,
        Some(_) => {
            return Err(Error::invalid("tools", format!("must be an array of up to {MOST_TOOLS} tools")));
        }
    };
    let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
    for (index, mut entry) in list.into_iter().enumerate() {
        let at = format!("tools[{index}]");
        if entry["type"] != "function" {
            return Err(Error::invalid(
                format!("{at}.type"),
                "must be function: other tools are not run here",
            ));
        }
        let function = entry["function"].take();
        tools.push(tool(function, &format!("{at}.function"), &tools)?);
    }
    Ok(tools)
}

/// One tool with `name`, `description` and `parameters`.
fn tool(mut function: Value, at: &str, others: &[Tool]) -> Result<Tool, Error> {
    let name =
        function["name"].as_str().filter(|name| is_name(name)).map(str::to_owned).ok_or_else(|| {
            let reason = format!("must be 1 to {LONGEST_NAME} letters, digits, _ or -");
            Error::invalid(format!("{at}.name"), reason)
        })?;
    if others.iter().any(|other| other.name == name) {
        return Err(Error::invalid(format!("{at}.name"), format!("{name} is there twice")));
    }
    let parameters = match function["parameters"].take() {
        Value::Null => json!({"type": "object", "properties": {}}),
        Value::Object(schema) => Value::Object(schema),
        _ => return Err(Error::invalid(format!("{at}.parameters"), "must be a JSON Schema of an object")),
    };
    let description = function["description"].as_str().map(str::to_owned);
    Ok(Tool { name, description, parameters })
}

/// Whether a tool may have this name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// The choice, and the names of the tools that it is limited to.
pub(crate) fn tool_choice(
    choice: Option<&Value>,
    tools: &[Tool],
) -> Result<(ToolChoice, Option<Vec<String>>), Error> {
    let forms = "must be none, auto, required, a named function or allowed_tools";
    let wrong = |reason: &str| Err(Error::invalid("tool_choice", reason));
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return wrong(forms),
        },
        Some(object) => match object["type"].as_str() {
            Some("function") => match object["function"]["name"].as_str() {
                Some(name) => ToolChoice::Named(name.to_owned()),
                None => return wrong("names no function"),
            },
            Some("allowed_tools") => {
                let at = "tool_choice.allowed_tools";
                return allowed_tools(
                    &object["allowed_tools"],
                    at,
                    tools,
                    |entry| &entry["function"]["name"],
                );
            }
            _ => return wrong(forms),
        },
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => wrong("asks for a tool call but there are no tools"),
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            wrong(&format!("names {name}, which is not among the tools"))
        }
        _ => Ok((choice, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tools_value: Value, choice: Value) -> Result<(Vec<Tool>, ToolChoice), Error> {
        let body = json!({"tools": tools_value});
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let tools = tools(&mut fields)?;
        let (choice, _) = tool_choice(Some(&choice).filter(|choice| !choice.is_null()), &tools)?;
        Ok((tools, choice))
    }

    fn allowed(mode: &str, names: &[&str]) -> Value {
        let entry = |name: &&str| json!({"type": "function", "function": {"name": name}});
        let tools: Vec<Value> = names.iter().map(entry).collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    }

    fn add() -> Value {
        json!({"type": "function", "function": {"name": "add", "description": "d", "strict": true}})
    }

    #[test]
    fn tools_and_choices_in_every_form() {
        let (tools, choice) = read(json!([add()]), Value::Null).unwrap();
        assert_eq!((tools[0].name.as_str(), tools[0].description.as_deref()), ("add", Some("d")));
        assert_eq!(tools[0].parameters["type"], "object");
        assert_eq!(choice, ToolChoice::Auto);
        let named = json!({"type": "function", "function": {"name": "add"}});
        assert_eq!(read(json!([add()]), named).unwrap().1, ToolChoice::Named("add".into()));
        assert_eq!(read(json!([add()]), json!("required")).unwrap().1, ToolChoice::Required);
    }

    #[test]
    fn a_choice_can_be_limited_to_some_tools() {
        let tools = ["add", "multiply"].map(|name| Tool {
            name: name.into(),
            description: None,
            parameters: json!({}),
        });
        let choice = |mode, names: &[&str]| tool_choice(Some(&allowed(mode, names)), &tools);
        assert_eq!(choice("auto", &["add"]).unwrap(), (ToolChoice::Auto, Some(vec!["add".into()])));
        let both = Some(vec!["multiply".into(), "add".into()]);
        assert_eq!(choice("required", &["multiply", "add"]).unwrap(), (ToolChoice::Required, both));
        let param = |choice: Result<_, Error>| choice.unwrap_err().body()["error"]["param"].clone();
        assert_eq!(param(choice("any", &["add"])), "tool_choice.allowed_tools.mode");
        assert_eq!(param(choice("auto", &[])), "tool_choice.allowed_tools.tools");
        assert_eq!(param(choice("auto", &["add", "divide"])), "tool_choice.allowed_tools.tools[1]");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let param = |tools, choice| {
            let error = read(tools, choice).unwrap_err();
            error.body()["error"]["param"].as_str().unwrap().to_owned()
        };
        assert_eq!(param(json!([{"type": "web_search"}]), Value::Null), "tools[0].type");
        assert_eq!(param(json!([add(), add()]), Value::Null), "tools[1].function.name");
        let odd = json!([{"type": "function", "function": {"name": "a b"}}]);
        assert_eq!(param(odd, Value::Null), "tools[0].function.name");
        assert_eq!(param(json!([]), json!("required")), "tool_choice");
        let other = json!({"type": "function", "function": {"name": "other"}});
        assert_eq!(param(json!([add()]), other), "tool_choice");
        assert_eq!(param(json!([add()]), json!({"type": "custom"})), "tool_choice");
    }
}
