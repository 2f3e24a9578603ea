//! `lichen kernels`: what this binary can compute, and what of it this processor runs.

use anyhow::Result;
use lichen_cpu::table::GEMV;

use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> Result<()> {
    let mut rows = vec![["kernel", "format", "instructions", "supported"].map(str::to_owned)];
    rows.extend(GEMV.iter().map(|kernel| {
        let supported = if kernel.is_supported() { "yes" } else { "no" };
        ["gemv", kernel.dtype.name(), kernel.isa, supported].map(str::to_owned)
    }));
    output::text(&output::table(&rows))?;
    Ok(())
}
