//! The vocabulary and the chat template from the metadata of a checkpoint.

use std::borrow::Cow;

use anyhow::{Context, Result, bail};
use lichen_format::{Metadata, Strings};
use lichen_text::{ChatTemplate, TokenKind, Vocabulary, VocabularyModel};

/// Key of the kind of tokenizer.
pub(crate) const MODEL: &str = "tokenizer.ggml.model";

/// Reads the `tokenizer.ggml.*` keys.
///
/// # Errors
/// The model has no tokens, or a kind of tokenizer that is not supported.
pub(crate) fn vocabulary(metadata: &Metadata) -> Result<Vocabulary<'_>> {
    let kind = metadata
        .str(MODEL)
        .context("the model file has no tokenizer (key tokenizer.ggml.model); convert it again with one")?;
    let Some(model) = VocabularyModel::from_gguf(kind) else {
        bail!("the tokenizer model {kind:?} is not supported; supported are gpt2 and llama");
    };
    let sentencepiece = model == VocabularyModel::SentencePiece;
    let merges = if sentencepiece { None } else { Some(required(metadata, "merges", Metadata::strings)?) };
    let kinds = optional(metadata, "token_type", Metadata::i32s)?.unwrap_or_default();
    let id = |name: &str| optional(metadata, name, Metadata::u32);
    let flag = |name: &str, absent: bool| -> Result<bool> {
        Ok(optional(metadata, name, Metadata::bool)?.unwrap_or(absent))
    };
    Ok(Vocabulary {
        model,
        pre: optional(metadata, "pre", Metadata::str)?.unwrap_or_default().to_owned(),
        tokens: texts(required(metadata, "tokens", Metadata::strings)?),
        scores: optional(metadata, "scores", Metadata::f32s)?.unwrap_or_default().to_vec(),
        kinds: kinds.into_iter().map(TokenKind::from_gguf).collect(),
        merges: merges.map(texts).unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        add_bos: flag("add_bos_token", sentencepiece)?,
        add_eos: flag("add_eos_token", false)?,
        add_space_prefix: flag("add_space_prefix", true)?,
        strip_after_control: metadata.str("general.architecture") == Some("phi3"),
    })
}

fn texts(strings: &Strings) -> Vec<Cow<'_, str>> {
    strings.iter().map(Cow::Borrowed).collect()
}

/// The value of `tokenizer.ggml.<name>`; a value of another type is an error, since leaving it out changes the answers.
fn optional<'m, T>(
    metadata: &'m Metadata,
    name: &str,
    read: impl Fn(&'m Metadata, &str) -> Option<T>,
) -> Result<Option<T>> {
    let key = format!("tokenizer.ggml.{name}");
    match read(metadata, &key) {
        None if metadata.get(&key).is_some() => {
            bail!("metadata key {key} has the wrong type or a value out of range; convert the model again")
        }
        value => Ok(value),
    }
}

/// As [`optional`], for what must be there.
fn required<'m, T>(
    metadata: &'m Metadata,
    name: &str,
    read: impl Fn(&'m Metadata, &str) -> Option<T>,
) -> Result<T> {
    optional(metadata, name, read)?
        .with_context(|| format!("metadata key tokenizer.ggml.{name} is missing; convert the model again"))
}

/// Key of the chat template.
pub(crate) const TEMPLATE: &str = "tokenizer.chat_template";

/// The chat template, if the model has one.
///
/// # Errors
/// It is no valid template.
pub(crate) fn chat_template(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
) -> Result<Option<ChatTemplate>> {
    let Some(source) = metadata.str(TEMPLATE) else { return Ok(None) };
    let text =
        |id: Option<u32>| id.and_then(|id| vocabulary.tokens.get(id as usize)).map_or("", |token| token);
    Ok(Some(ChatTemplate::new(source, text(vocabulary.bos), text(vocabulary.eos))?))
}
