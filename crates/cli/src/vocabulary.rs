//! The vocabulary and the chat template from the metadata of a checkpoint.

use anyhow::{Context, Result, bail};
use lichen_format::Metadata;
use lichen_text::{ChatTemplate, TokenKind, Vocabulary, VocabularyModel};

/// Reads the `tokenizer.ggml.*` keys.
///
/// # Errors
/// The model has no tokens, or a kind of tokenizer that is not supported.
pub(crate) fn vocabulary(metadata: &Metadata) -> Result<Vocabulary> {
    let kind = metadata
        .str("tokenizer.ggml.model")
        .context("the model file has no tokenizer (key tokenizer.ggml.model); convert it again with one")?;
    let Some(model) = VocabularyModel::from_gguf(kind) else {
        bail!("the tokenizer model {kind:?} is not supported; supported are gpt2 and llama");
    };
    let key = "tokenizer.ggml.tokens";
    let tokens = metadata.strings(key).with_context(|| {
        format!("metadata key {key} is missing or has the wrong type; convert the model again")
    })?;
    let sentencepiece = model == VocabularyModel::SentencePiece;
    let kinds = metadata.i32s("tokenizer.ggml.token_type").unwrap_or_default();
    let flag = |key: &str, absent: bool| metadata.bool(&format!("tokenizer.ggml.{key}")).unwrap_or(absent);
    Ok(Vocabulary {
        model,
        pre: metadata.str("tokenizer.ggml.pre").unwrap_or_default().to_owned(),
        tokens: tokens.to_vec(),
        scores: metadata.f32s("tokenizer.ggml.scores").unwrap_or_default().to_vec(),
        kinds: kinds.into_iter().map(TokenKind::from_gguf).collect(),
        merges: metadata.strings("tokenizer.ggml.merges").unwrap_or_default().to_vec(),
        bos: metadata.u32("tokenizer.ggml.bos_token_id"),
        eos: metadata.u32("tokenizer.ggml.eos_token_id"),
        eot: metadata.u32("tokenizer.ggml.eot_token_id"),
        unk: metadata.u32("tokenizer.ggml.unknown_token_id"),
        add_bos: flag("add_bos_token", sentencepiece),
        add_eos: flag("add_eos_token", false),
        add_space_prefix: flag("add_space_prefix", true),
        strip_after_control: metadata.str("general.architecture") == Some("phi3"),
    })
}

/// Key of the chat template.
pub(crate) const TEMPLATE: &str = "tokenizer.chat_template";

/// The chat template, if the model has one.
///
/// # Errors
/// It is no valid template.
pub(crate) fn chat_template(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Option<ChatTemplate>> {
    let Some(source) = metadata.str(TEMPLATE) else { return Ok(None) };
    let text =
        |id: Option<u32>| id.and_then(|id| vocabulary.tokens.get(id as usize)).map_or("", String::as_str);
    Ok(Some(ChatTemplate::new(source, text(vocabulary.bos), text(vocabulary.eos))?))
}
