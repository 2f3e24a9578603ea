//! Fields that chat and text completions share: how tokens are chosen, when to stop, how to stream.

use serde_json::Value;

use crate::{Error, Fields};

/// Most stop texts of one request. OpenAI allows 4; editors send long lists for code completion.
const MOST_STOPS: usize = 64;
/// Most entries of `logit_bias`, as OpenAI allows.
const MOST_BIASES: usize = 300;
/// Longest stop text in bytes: the engine holds back that much of the answer.
const LONGEST_STOP: usize = 1024;

/// How tokens are chosen; `None` leaves the choice to the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// Most tokens to generate: `max_completion_tokens`, else `max_tokens`.
    pub max_tokens: Option<usize>,
    /// 0 (most likely token) to 2.
    pub temperature: Option<f32>,
    /// Nucleus sampling, 0 to 1.
    pub top_p: Option<f32>,
    /// Keep this many tokens; 0 or negative keeps all.
    pub top_k: Option<usize>,
    /// Drop tokens below this share of the most likely one, 0 to 1.
    pub min_p: Option<f32>,
    /// `repeat_penalty` or `repetition_penalty`; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// `ignore_eos`: go on past end-of-generation tokens.
    pub ignore_end: bool,
}

impl Sampling {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        let repeat = match fields.number("repeat_penalty", 0.01..=100.0)? {
            None => fields.number("repetition_penalty", 0.01..=100.0)?,
            some => some,
        };
        let max_tokens = fields.count("max_tokens", 1)?;
        Ok(Self {
            max_tokens: fields.count("max_completion_tokens", 1)?.or(max_tokens),
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: fields.number("top_p", 0.0..=1.0)?,
            top_k: integer(fields, "top_k")?.map(|k| usize::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?,
            repetition_penalty: repeat,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            stop: stop(fields)?,
            ignore_end: fields.flag("ignore_eos")?.unwrap_or(false),
        })
    }
}

fn integer(fields: &Fields, name: &str) -> Result<Option<i64>, Error> {
    fields
        .get(name)
        .map(|value| value.as_i64().ok_or_else(|| Error::invalid(name, "must be an integer")))
        .transpose()
}

fn seed(fields: &Fields) -> Result<Option<u64>, Error> {
    match fields.get("seed").and_then(Value::as_u64) {
        Some(seed) => Ok(Some(seed)),
        // A negative seed is a seed like any other: its bits are taken.
        None => Ok(integer(fields, "seed")?.map(|seed| seed as u64)),
    }
}

/// Token ids as strings, as JSON has no other keys, with -100 to 100 each.
fn logit_bias(fields: &Fields) -> Result<Vec<(u32, f32)>, Error> {
    let wrong = || {
        let reason =
            format!("must be an object of up to {MOST_BIASES} token ids with a number from -100 to 100 each");
        Error::invalid("logit_bias", reason)
    };
    let Some(biases) = fields.get("logit_bias") else { return Ok(Vec::new()) };
    let biases = biases.as_object().filter(|biases| biases.len() <= MOST_BIASES).ok_or_else(wrong)?;
    let read = |(token, bias): (&String, &Value)| {
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((token.parse().ok()?, bias as f32))
    };
    biases.iter().map(|bias| read(bias).ok_or_else(wrong)).collect()
}

fn stop(fields: &Fields) -> Result<Vec<String>, Error> {
    let wrong = || {
        Error::invalid(
            "stop",
            format!("must be a string or up to {MOST_STOPS} strings of 1 to {LONGEST_STOP} bytes"),
        )
    };
    let items = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= MOST_STOPS => items.as_slice(),
        Some(value @ Value::String(_)) => std::slice::from_ref(value),
        Some(_) => return Err(wrong()),
    };
    items
        .iter()
        .map(|item| match item.as_str() {
            Some(text) if (1..=LONGEST_STOP).contains(&text.len()) => Ok(text.to_owned()),
            _ => Err(wrong()),
        })
        .collect()
}

/// Most answers to one prompt, as OpenAI allows.
const MOST_CHOICES: usize = 128;

/// `n`: how many answers are wanted.
pub(crate) fn choices(fields: &Fields) -> Result<usize, Error> {
    match fields.count("n", 1)? {
        Some(n) if n > MOST_CHOICES => {
            Err(Error::invalid("n", format!("must be an integer from 1 to {MOST_CHOICES}")))
        }
        n => Ok(n.unwrap_or(1)),
    }
}

/// `session_id`, else `prompt_cache_key`: the conversation whose state is worth keeping.
pub(crate) fn session(fields: &Fields) -> Result<Option<String>, Error> {
    let cache_key = fields.text("prompt_cache_key")?;
    Ok(fields.text("session_id")?.or(cache_key).map(str::to_owned))
}

/// How the answer is delivered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Piece by piece.
    pub stream: bool,
    /// `stream_options.include_usage`: a last chunk with the usage.
    pub include_usage: bool,
}

impl StreamOptions {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Error> {
        let include_usage = match fields.get("stream_options") {
            None => false,
            Some(Value::Object(options)) => match options.get("include_usage") {
                None | Some(Value::Null) => false,
                Some(Value::Bool(flag)) => *flag,
                Some(_) => {
                    return Err(Error::invalid("stream_options.include_usage", "must be true or false"));
                }
            },
            Some(_) => return Err(Error::invalid("stream_options", "must be an object")),
        };
        Ok(Self { stream: fields.flag("stream")?.unwrap_or(false), include_usage })
    }
}
