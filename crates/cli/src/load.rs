//! How models are loaded: options, limits, and model files that have been read.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lichen_backend::{Executor, KvPrecision};
use lichen_cpu::{CpuConfig, Numerics, PAGE_TOKENS, ReadObserver};
use lichen_engine::EngineConfig;
use lichen_format::Checkpoint;
use lichen_hub::{Hub, HubConfig, ProgressBar, Reference};
use lichen_model::ModelSpec;
use lichen_session::ModelTag;
use lichen_text::Tokenizer;

use crate::executor::executor;
use crate::language::ModelLanguage;
use crate::{machine, vocabulary};

/// How a model is loaded.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LoadArgs {
    /// Most tokens of prompt and answer together; the model's own limit if not given
    #[arg(long, env = "LICHEN_CTX_CAP", value_name = "TOKENS")]
    pub(crate) ctx_cap: Option<NonZeroU32>,

    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}

/// What a model is computed with.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ComputeArgs {
    /// Threads that compute; all hardware threads if not given
    #[arg(short, long, env = "LICHEN_THREADS", value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,

    /// How numbers are computed
    #[arg(long, env = "LICHEN_NUMERICS", value_enum, default_value_t = NumericsArg::Fast)]
    pub(crate) numerics: NumericsArg,

    /// Give the same bits whatever else is computed at the same time; the CPU backend always does, at no cost
    #[arg(long)]
    pub(crate) deterministic: bool,
}

/// How numbers are computed, as an option.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum NumericsArg {
    /// Activations in 8 bits, KV in half precision
    Fast,
    /// Everything in single precision: slow, for comparison
    Float32,
}

impl ComputeArgs {
    /// How keys and values are stored while memory is not short.
    pub(crate) fn kv_precision(&self, queue: &QueueArgs) -> KvPrecision {
        match self.numerics {
            NumericsArg::Fast => queue.kv,
            NumericsArg::Float32 => KvPrecision::F32,
        }
    }

    /// Threads that compute.
    pub(crate) fn threads(&self) -> usize {
        self.threads.map_or_else(machine::threads, NonZeroUsize::get)
    }

    fn config(&self) -> CpuConfig {
        CpuConfig {
            threads: self.threads(),
            numerics: match self.numerics {
                NumericsArg::Fast => Numerics::Fast,
                NumericsArg::Float32 => Numerics::Float32,
            },
            ..CpuConfig::default()
        }
    }
}

/// A precision of keys and values that serves; single precision comes with `--numerics float32`.
fn kv_precision(text: &str) -> Result<KvPrecision, String> {
    match text.parse()? {
        KvPrecision::F32 => Err("f32 comes with --numerics float32".to_owned()),
        precision => Ok(precision),
    }
}

/// How many requests a model works on, and what it keeps of them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LimitArgs {
    /// Most requests that run at once; others wait
    #[arg(long, env = "LICHEN_MAX_CONCURRENT", value_name = "N", default_value_t = MAX_CONCURRENT)]
    pub(crate) max_concurrent: NonZeroUsize,

    /// Most sessions whose state is kept in preference to that of requests without a session
    #[arg(long, env = "LICHEN_MAX_SESSIONS", value_name = "N", default_value_t = MAX_SESSIONS)]
    pub(crate) max_sessions: usize,

    /// Take a model whose weights are larger than memory: they are read from disk again and again, which is slow
    #[arg(long, env = "LICHEN_OVERCOMMIT_WEIGHTS")]
    pub(crate) overcommit_weights: bool,

    #[command(flatten)]
    pub(crate) queue: QueueArgs,
}

impl LimitArgs {
    /// The limits that an engine of this model would have.
    pub(crate) fn config(&self, load: &LoadArgs, spec: &ModelSpec) -> EngineConfig {
        let limits = Limits {
            ctx_cap: load.ctx_cap,
            max_concurrent: self.max_concurrent,
            max_sessions: self.max_sessions,
        };
        limits.config(&self.queue, spec, load.compute.kv_precision(&self.queue))
    }
}

/// What all models of a process have in common beside the hardware.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct QueueArgs {
    /// Most requests that wait; others are told to come back later
    #[arg(long, env = "LICHEN_MAX_QUEUE", value_name = "N", default_value_t = 64)]
    max_queue: usize,

    /// Seconds that a request waits for memory before it is told to come back later
    #[arg(long, env = "LICHEN_QUEUE_TIMEOUT", value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..))]
    queue_timeout: u64,

    /// How keys and values are stored: f16, q8, q5 or q4; full pages take fewer bits when memory runs short
    #[arg(long, env = "LICHEN_KV", value_name = "PRECISION", default_value_t = KvPrecision::F16,
          value_parser = kv_precision)]
    kv: KvPrecision,

    /// Whether a precision that changes the model's predictions too much is left out when memory runs short. It is
    /// measured once for a file, while the model is idle; until then q5 and q4 are left out
    #[arg(long, env = "LICHEN_KV_GATE", value_enum, default_value_t = Gate::Auto)]
    pub(crate) kv_gate: Gate,

    /// Guess tokens from what the text has said before; answers are the same either way
    #[arg(long, env = "LICHEN_DRAFT", value_enum, default_value_t = Draft::Ngram)]
    draft: Draft,
}

/// The precisions that keys and values can have while a server runs, from fine to coarse.
pub(crate) const PRECISIONS: [KvPrecision; 4] =
    [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];
pub(crate) const MAX_CONCURRENT: NonZeroUsize = NonZeroUsize::new(8).expect("8 is not 0");
pub(crate) const MAX_SESSIONS: usize = 64;

/// The limits of one model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) ctx_cap: Option<NonZeroU32>,
    pub(crate) max_concurrent: NonZeroUsize,
    pub(crate) max_sessions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ctx_cap: None, max_concurrent: MAX_CONCURRENT, max_sessions: MAX_SESSIONS }
    }
}

/// How tokens are guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Draft {
    /// From repetitions in the text
    Ngram,
    /// Not at all
    Off,
}

/// Whether precisions are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Gate {
    /// Once for a file
    Auto,
    /// Not at all; every precision is used
    Off,
}

impl Limits {
    /// The limits of an engine: every request at its full length. What memory allows is seen while it runs.
    pub(crate) fn config(&self, queue: &QueueArgs, spec: &ModelSpec, precision: KvPrecision) -> EngineConfig {
        let context_cap = self.ctx_cap.map_or(spec.context, |cap| cap.get().min(spec.context)) as usize;
        let number_bytes = if precision == KvPrecision::F32 { 4 } else { 2 };
        EngineConfig {
            context_cap,
            max_running: self.max_concurrent.get(),
            queue_limit: queue.max_queue,
            queue_timeout: Duration::from_secs(queue.queue_timeout),
            kv_pages: context_cap.div_ceil(PAGE_TOKENS).saturating_mul(self.max_concurrent.get()),
            max_sessions: self.max_sessions,
            kv_bytes_per_token: spec.state_bytes_per_token(number_bytes) as u64,
            kv_precision: precision,
            speculate: queue.draft == Draft::Ngram,
            ..EngineConfig::default()
        }
    }
}

/// A model file that has been read and understood, but is not running.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) spec: ModelSpec,
    pub(crate) tag: OnceLock<ModelTag>,
}

/// The hub as the environment sets it up.
pub(crate) fn hub() -> Hub {
    Hub::new(HubConfig::from_env())
}

/// Fetches a model if it is not here, and reads it.
///
/// # Errors
/// It can't be fetched, the file is broken, or the model is of a kind that is not supported.
pub(crate) fn open(reference: &Reference, ctx_cap: Option<NonZeroU32>) -> Result<Opened> {
    open_file(hub().pull(reference, &ProgressBar::new())?.path, ctx_cap)
}

/// Reads a model that is here.
///
/// # Errors
/// The file is broken, or the model is of a kind that is not supported.
pub(crate) fn open_file(path: PathBuf, ctx_cap: Option<NonZeroU32>) -> Result<Opened> {
    let checkpoint = Checkpoint::open(&path)?;
    let spec = lichen_model::import(&checkpoint, ctx_cap.map(NonZeroU32::get))
        .with_context(|| path.display().to_string())?;
    Ok(Opened { path, checkpoint, spec, tag: OnceLock::new() })
}

impl Opened {
    /// Tokenizer and chat template.
    ///
    /// # Errors
    /// The file has none that is supported.
    pub(crate) fn language(&self) -> Result<ModelLanguage> {
        let metadata = &self.checkpoint.metadata;
        let read = || -> Result<ModelLanguage> {
            let vocabulary = vocabulary::vocabulary(metadata)?;
            // Fewer is normal: the rows of the embedding are often padded.
            let (tokens, rows) = (vocabulary.tokens.len(), self.spec.embed.vocab);
            if tokens > rows {
                bail!(
                    "the tokenizer has {tokens} tokens but the embedding only {rows}; convert the model again"
                );
            }
            let template = vocabulary::chat_template(metadata, &vocabulary)?;
            let tokenizer = Arc::new(Tokenizer::new(vocabulary)?);
            Ok(ModelLanguage { tokenizer, template })
        };
        read().with_context(|| self.path.display().to_string())
    }

    /// The stem of its file.
    pub(crate) fn name(&self) -> String {
        stem(&self.path)
    }

    /// The model bound to this machine. The observer is told which weights are read.
    ///
    /// # Errors
    /// The backend refuses it.
    pub(crate) fn executor(
        &self,
        args: &ComputeArgs,
        observer: Option<Arc<dyn ReadObserver>>,
    ) -> Result<Box<dyn Executor>> {
        executor(self.spec.lower(), &self.checkpoint, args.config(), observer)
            .with_context(|| self.path.display().to_string())
    }
}

/// The name of a file without its extension.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
