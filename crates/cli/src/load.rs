//! From a model's reference to something that answers: the one place where all layers meet.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lichen_backend::{Executor, KvPrecision};
use lichen_cpu::{CpuConfig, Numerics, PAGE_TOKENS, ReadObserver};
use lichen_engine::{Engine, EngineConfig, KvGate, Placement};
use lichen_format::{Checkpoint, Metadata};
use lichen_generate::Pooling;
use lichen_hub::{Hub, HubConfig, ProgressBar, Reference};
use lichen_memory::{ModelBytes, Reservation, Residency};
use lichen_model::ModelSpec;
use lichen_text::Tokenizer;

use crate::executor::executor;
use crate::kv_gate::{self, Measurement};
use crate::language::ModelLanguage;
use crate::memory::Memory;
use crate::sessions::ModelSessions;
use crate::spill::ModelTier;
use crate::{machine, output, sessions, vocabulary};

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
    max_concurrent: NonZeroUsize,

    /// Most sessions whose state is kept in preference to that of requests without a session
    #[arg(long, env = "LICHEN_MAX_SESSIONS", value_name = "N", default_value_t = MAX_SESSIONS)]
    max_sessions: usize,

    /// Take a model whose weights are larger than memory: they are read from disk again and again, which is slow
    #[arg(long, env = "LICHEN_OVERCOMMIT_WEIGHTS")]
    pub(crate) overcommit_weights: bool,

    #[command(flatten)]
    queue: QueueArgs,
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
    kv_gate: Gate,

    /// Guess tokens from what the text has said before; answers are the same either way
    #[arg(long, env = "LICHEN_DRAFT", value_enum, default_value_t = Draft::Ngram)]
    draft: Draft,
}

/// The precisions that keys and values can have while a server runs, from fine to coarse.
pub(crate) const PRECISIONS: [KvPrecision; 4] =
    [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];
/// Where nobody watches memory, keys and values may take one part of so many of what is free.
const UNWATCHED_SHARE: u64 = 4;
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
}

/// A running model.
pub(crate) struct Loaded {
    /// The stem of its file.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) engine: Arc<Engine>,
    pub(crate) language: Arc<ModelLanguage>,
    pub(crate) sessions: Arc<ModelSessions>,
    /// How the file wants embeddings made.
    pub(crate) pooling: Pooling,
    /// What it needs before it has taken a request.
    pub(crate) bytes: u64,
    spec: ModelSpec,
    precision: KvPrecision,
    /// Who watches memory for this model alone.
    _watch: Option<(Memory, Reservation)>,
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
    Ok(Opened { path, checkpoint, spec })
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

/// Opens a model and starts its engine.
///
/// # Errors
/// As [`open`], or the backend refuses the model.
pub(crate) fn load(reference: &Reference, args: &LoadArgs, limits: &LimitArgs) -> Result<Loaded> {
    let of_model = Limits {
        ctx_cap: args.ctx_cap,
        max_concurrent: limits.max_concurrent,
        max_sessions: limits.max_sessions,
    };
    let watch = limits.overcommit_weights.then(|| Memory::watch(None, true)).transpose()?;
    let opened = open(reference, args.ctx_cap)?;
    let within = watch.as_ref().map(|(memory, _)| (memory, memory.for_models()));
    let loaded = start(opened, None, &args.compute, &limits.queue, of_model, within)?;
    Ok(Loaded { _watch: watch, ..loaded })
}

/// Starts the engine of a model, within the memory that is watched and so many bytes of it.
///
/// # Errors
/// It has no tokenizer that is supported, there is no room for it, or the backend refuses it.
pub(crate) fn start(
    opened: Opened,
    name: Option<&str>,
    compute: &ComputeArgs,
    queue: &QueueArgs,
    limits: Limits,
    within: Option<(&Memory, u64)>,
) -> Result<Loaded> {
    let memory = within.map(|(memory, _)| memory);
    let precision = compute.kv_precision(queue);
    let name = name.map_or_else(|| stem(&opened.path), str::to_owned);
    let place = |gate: &KvGate| -> Result<Placed> {
        let wanted = |ctx_cap| EngineConfig {
            kv_gate: gate.clone(),
            ..Limits { ctx_cap, ..limits }.config(queue, &opened.spec, precision)
        };
        let (config, needs) = opened.fit(wanted, limits.ctx_cap, within)?;
        let streamed = memory.is_some_and(|memory| memory.must_stream(&needs));
        let placement = memory.map(|memory| memory.place(&name, &opened.path, &needs)).transpose()?;
        Ok(Placed { config, needs, streamed, placement })
    };
    // What doesn't fit is refused before any more of the file is read.
    let mut placed = place(&KvGate::default())?;
    let streamed = memory.filter(|_| placed.streamed);
    let streamer = streamed.map(|memory| opened.stream(&name, memory, &placed.needs, compute.threads()));
    let observer = streamer.transpose()?.flatten().map(|streamer| -> Arc<dyn ReadObserver> { streamer });
    let language = Arc::new(opened.language()?);
    let gated = memory.filter(|_| queue.kv_gate == Gate::Auto && precision != KvPrecision::F32);
    let mut measurement = None;
    if let Some(memory) = gated {
        let measured_by =
            |compute: &ComputeArgs| Measurement::new(&opened, compute, &language, observer.clone());
        (placed, measurement) = with_gate(placed, place, measured_by, compute, memory)?;
    }
    let Placed { mut config, needs, placement, .. } = placed;
    if limits.ctx_cap.is_none() && config.context_cap < opened.spec.context as usize {
        let (fits, context) = (config.context_cap, opened.spec.context);
        output::note(format_args!("memory allows a context of {fits} tokens, the model {context}"));
    }
    kv_gate::warn(&name, &config.kv_gate, precision);
    if let Some(memory) = memory {
        memory.note_gate(&name, &config.kv_gate);
    } else {
        // Nobody watches: keys and values of past texts may come to a quarter of what is free now.
        let page = config.kv_bytes_per_token * PAGE_TOKENS as u64;
        let free = machine::memory().map_or(u64::MAX, |(_, available)| available);
        config.kv_pages = config.kv_pages.min((free / UNWATCHED_SHARE / page.max(1)) as usize);
    }
    let executor = opened.executor(compute, observer)?;
    let (profile, folder) = (sessions::profile(&opened), memory.and_then(Memory::spill));
    let tier = folder.map(|folder| Arc::new(ModelTier::new(folder.clone(), profile.clone(), precision)));
    let (written, tier) = (tier.as_ref().map(Arc::downgrade), tier.map(|tier| tier as _));
    let engine = Engine::start_placed(executor, language.tokenizer.clone(), config, placement, tier)
        .context("the engine's thread could not be started")?;
    let engine = Arc::new(engine);
    if let (Some(memory), Some(measurement)) = (memory, measurement) {
        measurement.run_when_idle(&name, memory, &engine)?;
    }
    if let (Some(folder), Some(tier)) = (folder, written) {
        folder.join(&engine, tier);
    }
    Ok(Loaded {
        name,
        sessions: Arc::new(ModelSessions::new(engine.clone(), profile)),
        pooling: pooling(&opened.checkpoint.metadata),
        path: opened.path,
        engine,
        language,
        bytes: needs.with_context(Residency::Resident, needs.context_cap),
        spec: opened.spec,
        precision,
        _watch: None,
    })
}

/// A model's limits and needs with one gate, and what was reserved for it.
struct Placed {
    config: EngineConfig,
    needs: ModelBytes,
    /// Not all weights have room.
    streamed: bool,
    placement: Option<Placement>,
}

/// Places a model with what is remembered of the precisions that it bears. What isn't known is measured later if the
/// model has a context as long without; else now. Where weights are streamed it isn't measured later.
fn with_gate(
    placed: Placed,
    place: impl Fn(&KvGate) -> Result<Placed>,
    measured_by: impl Fn(&ComputeArgs) -> Result<Measurement>,
    compute: &ComputeArgs,
    memory: &Memory,
) -> Result<(Placed, Option<Measurement>)> {
    let one_thread = ComputeArgs { threads: Some(NonZeroUsize::MIN), ..compute.clone() };
    let measurement = measured_by(&one_thread)?;
    let again = |placed: Placed, gate: KvGate| {
        if gate.at_least(KvPrecision::Q4) == KvPrecision::Q4 {
            let config = EngineConfig { kv_gate: gate, ..placed.config };
            return Ok(Placed { config, ..placed });
        }
        // What was placed was too little.
        drop(placed);
        place(&gate)
    };
    if let Some(known) = measurement.recall() {
        return Ok((again(placed, known)?, None));
    }
    let context_cap = placed.config.context_cap;
    match again(placed, KvGate::unmeasured()) {
        // Passes of a measurement would stand in the way of streamed weights.
        Ok(careful) if careful.config.context_cap == context_cap => {
            let later = (!careful.streamed).then_some(measurement);
            Ok((careful, later))
        }
        _ => {
            let gate = measured_by(compute)?.run_within(memory)?;
            Ok((place(&gate)?, None))
        }
    }
}

impl Loaded {
    /// Applies new limits to the running engine; the weights stay as they are.
    ///
    /// # Errors
    /// The context is longer than the one that the model was loaded for.
    pub(crate) fn limiter(&self) -> impl Fn(&QueueArgs, Limits) -> Result<()> + Send + Sync + 'static {
        let (engine, spec, precision) = (self.engine.clone(), self.spec.clone(), self.precision);
        move |queue, limits| {
            if limits.ctx_cap.is_some_and(|cap| cap.get() > spec.context) {
                bail!("the model was loaded for {} tokens; load it again for more", spec.context);
            }
            let config = limits.config(queue, &spec, precision);
            engine.reconfigure(|running| {
                let kv_gate = std::mem::take(&mut running.kv_gate);
                *running = EngineConfig { kv_gate, ..config };
            });
            Ok(())
        }
    }
}

/// How hidden states become one vector, by the numbers that GGUF gives the ways; models that say nothing get the mean.
fn pooling(metadata: &Metadata) -> Pooling {
    let architecture = metadata.str("general.architecture").unwrap_or_default();
    match metadata.u32(&format!("{architecture}.pooling_type")) {
        Some(2) => Pooling::First,
        Some(3) => Pooling::Last,
        _ => Pooling::Mean,
    }
}

/// The name of a file without its extension.
pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
