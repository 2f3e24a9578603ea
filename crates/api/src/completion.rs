//! `POST /v1/completions`: the request.

use serde_json::Value;

use crate::chat::format;
use crate::sampling::{choices, session};
use crate::unsupported::refuse_unsupported;
use crate::{Error, Fields, Format, Sampling, StreamOptions};

/// The text to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// As text; the tokenizer adds what the model expects at the start.
    Text(String),
    /// As token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// Most prompts of one request.
const MOST_PROMPTS: usize = 128;
/// Most alternatives per token: more than OpenAI's 5, as other servers allow.
const MOST_LOGPROBS: usize = 20;

/// A checked text completion request.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// What to continue; each on its own.
    pub prompts: Vec<Prompt>,
    /// The text that comes after the gap to be filled.
    pub suffix: Option<String>,
    /// Whether the prompt is repeated before the answer.
    pub echo: bool,
    /// What the answer must look like.
    pub format: Format,
    /// Answers to each prompt.
    pub choices: usize,
    /// Log-probabilities, with this many alternatives each.
    pub logprobs: Option<usize>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Conversation whose state is worth keeping.
    pub session: Option<String>,
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
        refuse_unsupported(&fields)?;
        let choices = choices(&fields)?;
        fields.refuse_unless("best_of", |best| best.as_u64() == Some(choices as u64))?;
        let request = Self {
            model: fields.text("model")?.map(str::to_owned),
            suffix: fields.text("suffix")?.filter(|suffix| !suffix.is_empty()).map(str::to_owned),
            echo: fields.flag("echo")?.unwrap_or(false),
            format: format(&mut fields)?,
            choices,
            logprobs: logprobs(&fields)?,
            sampling: Sampling::read(&fields)?,
            session: session(&fields)?,
            delivery: StreamOptions::read(&fields)?,
            prompts: prompts(fields.take("prompt"))?,
        };
        if request.prompts.len() * request.choices > MOST_PROMPTS {
            let reason = format!("with n asks for more than {MOST_PROMPTS} answers; send several requests");
            return Err(Error::invalid("prompt", reason));
        }
        if request.echo && request.logprobs.is_some() {
            let reason =
                "with logprobs would need those of the prompt, which are not computed; leave one out";
            return Err(Error::invalid("echo", reason));
        }
        Ok(request)
    }
}

/// A number of alternatives, or `true` as in the chat route.
fn logprobs(fields: &Fields) -> Result<Option<usize>, Error> {
    if let Some(Value::Bool(wanted)) = fields.get("logprobs") {
        return Ok(wanted.then_some(0));
    }
    match fields.count("logprobs", 0)? {
        Some(top) if top > MOST_LOGPROBS => {
            Err(Error::invalid("logprobs", format!("must be an integer from 0 to {MOST_LOGPROBS}")))
        }
        top => Ok(top),
    }
}

fn prompts(value: Option<Value>) -> Result<Vec<Prompt>, Error> {
    let wrong = || Error::invalid("prompt", "must be a string, an array of token ids, or an array of either");
    match value {
        Some(Value::String(text)) => Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(items)) => match items.first() {
            Some(Value::String(_) | Value::Array(_)) => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Ok(Prompt::Text(text)),
                    Value::Array(ids) => tokens(&ids),
                    _ => Err(wrong()),
                })
                .collect(),
            _ => Ok(vec![tokens(&items)?]),
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

    fn parse(prompt: Value) -> Result<Vec<Prompt>, Error> {
        CompletionRequest::parse(json!({"prompt": prompt}).to_string().as_bytes())
            .map(|request| request.prompts)
    }

    #[test]
    fn prompts_in_every_form() {
        assert_eq!(parse(json!("a")).unwrap(), [Prompt::Text("a".into())]);
        assert_eq!(parse(json!(["a", "b"])).unwrap(), [Prompt::Text("a".into()), Prompt::Text("b".into())]);
        assert_eq!(parse(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(
            parse(json!([[1, 2], [3]])).unwrap(),
            [Prompt::Tokens(vec![1, 2]), Prompt::Tokens(vec![3])]
        );
    }

    #[test]
    fn bad_prompts_are_refused() {
        for bad in [json!([]), json!([[]]), json!([1, "a"]), json!(["a", 1]), json!([-1]), json!(3)] {
            assert_eq!(parse(bad).unwrap_err().body()["error"]["param"], "prompt");
        }
        assert_eq!(CompletionRequest::parse(b"{}").unwrap_err().status(), 400);
        let many = json!({"prompt": vec!["a"; 100], "n": 2});
        assert_eq!(CompletionRequest::parse(many.to_string().as_bytes()).unwrap_err().status(), 400);
    }

    #[test]
    fn echo_comes_without_log_probabilities() {
        assert!(CompletionRequest::parse(br#"{"prompt": "a", "echo": true}"#).unwrap().echo);
        let error = CompletionRequest::parse(br#"{"prompt": "a", "echo": true, "logprobs": 1}"#).unwrap_err();
        assert_eq!(error.body()["error"]["param"], "echo");
    }
}
