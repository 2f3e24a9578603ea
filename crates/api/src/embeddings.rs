//! `POST /v1/embeddings`: request and answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::completion::tokens;
use crate::{Error, Fields, Prompt};

/// Most inputs of one request, as OpenAI allows.
const MOST_INPUTS: usize = 2048;

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRequest {
    /// The model's name, if given.
    pub model: Option<String>,
    /// What to embed, each to one vector.
    pub inputs: Vec<Prompt>,
    /// Vectors as base64 of little-endian `f32`, which OpenAI's clients ask for by themselves, instead of numbers.
    pub base64: bool,
}

impl EmbeddingRequest {
    /// Parses and checks a body.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming the first field that can't be served as it is.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        let mut fields = Fields::parse(body)?;
        // Cutting a vector off is right only for models that were trained for it.
        fields.refuse_unless("dimensions", |_| false)?;
        let base64 = match fields.text("encoding_format")? {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(Error::invalid("encoding_format", "must be float or base64")),
        };
        Ok(Self {
            model: fields.text("model")?.map(str::to_owned),
            inputs: inputs(fields.take("input"))?,
            base64,
        })
    }
}

fn inputs(value: Option<Value>) -> Result<Vec<Prompt>, Error> {
    let wrong = || {
        let reason = format!(
            "must be a text, token ids, or an array of 1 to {MOST_INPUTS} of either, none of them empty"
        );
        Error::invalid("input", reason)
    };
    let one = |item: Value| match item {
        Value::String(text) if !text.is_empty() => Ok(Prompt::Text(text)),
        Value::Array(ids) => tokens(&ids).map_err(|_| wrong()),
        _ => Err(wrong()),
    };
    match value {
        Some(Value::Array(items)) if matches!(items.first(), Some(Value::String(_) | Value::Array(_))) => {
            if items.len() > MOST_INPUTS {
                return Err(wrong());
            }
            items.into_iter().map(one).collect()
        }
        Some(value) => Ok(vec![one(value)?]),
        None => Err(wrong()),
    }
}

/// The answer: one vector per input, in order.
pub fn embeddings(model: &str, vectors: &[Vec<f32>], prompt_tokens: usize, base64: bool) -> Value {
    let data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(index, vector)| {
            let embedding = if base64 {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                Value::String(STANDARD.encode(bytes))
            } else {
                json!(vector)
            };
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens});
    json!({"object": "list", "data": data, "model": model, "usage": usage})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: Value) -> Result<EmbeddingRequest, Error> {
        EmbeddingRequest::parse(extra.to_string().as_bytes())
    }

    #[test]
    fn inputs_in_every_form() {
        let inputs = |input: Value| parse(json!({"input": input})).unwrap().inputs;
        assert_eq!(inputs(json!("a")), [Prompt::Text("a".into())]);
        assert_eq!(inputs(json!(["a", "b"])), [Prompt::Text("a".into()), Prompt::Text("b".into())]);
        assert_eq!(inputs(json!([1, 2])), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(inputs(json!([[1], [2, 3]])), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
    }

    #[test]
    fn what_can_not_be_served_is_refused_by_name() {
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": ""}), "input"),
            (json!({"input": ["a", ""]}), "input"),
            (json!({"input": [[]]}), "input"),
            (json!({"input": [1, "a"]}), "input"),
            (json!({"input": vec!["a"; MOST_INPUTS + 1]}), "input"),
            (json!({"input": "a", "dimensions": 8}), "dimensions"),
            (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        ] {
            assert_eq!(parse(body).unwrap_err().body()["error"]["param"], param);
        }
    }

    #[test]
    fn base64_is_little_endian_single_precision() {
        let answer = embeddings("m", &[vec![1.0, -2.0]], 3, true);
        assert_eq!(answer["data"][0]["embedding"], "AACAPwAAAMA=");
        assert_eq!(embeddings("m", &[vec![0.5]], 3, false)["data"][0]["embedding"], json!([0.5]));
        assert_eq!(answer["usage"]["total_tokens"], 3);
    }
}
