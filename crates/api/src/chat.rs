//! `POST /v1/chat/completions`: the request.

use serde_json::{Map, Value};

use crate::chat_messages::{check_messages, continues};
use crate::chat_tools::{tool_choice, tools};
use crate::sampling::{choices, session};
use crate::unsupported::refuse_unsupported_in_chat;
use crate::{Error, Fields, Format, Reasoning, Sampling, StreamOptions, Turn};

/// Most alternatives per token, as OpenAI allows.
const MOST_TOP_LOGPROBS: usize = 20;

/// Parses and checks a body.
///
/// # Errors
/// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
pub fn parse_chat(body: &[u8]) -> Result<Turn, Error> {
    let mut fields = Fields::parse(body)?;
    refuse_unsupported_in_chat(&fields)?;
    let messages = check_messages(fields.take("messages"))?;
    let tools = tools(&mut fields)?;
    let (tool_choice, allowed_tools) = tool_choice(fields.get("tool_choice"), &tools)?;
    Ok(Turn {
        model: fields.text("model")?.map(str::to_owned),
        tool_choice,
        allowed_tools,
        parallel_tool_calls: fields.flag("parallel_tool_calls")?.unwrap_or(true),
        format: format(&mut fields)?,
        sampling: Sampling::read(&fields)?,
        reasoning: reasoning(&fields)?,
        template_variables: template_variables(&mut fields)?,
        choices: choices(&fields)?,
        logprobs: logprobs(&fields)?,
        session: session(&fields)?,
        continues: continues(&messages),
        delivery: StreamOptions::read(&fields)?,
        messages,
        tools,
    })
}

/// `response_format`, else `grammar`.
pub(crate) fn format(fields: &mut Fields) -> Result<Format, Error> {
    let grammar = fields.text("grammar")?.filter(|grammar| !grammar.trim().is_empty()).map(str::to_owned);
    let format = response_format(fields.take("response_format"))?;
    match (format, grammar) {
        (Format::Text, Some(grammar)) => Ok(Format::Grammar(grammar)),
        (format, None) => Ok(format),
        _ => Err(Error::invalid("grammar", "can't be followed together with response_format; leave one out")),
    }
}

fn response_format(value: Option<Value>) -> Result<Format, Error> {
    let Some(mut value) = value else { return Ok(Format::Text) };
    match value["type"].as_str() {
        Some("text") => Ok(Format::Text),
        Some("json_object") => match value.get_mut("schema").map(Value::take) {
            None | Some(Value::Null) => Ok(Format::JsonObject),
            Some(schema) => Ok(Format::JsonSchema(schema)),
        },
        Some("json_schema") => match value["json_schema"]["schema"].take() {
            Value::Null => Err(Error::invalid("response_format.json_schema.schema", "is missing")),
            schema => Ok(Format::JsonSchema(schema)),
        },
        _ => Err(Error::invalid("response_format.type", "must be text, json_object or json_schema")),
    }
}

/// `reasoning_budget` is the precise form of `reasoning_effort`.
fn reasoning(fields: &Fields) -> Result<Reasoning, Error> {
    let effort = match fields.text("reasoning_effort")? {
        None => Reasoning::default(),
        Some(effort) => Reasoning::from_effort(effort).ok_or_else(|| {
            Error::invalid("reasoning_effort", format!("must be one of {}", Reasoning::efforts()))
        })?,
    };
    match fields.count("reasoning_budget", 0)? {
        None => Ok(effort),
        Some(budget) => Ok(Reasoning { budget: Some(budget), enabled: Some(budget > 0) }),
    }
}

fn template_variables(fields: &mut Fields) -> Result<Map<String, Value>, Error> {
    match fields.take("chat_template_kwargs") {
        None => Ok(Map::new()),
        Some(Value::Object(variables)) => {
            for reserved in ["messages", "tools", "add_generation_prompt"] {
                if variables.contains_key(reserved) {
                    let reason = "has a field of its own in the request; set it there";
                    return Err(Error::invalid(format!("chat_template_kwargs.{reserved}"), reason));
                }
            }
            Ok(variables)
        }
        Some(_) => Err(Error::invalid("chat_template_kwargs", "must be an object")),
    }
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, Error> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    match fields.count("top_logprobs", 0)? {
        Some(top) if top > MOST_TOP_LOGPROBS => {
            Err(Error::invalid("top_logprobs", format!("must be an integer from 0 to {MOST_TOP_LOGPROBS}")))
        }
        Some(top) if top > 0 && !wanted => {
            Err(Error::invalid("top_logprobs", "needs logprobs to be true as well"))
        }
        top => Ok(wanted.then(|| top.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(extra: Value) -> Result<Turn, Error> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in extra.as_object().unwrap() {
            body[name] = value.clone();
        }
        parse_chat(body.to_string().as_bytes())
    }

    #[test]
    fn what_clients_send_by_habit_is_accepted() {
        let turn = parse(json!({
            "tools": [], "tool_choice": "auto", "n": 1, "logprobs": false, "response_format": {"type": "text"},
            "user": "u", "store": true, "metadata": {}, "prompt_cache_key": "k", "reasoning_effort": "low",
            "parallel_tool_calls": true, "max_tokens": 5, "max_completion_tokens": 7, "stop": "x", "seed": -1,
            "top_k": -1, "stream": true, "stream_options": {"include_usage": true}, "temperature": null,
            "verbosity": "low", "service_tier": "auto", "prediction": {"type": "content", "content": "c"}, "top_logprobs": 0, "safety_identifier": "s",
        }))
        .unwrap();
        assert_eq!(turn.sampling.max_tokens, Some(7));
        assert_eq!(turn.sampling.stop, ["x"]);
        assert_eq!(turn.sampling.seed, Some(u64::MAX));
        assert_eq!(turn.sampling.top_k, Some(0));
        assert_eq!(turn.sampling.temperature, None);
        assert_eq!(turn.session.as_deref(), Some("k"));
        assert_eq!((turn.choices, turn.logprobs, turn.continues), (1, None, false));
        assert!(turn.delivery.stream && turn.delivery.include_usage);
    }

    #[test]
    fn what_would_be_lost_is_refused_by_name() {
        let cases = [
            ("functions", json!([{"name": "f"}])),
            ("tool_choice", json!("required")),
            ("grammar", json!(3)),
            ("n", json!(0)),
            ("n", json!(1000)),
            ("top_logprobs", json!(2)),
            ("logit_bias", json!({"1": 200})),
            ("logit_bias", json!({"one": 2})),
            ("temperature", json!(2.5)),
            ("top_p", json!("high")),
            ("max_tokens", json!(0)),
            ("stop", json!([""])),
            ("stream_options", json!(true)),
            ("messages", json!([])),
            ("reasoning_effort", json!("much")),
            ("audio", json!({"voice": "v"})),
            ("guided_json", json!({"type": "object"})),
        ];
        for (name, value) in cases {
            let error = parse(json!({name: value})).unwrap_err();
            assert_eq!((error.status(), &error.body()["error"]["param"]), (400, &json!(name)));
        }
        let error = parse(json!({"response_format": {"type": "xml"}})).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "response_format.type");
    }

    #[test]
    fn formats_in_every_form() {
        let format = |value| parse(value).unwrap().format;
        assert_eq!(format(json!({"response_format": {"type": "json_object"}})), Format::JsonObject);
        let schema =
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}});
        assert_eq!(format(json!({"response_format": schema})), Format::JsonSchema(json!({"type": "object"})));
        assert_eq!(format(json!({"grammar": "root ::= \"a\""})), Format::Grammar("root ::= \"a\"".into()));
        let both = json!({"grammar": "root ::= \"a\"", "response_format": {"type": "json_object"}});
        assert_eq!(parse(both).unwrap_err().status(), 400);
    }

    #[test]
    fn a_budget_is_more_precise_than_an_effort() {
        let turn = parse(json!({"reasoning_effort": "high", "reasoning_budget": 9})).unwrap();
        assert_eq!(turn.reasoning, Reasoning { budget: Some(9), enabled: Some(true) });
        let none = parse(json!({"reasoning_effort": "none"})).unwrap();
        assert_eq!(none.reasoning, Reasoning { budget: Some(0), enabled: Some(false) });
    }

    #[test]
    fn the_assistants_own_beginning_is_continued() {
        let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well,"}]);
        assert!(parse(json!({"messages": messages})).unwrap().continues);
    }
}
