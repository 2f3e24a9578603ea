//! Anthropic `POST /v1/messages` and `/v1/messages/count_tokens`: the request.

use serde_json::{Value, json};

use crate::fields::is_empty;
use crate::messages_blocks::{conversation, system_text};
use crate::nested::{check_tools, kind, list, required_text, schema, tool};
use crate::{Error, Fields, Format, Reasoning, Sampling, StreamOptions, Tool, ToolChoice, Turn};

/// Most stop texts of one request.
const MOST_STOPS: usize = 64;
/// Longest stop text in bytes: the engine holds back that much of the answer.
const LONGEST_STOP: usize = 1024;

/// Parses the body of `POST /v1/messages`.
///
/// Text blocks of one message are joined by an empty line. What has no meaning here (`cache_control`,
/// `context_management`, `container`, `metadata`, `service_tier`) is ignored, as are unknown fields.
///
/// # Errors
/// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
pub fn parse_messages(body: &[u8]) -> Result<Turn, Error> {
    let fields = Fields::parse(body)?;
    if fields.get("max_tokens").is_none() {
        return Err(Error::invalid("max_tokens", "is required: the most tokens to answer with"));
    }
    turn(fields)
}

/// Parses the body of `POST /v1/messages/count_tokens`, which needs no `max_tokens`.
///
/// # Errors
/// As [`parse_messages`].
pub fn parse_count_tokens(body: &[u8]) -> Result<Turn, Error> {
    turn(Fields::parse(body)?)
}

/// The body of an answer to `POST /v1/messages/count_tokens`.
pub fn token_count(input_tokens: usize) -> Value {
    json!({"input_tokens": input_tokens})
}

fn turn(mut fields: Fields) -> Result<Turn, Error> {
    fields.refuse_unless("mcp_servers", is_empty)?;
    let tools = tools(fields.take("tools"))?;
    let (tool_choice, parallel_tool_calls) = tool_choice(fields.get("tool_choice"))?;
    check_tools(&tools, &tool_choice)?;
    let sampling = Sampling {
        max_tokens: fields.count("max_tokens", 1)?,
        temperature: fields.number("temperature", 0.0..=1.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        top_k: fields.count("top_k", 0)?,
        stop: stop(&fields)?,
        ..Sampling::default()
    };
    let format = format(&fields)?;
    let reasoning = reasoning(&fields)?;
    let system = system_text(fields.take("system"))?;
    let (messages, continues) = conversation(system, fields.take("messages"))?;
    Ok(Turn {
        model: fields.text("model")?.map(str::to_owned),
        messages,
        tools,
        tool_choice,
        parallel_tool_calls,
        format,
        sampling,
        reasoning,
        choices: 1,
        continues,
        delivery: StreamOptions { stream: fields.flag("stream")?.unwrap_or(false), include_usage: true },
        ..Turn::default()
    })
}

fn tools(value: Option<Value>) -> Result<Vec<Tool>, Error> {
    let read = |(index, object): (usize, Value)| {
        let at = format!("tools[{index}]");
        match object["type"].as_str() {
            None | Some("custom") => {
                schema(&object, "input_schema", &at)?;
                tool(&object, "input_schema", &at)
            }
            Some(kind) => {
                let reason =
                    format!("'{kind}' is a server tool, and server tools are not run here; leave it out");
                Err(Error::invalid(format!("{at}.type"), reason))
            }
        }
    };
    list(value, "tools")?.into_iter().enumerate().map(read).collect()
}

/// The choice, and whether one answer may call several tools.
fn tool_choice(choice: Option<&Value>) -> Result<(ToolChoice, bool), Error> {
    let at = "tool_choice";
    let Some(choice) = choice else { return Ok((ToolChoice::Auto, true)) };
    let which = match kind(choice, at)? {
        "auto" => ToolChoice::Auto,
        "any" => ToolChoice::Required,
        "none" => ToolChoice::None,
        "tool" => ToolChoice::Named(required_text(choice, "name", at)?.to_owned()),
        _ => return Err(Error::invalid("tool_choice.type", "must be one of auto, any, tool, none")),
    };
    match &choice["disable_parallel_tool_use"] {
        Value::Null => Ok((which, true)),
        Value::Bool(disabled) => Ok((which, !disabled)),
        _ => Err(Error::invalid("tool_choice.disable_parallel_tool_use", "must be true or false")),
    }
}

fn stop(fields: &Fields) -> Result<Vec<String>, Error> {
    let wrong = || {
        let reason = format!("must be up to {MOST_STOPS} strings of 1 to {LONGEST_STOP} bytes");
        Error::invalid("stop_sequences", reason)
    };
    let texts = match fields.get("stop_sequences") {
        None => return Ok(Vec::new()),
        Some(Value::Array(texts)) if texts.len() <= MOST_STOPS => texts,
        Some(_) => return Err(wrong()),
    };
    let read = |text: &Value| {
        let text = text.as_str().filter(|text| (1..=LONGEST_STOP).contains(&text.len()));
        text.map(str::to_owned).ok_or_else(wrong)
    };
    texts.iter().map(read).collect()
}

/// `output_config.format`, or `output_format` as it was called first.
fn format(fields: &Fields) -> Result<Format, Error> {
    let config = fields.get("output_config").map(|config| &config["format"]);
    let (format, at) = match config.filter(|format| !format.is_null()) {
        Some(format) => (format, "output_config.format"),
        None => match fields.get("output_format") {
            Some(format) => (format, "output_format"),
            None => return Ok(Format::Text),
        },
    };
    match kind(format, at)? {
        "json_schema" => Ok(Format::JsonSchema(schema(format, "schema", at)?)),
        _ => Err(Error::invalid(format!("{at}.type"), "must be json_schema")),
    }
}

/// Without `thinking` the model's template decides.
fn reasoning(fields: &Fields) -> Result<Reasoning, Error> {
    let effort = match fields.get("output_config").map(|config| &config["effort"]) {
        None | Some(Value::Null) => None,
        Some(effort) => Some(effort.as_str().and_then(Reasoning::from_effort).ok_or_else(|| {
            Error::invalid("output_config.effort", format!("must be one of {}", Reasoning::efforts()))
        })?),
    };
    let Some(thinking) = fields.get("thinking") else { return Ok(Reasoning::default()) };
    match kind(thinking, "thinking")? {
        "enabled" => {
            let budget = thinking["budget_tokens"].as_u64().and_then(|budget| usize::try_from(budget).ok());
            let budget = budget.filter(|&budget| budget > 0).ok_or_else(|| {
                Error::invalid("thinking.budget_tokens", "must be an integer of at least 1")
            })?;
            Ok(Reasoning { budget: Some(budget), enabled: Some(true) })
        }
        "adaptive" => Ok(effort.unwrap_or(Reasoning { budget: None, enabled: Some(true) })),
        "disabled" => Ok(Reasoning { budget: Some(0), enabled: Some(false) }),
        _ => Err(Error::invalid("thinking.type", "must be one of enabled, adaptive, disabled")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(extra: Value) -> Vec<u8> {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        body.to_string().into_bytes()
    }

    fn parse(extra: Value) -> Result<Turn, Error> {
        parse_messages(&body(extra))
    }

    fn refused_field(extra: Value) -> Value {
        let error = parse(extra).unwrap_err();
        assert_eq!(error.status(), 400);
        error.body()["error"]["param"].clone()
    }

    #[test]
    fn what_coding_agents_send_is_accepted() {
        let turn = parse(json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "thinking": {"type": "enabled", "budget_tokens": 4000, "display": "summarized"},
            "metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"},
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "container": "c",
            "mcp_servers": [], "output_config": {"effort": "high"}, "stop_sequences": ["END"], "top_k": 5,
            "temperature": 1, "top_p": 0.9, "stream": true, "some_new_field": {},
            "tools": [{"name": "read", "description": "Reads.", "input_schema": {"type": "object"},
                "strict": true, "eager_input_streaming": true}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }))
        .unwrap();
        assert_eq!(turn.messages[0], json!({"role": "system", "content": "Be brief."}));
        assert_eq!(turn.reasoning, Reasoning { budget: Some(4000), enabled: Some(true) });
        assert_eq!((turn.sampling.max_tokens, turn.sampling.top_k), (Some(9), Some(5)));
        assert_eq!(turn.sampling.stop, ["END"]);
        assert_eq!((turn.tool_choice, turn.parallel_tool_calls), (ToolChoice::Required, false));
        assert_eq!(turn.tools[0].parameters, json!({"type": "object"}));
        assert!(turn.delivery.stream && !turn.continues);
    }

    #[test]
    fn what_would_be_lost_is_refused_by_name() {
        let tool = json!({"name": "a", "input_schema": {}});
        let cases = [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"temperature": 1.5}), "temperature"),
            (json!({"top_k": -1}), "top_k"),
            (json!({"stop_sequences": "x"}), "stop_sequences"),
            (json!({"stop_sequences": [""]}), "stop_sequences"),
            (json!({"mcp_servers": [{"type": "url"}]}), "mcp_servers"),
            (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
            (json!({"tools": [{"name": "a"}]}), "tools[0].input_schema"),
            (json!({"tools": [tool.clone(), tool]}), "tools[1].name"),
            (json!({"tools": {}}), "tools"),
            (json!({"tool_choice": "auto"}), "tool_choice"),
            (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
            (json!({"tool_choice": {"type": "tool", "name": "a"}}), "tool_choice.name"),
            (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
            (json!({"thinking": {"type": "deep"}}), "thinking.type"),
            (json!({"output_config": {"effort": "heroic"}}), "output_config.effort"),
            (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
            (json!({"output_format": {"type": "json_schema"}}), "output_format.schema"),
        ];
        for (extra, name) in cases {
            assert_eq!(refused_field(extra), name);
        }
    }

    #[test]
    fn thinking_is_as_asked() {
        let reasoning = |extra| parse(extra).unwrap().reasoning;
        assert_eq!(reasoning(json!({})), Reasoning::default());
        assert_eq!(
            reasoning(json!({"thinking": {"type": "disabled"}})),
            Reasoning { budget: Some(0), enabled: Some(false) }
        );
        let adaptive = json!({"thinking": {"type": "adaptive"}});
        assert_eq!(reasoning(adaptive), Reasoning { budget: None, enabled: Some(true) });
        let low = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
        assert_eq!(reasoning(low), Reasoning { budget: Some(512), enabled: Some(true) });
    }

    #[test]
    fn both_names_of_the_format_give_the_schema() {
        let format = json!({"type": "json_schema", "schema": {"type": "object"}});
        for extra in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
            assert_eq!(parse(extra).unwrap().format, Format::JsonSchema(json!({"type": "object"})));
        }
    }

    #[test]
    fn tokens_are_counted_without_a_limit() {
        let body = body(json!({"max_tokens": null}));
        assert_eq!(parse_count_tokens(&body).unwrap().sampling.max_tokens, None);
        assert_eq!(token_count(5), json!({"input_tokens": 5}));
    }
}
