//! What the gateway reads of a request body: the model's name, whether to stream, and the beginning of the prompt. The
//! rest is checked to be JSON and otherwise left to the node.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

use foldhash::quality::FixedState;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes of a prompt that are told apart as one. Shorter prompts have no prefix to speak of.
const BLOCK: usize = 1024;
/// What a client writes before the nonce of its system prompt; see `lichen_api::without_nonce`.
const NONCE_HEADER: &[u8] = b"x-anthropic-billing-header:";
/// The nonce's name.
const NONCE_FIELD: &[u8] = b"cch=";
/// How far into a prompt the header is looked for.
const NONCE_REACH: usize = 1024;

/// A body that can't be routed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// It is no JSON object.
    #[error("is not valid JSON: {0}")]
    NotJson(String),
    /// `model` is no string.
    #[error("must be a string: the name of a model")]
    Model,
}

/// What was read of a body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scanned {
    /// The model's name, if given.
    pub model: Option<String>,
    /// Where the name stands in the body, quotes included.
    pub model_at: Range<usize>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// The session that the body names.
    pub session: Option<String>,
    /// One hash for each block of the prompt, each over all that comes before it too: two prompts that begin alike
    /// have hashes that begin alike.
    pub prefix: Vec<u64>,
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

impl Scanned {
    /// Reads a body in one pass, without copying more of it than the names.
    ///
    /// # Errors
    /// [`BodyError`].
    pub fn read(body: &[u8]) -> Result<Self, BodyError> {
        let fields: Fields<'_> =
            serde_json::from_slice(body).map_err(|error| BodyError::NotJson(error.to_string()))?;
        let (model, model_at) = match fields.model {
            Some(raw) => (Some(text(raw).ok_or(BodyError::Model)?), place(body, raw)),
            None => (None, 0..0),
        };
        let mut chain = Chain::new(model.as_deref().unwrap_or_default());
        // The order in which templates put them into the prompt.
        let parts =
            [fields.tools, fields.system, fields.instructions, fields.messages, fields.prompt, fields.input];
        for part in parts.into_iter().flatten() {
            chain.add(&without_nonce(part.get().as_bytes()));
        }
        Ok(Self {
            model,
            model_at,
            stream: fields.stream.is_some_and(|raw| raw.get() == "true"),
            session: fields.session_id.and_then(text),
            prefix: chain.hashes,
        })
    }

    /// The prefix as another model's. A node keeps the state of each model apart.
    #[must_use]
    pub fn prefix_for(&self, model: &str) -> Cow<'_, [u64]> {
        if self.model.as_deref() == Some(model) {
            return Cow::Borrowed(&self.prefix);
        }
        let salt = hash(0, model.as_bytes());
        Cow::Owned(self.prefix.iter().map(|block| block ^ salt).collect())
    }
}

fn text(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// Where a value stands in the body that it was borrowed from.
fn place(body: &[u8], raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr() as usize - body.as_ptr() as usize;
    start..start + raw.get().len()
}

/// Hashes of the blocks of a prompt.
struct Chain {
    last: u64,
    hashes: Vec<u64>,
}

impl Chain {
    fn new(model: &str) -> Self {
        Self { last: hash(0, model.as_bytes()), hashes: Vec::new() }
    }

    /// Adds the whole blocks of a part. What is left over is hashed into what follows: of the last part, which grows
    /// from turn to turn, it counts for nothing.
    fn add(&mut self, part: &[u8]) {
        let blocks = part.chunks_exact(BLOCK);
        let rest = blocks.remainder();
        for block in blocks {
            self.last = hash(self.last, block);
            self.hashes.push(self.last);
        }
        self.last = hash(self.last, rest);
    }
}

fn hash(before: u64, bytes: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write_u64(before);
    hasher.write(bytes);
    hasher.finish()
}

/// A part of a prompt, as JSON, without the nonce that would make every request begin differently.
fn without_nonce(part: &[u8]) -> Cow<'_, [u8]> {
    match nonce(&part[..part.len().min(NONCE_REACH)]) {
        Some(at) => Cow::Owned([&part[..at.start], &part[at.end..]].concat()),
        None => Cow::Borrowed(part),
    }
}

fn nonce(head: &[u8]) -> Option<Range<usize>> {
    let find = |from: usize, what: &[u8]| {
        head[from..].windows(what.len()).position(|window| window == what).map(|at| from + at + what.len())
    };
    let start = find(find(0, NONCE_HEADER)?, NONCE_FIELD)?;
    let length = head[start..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    Some(start..start + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn scan(body: &serde_json::Value) -> Scanned {
        Scanned::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_name_is_found_where_it_stands() {
        let body = br#" {"messages":[{"model":"inner"}], "model" : "a\"b" ,"stream":true}"#;
        let scanned = Scanned::read(body).unwrap();
        assert_eq!((scanned.model.as_deref(), scanned.stream), (Some("a\"b"), true));
        assert_eq!(&body[scanned.model_at], br#""a\"b""#);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert!(matches!(Scanned::read(b"{\"a\":"), Err(BodyError::NotJson(_))));
        assert!(matches!(Scanned::read(b"[]"), Err(BodyError::NotJson(_))));
        assert_eq!(Scanned::read(b"{\"model\": 3}"), Err(BodyError::Model));
        assert_eq!(Scanned::read(b"{\"model\": null}").unwrap(), Scanned::read(b"{}").unwrap());
    }

    #[test]
    fn prompts_that_begin_alike_have_hashes_that_begin_alike() {
        let ask = |turns: usize| {
            let messages: Vec<_> = (0..turns)
                .map(|turn| json!({"role": "user", "content": format!("{turn}").repeat(3000)}))
                .collect();
            scan(&json!({"model": "m", "messages": messages, "max_tokens": turns}))
        };
        let (short, long) = (ask(2), ask(4));
        assert!(short.prefix.len() > 4);
        assert_eq!(long.prefix[..short.prefix.len()], short.prefix);
        assert_ne!(ask(2).prefix_for("m"), ask(2).prefix_for("n"));
    }

    #[test]
    fn a_nonce_at_the_head_of_the_system_prompt_changes_no_hash() {
        let ask = |cch: &str| {
            let header = format!("x-anthropic-billing-header: cc_version=2.1; cch={cch};\n");
            let text = "Be kind. ".repeat(1000);
            scan(
                &json!({"model": "m", "system": [{"type": "text", "text": header}, {"type": "text", "text": text}]}),
            )
        };
        assert!(ask("a1b2c").prefix.len() > 4);
        assert_eq!(ask("a1b2c").prefix, ask("fffff").prefix);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Scanned::read(&bytes);
        }

        #[test]
        fn the_place_of_the_name_holds_the_name(model in any::<String>(), before in any::<String>()) {
            let body = json!({"a": before, "model": model, "z": [1]}).to_string();
            let scanned = Scanned::read(body.as_bytes()).unwrap();
            let found: String = serde_json::from_slice(&body.as_bytes()[scanned.model_at.clone()]).unwrap();
            prop_assert_eq!(&found, &model);
            prop_assert_eq!(scanned.model, Some(model));
        }
    }
}
