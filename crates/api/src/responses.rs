//! OpenAI `POST /v1/responses`: the request.

use serde_json::{Map, Value, json};

use crate::fields::is_empty;
use crate::nested::{allowed_tools, check_tools, kind, list, required_text, schema, tool};
use crate::responses_input::conversation;
use crate::sampling::session;
use crate::{Error, Fields, Format, Reasoning, Sampling, StreamOptions, Tool, ToolChoice, Turn};

/// Most alternatives per token, as OpenAI allows.
const MOST_TOP_LOGPROBS: usize = 20;

/// A checked request for a response.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponsesRequest {
    /// The request; its messages are those of `input` alone.
    pub turn: Turn,
    /// The response whose conversation this one continues.
    pub previous_response_id: Option<String>,
    /// Whether the conversation is to be kept for a later `previous_response_id`; true unless declined.
    pub store: bool,
    /// Text before the whole conversation, which later responses don't inherit.
    pub instructions: Option<String>,
    /// The fields that the response object repeats.
    pub echo: Map<String, Value>,
}

impl ResponsesRequest {
    /// The messages for the model: the instructions, the earlier conversation, the messages of this request.
    pub fn conversation(&self, earlier: &[Value]) -> Value {
        let instructions = self.instructions.iter().map(|text| json!({"role": "system", "content": text}));
        let own = self.turn.messages.as_array().into_iter().flatten();
        instructions.chain(earlier.iter().chain(own).cloned()).collect()
    }
}

/// Parses the body of `POST /v1/responses`. Unknown fields are ignored, as are `max_tool_calls`,
/// `service_tier`, `stream_options` and what else changes no answer.
///
/// # Errors
/// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
pub fn parse_responses(body: &[u8]) -> Result<ResponsesRequest, Error> {
    let mut fields = Fields::parse(body)?;
    for name in ["background", "conversation", "prompt"] {
        fields.refuse_unless(name, is_empty)?;
    }
    if fields.text("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return Err(Error::invalid(
            "truncation",
            "must be disabled: nothing is cut from a conversation here",
        ));
    }
    let echo = echo(&fields);
    let tools = tools(fields.take("tools"))?;
    let (tool_choice, allowed_tools) = tool_choice(fields.get("tool_choice"), &tools)?;
    check_tools(&tools, &tool_choice)?;
    let previous_response_id = fields.text("previous_response_id")?.map(str::to_owned);
    let messages = conversation(fields.take("input"))?;
    if messages.is_empty() && previous_response_id.is_none() {
        return Err(Error::invalid("input", "must not be empty without a previous_response_id"));
    }
    let turn = Turn {
        model: fields.text("model")?.map(str::to_owned),
        messages: Value::Array(messages),
        tools,
        tool_choice,
        allowed_tools,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?.unwrap_or(true),
        format: format(&fields)?,
        sampling: Sampling {
            max_tokens: fields.count("max_output_tokens", 1)?,
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: fields.number("top_p", 0.0..=1.0)?,
            ..Sampling::default()
        },
        reasoning: reasoning(&fields)?,
        choices: 1,
        logprobs: logprobs(&fields)?,
        session: session(&fields)?,
        delivery: StreamOptions { stream: fields.flag("stream")?.unwrap_or(false), include_usage: true },
        ..Turn::default()
    };
    Ok(ResponsesRequest {
        turn,
        previous_response_id,
        store: fields.flag("store")?.unwrap_or(true),
        instructions: fields.text("instructions")?.map(str::to_owned),
        echo,
    })
}

/// The fields that a response repeats, with OpenAI's values for those left out.
fn echo(fields: &Fields) -> Map<String, Value> {
    let defaults = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({"effort": null, "summary": null})),
        ("safety_identifier", Value::Null),
        ("store", json!(true)),
        ("temperature", Value::Null),
        ("text", json!({"format": {"type": "text"}})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("top_p", Value::Null),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ];
    defaults
        .into_iter()
        .map(|(name, default)| (name.to_owned(), fields.get(name).cloned().unwrap_or(default)))
        .collect()
}

fn tools(value: Option<Value>) -> Result<Vec<Tool>, Error> {
    let read = |(index, object): (usize, Value)| {
        let at = format!("tools[{index}]");
        match kind(&object, &at)? {
            "function" => tool(&object, "parameters", &at),
            other => {
                let reason = format!("'{other}' is not run here; only tools of type function are taken");
                Err(Error::invalid(format!("{at}.type"), reason))
            }
        }
    };
    list(value, "tools")?.into_iter().enumerate().map(read).collect()
}

/// The choice, and the names of the tools that it is limited to.
fn tool_choice(choice: Option<&Value>, tools: &[Tool]) -> Result<(ToolChoice, Option<Vec<String>>), Error> {
    let at = "tool_choice";
    let wrong = || {
        let forms =
            "must be none, auto, required, {type: function, name} or {type: allowed_tools, mode, tools}";
        Error::invalid(at, forms)
    };
    let choice = match choice {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "none" => ToolChoice::None,
            "auto" => ToolChoice::Auto,
            "required" => ToolChoice::Required,
            _ => return Err(wrong()),
        },
        Some(object) => match object["type"].as_str() {
            Some("function") => ToolChoice::Named(required_text(object, "name", at)?.to_owned()),
            Some("allowed_tools") => return allowed_tools(object, at, tools, |entry| &entry["name"]),
            _ => return Err(wrong()),
        },
    };
    Ok((choice, None))
}

fn format(fields: &Fields) -> Result<Format, Error> {
    let at = "text.format";
    let Some(format) = fields.get("text").map(|text| &text["format"]).filter(|format| !format.is_null())
    else {
        return Ok(Format::Text);
    };
    match kind(format, at)? {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::JsonObject),
        "json_schema" => Ok(Format::JsonSchema(schema(format, "schema", at)?)),
        _ => Err(Error::invalid("text.format.type", "must be one of text, json_object, json_schema")),
    }
}

fn reasoning(fields: &Fields) -> Result<Reasoning, Error> {
    match fields.get("reasoning").map(|reasoning| &reasoning["effort"]) {
        None | Some(Value::Null) => Ok(Reasoning::default()),
        Some(effort) => effort.as_str().and_then(Reasoning::from_effort).ok_or_else(|| {
            Error::invalid("reasoning.effort", format!("must be one of {}", Reasoning::efforts()))
        }),
    }
}

/// Log-probabilities come only if `include` asks for them; `top_logprobs` alone changes nothing.
fn logprobs(fields: &Fields) -> Result<Option<usize>, Error> {
    let top = fields.count("top_logprobs", 0)?.unwrap_or(0);
    if top > MOST_TOP_LOGPROBS {
        return Err(Error::invalid("top_logprobs", format!("must be at most {MOST_TOP_LOGPROBS}")));
    }
    let include = list(fields.get("include").cloned(), "include")?;
    Ok(include.iter().any(|name| name == "message.output_text.logprobs").then_some(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: Value) -> Result<ResponsesRequest, Error> {
        let mut body = json!({"model": "m", "input": "hi"});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        parse_responses(body.to_string().as_bytes())
    }

    #[test]
    fn what_coding_agents_send_is_accepted() {
        let tool = json!({"type": "function", "name": "shell", "description": "Runs.", "strict": false,
            "parameters": {"type": "object"}});
        let request = parse(json!({
            "instructions": "Be brief.", "tools": [tool],
            "tool_choice": {"type": "function", "name": "shell"},
            "parallel_tool_calls": false, "reasoning": {"effort": "low", "summary": "auto"}, "store": false,
            "stream": true, "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "top_logprobs": 3, "prompt_cache_key": "k", "text": {"verbosity": "low"}, "max_output_tokens": 50,
            "temperature": 0.5, "truncation": "disabled", "background": false, "max_tool_calls": 3,
            "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "stream_options": {}, "new_field": 1,
        }))
        .unwrap();
        let turn = &request.turn;
        assert_eq!(turn.tools[0].parameters, json!({"type": "object"}));
        assert_eq!(turn.tool_choice, ToolChoice::Named("shell".into()));
        assert_eq!(turn.reasoning, Reasoning { budget: Some(512), enabled: Some(true) });
        assert_eq!((turn.logprobs, turn.session.as_deref()), (Some(3), Some("k")));
        assert_eq!((turn.sampling.max_tokens, turn.sampling.temperature), (Some(50), Some(0.5)));
        assert!(turn.delivery.stream && !turn.parallel_tool_calls && !request.store);
        assert_eq!(request.echo["tools"], json!([tool]));
        assert_eq!(request.echo["metadata"], json!({"a": "b"}));
        assert_eq!(request.echo["instructions"], "Be brief.");
    }

    #[test]
    fn a_choice_can_be_limited_to_some_tools() {
        let function = |name: &str| json!({"type": "function", "name": name});
        let tools = json!([function("read"), function("write")]);
        let choice = json!({"type": "allowed_tools", "mode": "required", "tools": [function("read")]});
        let turn = parse(json!({"tools": tools, "tool_choice": choice})).unwrap().turn;
        assert_eq!((turn.tool_choice, turn.allowed_tools), (ToolChoice::Required, Some(vec!["read".into()])));
        assert_eq!(turn.tools.len(), 2);
    }

    #[test]
    fn what_is_left_out_has_the_usual_values() {
        let request = parse(json!({"top_logprobs": 5})).unwrap();
        assert!(request.store && request.turn.parallel_tool_calls);
        assert_eq!((request.turn.format, request.turn.logprobs), (Format::Text, None));
        assert_eq!(request.turn.reasoning, Reasoning::default());
        assert_eq!(request.echo["text"], json!({"format": {"type": "text"}}));
        assert_eq!(request.echo["temperature"], Value::Null);
    }

    #[test]
    fn what_would_be_lost_is_refused_by_name() {
        let cases = [
            (json!({"background": true}), "background"),
            (json!({"conversation": "c"}), "conversation"),
            (json!({"prompt": {"id": "p"}}), "prompt"),
            (json!({"truncation": "auto"}), "truncation"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].name"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"tool_choice": {"type": "mcp"}}), "tool_choice"),
            (json!({"tool_choice": {"type": "allowed_tools", "mode": "any"}}), "tool_choice.mode"),
            (json!({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}), "tool_choice.tools"),
            (json!({"tool_choice": {"type": "function", "name": "x"}}), "tool_choice.name"),
            (json!({"text": {"format": {"type": "json_schema", "name": "n"}}}), "text.format.schema"),
            (json!({"text": {"format": {"type": "grammar"}}}), "text.format.type"),
            (json!({"reasoning": {"effort": 3}}), "reasoning.effort"),
            (json!({"top_logprobs": 21}), "top_logprobs"),
            (json!({"include": "all"}), "include"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"input": []}), "input"),
            (json!({"input": null}), "input"),
            (json!({"instructions": ["x"]}), "instructions"),
        ];
        for (extra, name) in cases {
            assert_eq!(parse(extra).unwrap_err().body()["error"]["param"], name);
        }
    }

    #[test]
    fn formats_are_read() {
        let format = |format: Value| parse(json!({"text": {"format": format}})).unwrap().turn.format;
        let schema = json!({"type": "json_schema", "name": "n", "schema": {"type": "array"}, "strict": true});
        assert_eq!(format(schema), Format::JsonSchema(json!({"type": "array"})));
        assert_eq!(format(json!({"type": "json_object"})), Format::JsonObject);
        assert_eq!(format(json!({"type": "text"})), Format::Text);
    }

    #[test]
    fn a_response_continues_an_earlier_one_under_new_instructions() {
        let request =
            parse(json!({"input": "And?", "instructions": "Be kind.", "previous_response_id": "resp_1"}))
                .unwrap();
        let earlier =
            [json!({"role": "user", "content": "A?"}), json!({"role": "assistant", "content": "B."})];
        let messages = request.conversation(&earlier);
        let contents: Vec<_> = (0..4).map(|at| messages[at]["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["Be kind.", "A?", "B.", "And?"]);
        assert!(parse(json!({"input": [], "previous_response_id": "resp_1"})).is_ok());
    }
}
