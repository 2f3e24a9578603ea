//! `lichen devices`: what this machine offers to compute with.

use anyhow::Result;
use lichen_cpu::table::instruction_sets;

use crate::{machine, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let unknown = || "unknown".to_owned();
    let memory = machine::memory().map_or_else(unknown, |(total, available)| {
        format!("{} ({} available)", output::bytes(total), output::bytes(available))
    });
    let instructions = instruction_sets().collect::<Vec<_>>().join(" ");
    let head = ["device", "backend", "name", "threads", "memory", "instructions"].map(str::to_owned);
    let cpu = [
        "0".to_owned(),
        "cpu".to_owned(),
        machine::processor().unwrap_or_else(unknown),
        machine::threads().to_string(),
        memory,
        instructions,
    ];
    output::text(&output::table(&[head, cpu]))?;
    Ok(())
}
