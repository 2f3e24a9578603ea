//! `POST /v1/completions`: the request.

use serde_json::Value;

use crate::fields::is_empty;
use crate::{Error, Fields, Sampling, StreamOptions};

/// The text to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// As text; the tokenizer adds what the model expects at the start.
    Text(String),
    /// As token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// A checked text completion request.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// How the answer is delivered.
    pub delivery: StreamOptions,
}

impl CompletionRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::parse(body)?;
        for name in ["echo", "suffix", "response_format"] {
            fields.refuse_unless(name, is_empty)?;
        }
        // Zero log-probabilities still asks for those of the chosen tokens.
        fields.refuse_unless("logprobs", |value| value.as_bool() == Some(false))?;
        fields.refuse_unless("best_of", |value| value.as_u64() == Some(1))?;
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            sampling: Sampling::read(&fields)?,
            delivery: StreamOptions::read(&fields)?,
            prompt: prompt(fields.take("prompt"))?,
        })
    }
}

fn prompt(value: Option<Value>) -> Result<Prompt, Error> {
    let wrong = || Error::invalid("prompt", "must be one string, or one non-empty array of token ids");
    match value {
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(mut items)) => match items.as_slice() {
            [Value::String(_) | Value::Array(_)] => match items.pop() {
                Some(Value::String(text)) => Ok(Prompt::Text(text)),
                Some(Value::Array(ids)) => tokens(&ids),
                _ => Err(wrong()),
            },
            [Value::String(_) | Value::Array(_), ..] => {
                Err(Error::invalid("prompt", "holds several prompts; send one request for each"))
            }
            ids => tokens(ids),
        },
        _ => Err(wrong()),
    }
}

pub(crate) fn tokens(ids: &[Value]) -> Result<Prompt, Error> {
    let ids: Option<Vec<u32>> =
        ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect();
    match ids {
        Some(ids) if !ids.is_empty() => Ok(Prompt::Tokens(ids)),
        _ => Err(Error::invalid("prompt", "must hold at least one token id, and nothing else")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(prompt: Value) -> Result<Prompt, Error> {
        CompletionRequest::parse(json!({"prompt": prompt}).to_string().as_bytes())
            .map(|request| request.prompt)
    }

    #[test]
    fn prompts_in_every_form() {
        assert_eq!(parse(json!("a")).unwrap(), Prompt::Text("a".into()));
        assert_eq!(parse(json!(["a"])).unwrap(), Prompt::Text("a".into()));
        assert_eq!(parse(json!([1, 2])).unwrap(), Prompt::Tokens(vec![1, 2]));
        assert_eq!(parse(json!([[1, 2]])).unwrap(), Prompt::Tokens(vec![1, 2]));
    }

    #[test]
    fn bad_prompts_are_refused() {
        for bad in [
            json!(["a", "b"]),
            json!([[1], [2]]),
            json!([]),
            json!([[]]),
            json!([1, "a"]),
            json!([-1]),
            json!(3),
        ] {
            assert_eq!(parse(bad).unwrap_err().body()["error"]["param"], "prompt");
        }
        assert_eq!(CompletionRequest::parse(b"{}").unwrap_err().status(), 400);
    }

    #[test]
    fn echo_is_refused() {
        let error = CompletionRequest::parse(br#"{"prompt": "a", "echo": true}"#).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "echo");
    }
}
