//! From a model file to something that answers: the one place where all layers meet.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use lichen_backend::KvPrecision;
use lichen_cpu::{PAGE_TOKENS, ReadObserver};
use lichen_engine::{Engine, EngineConfig, KvGate, Placement};
use lichen_format::Metadata;
use lichen_generate::Pooling;
use lichen_hub::Reference;
use lichen_memory::{ModelBytes, Reservation, Residency};
use lichen_model::ModelSpec;

use crate::kv_gate::{self, Measurement};
use crate::language::ModelLanguage;
use crate::load::{ComputeArgs, Gate, LimitArgs, Limits, LoadArgs, Opened, QueueArgs, open, stem};
use crate::memory::Memory;
use crate::sessions::{self, ModelSessions};
use crate::spill::ModelTier;
use crate::{machine, output};

/// Where nobody watches memory, keys and values may take one part of so many of what is free.
const UNWATCHED_SHARE: u64 = 4;

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
    let placed = place(&KvGate::default())?;
    let gated = memory.filter(|_| queue.kv_gate == Gate::Auto && precision != KvPrecision::F32);
    let known = gated.and_then(|_| kv_gate::known(&opened));
    let unmeasured = gated.is_some() && known.is_none();
    let placed = if gated.is_some() { placed.with(known, place)? } else { placed };
    let (language, profile) = thread::scope(|scope| {
        // Both read much, and neither needs the other.
        let profile = scope.spawn(|| sessions::profile(&opened));
        (opened.language(), profile.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let language = Arc::new(language?);
    let Placed { mut config, needs, streamed, placement } = placed;
    let streaming = memory.filter(|_| streamed);
    let streamer = streaming.map(|memory| opened.stream(&name, memory, &needs, compute.threads()));
    let observer = streamer.transpose()?.flatten().map(|streamer| -> Arc<dyn ReadObserver> { streamer });
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
    let folder = memory.and_then(Memory::spill);
    let tier = folder.map(|folder| Arc::new(ModelTier::new(folder.clone(), profile.clone(), precision)));
    let (written, tier) = (tier.as_ref().map(Arc::downgrade), tier.map(|tier| tier as _));
    let engine = Engine::start_placed(executor, language.tokenizer.clone(), config, placement, tier)
        .context("the engine's thread could not be started")?;
    let engine = Arc::new(engine);
    // Passes of a measurement would stand in the way of streamed weights.
    if let Some(memory) = memory.filter(|_| unmeasured && !streamed) {
        let one_thread = ComputeArgs { threads: Some(NonZeroUsize::MIN), ..compute.clone() };
        Measurement::new(&opened, &one_thread, &language)?.run_when_idle(&name, memory, &engine)?;
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

impl Placed {
    /// Puts in force what is known of the precisions that the model bears. As long as nothing is known, those below 8
    /// bits are left out; the context stays the one that would fit with them, since they will most likely come.
    fn with(self, known: Option<KvGate>, place: impl Fn(&KvGate) -> Result<Self>) -> Result<Self> {
        let unknown = known.is_none();
        let gate = known.unwrap_or_else(KvGate::unmeasured);
        if gate.at_least(KvPrecision::Q4) != KvPrecision::Q4 && (!unknown || self.streamed) {
            // What was placed was too little.
            drop(self);
            return place(&gate);
        }
        let config = EngineConfig { kv_gate: gate, ..self.config };
        let floor = config.promised_precision();
        let promised =
            |placement: Placement| Placement { model: ModelBytes { floor, ..placement.model }, ..placement };
        Ok(Self { config, placement: self.placement.map(promised), ..self })
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
