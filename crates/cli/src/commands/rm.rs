//! `lichen rm`: remove a model from the cache.

use anyhow::{Result, bail};
use lichen_hub::Reference;

use crate::load::hub;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Reference by which the model was pulled, as `lichen list` shows it
    model: Reference,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Reference::Path(path) = &args.model {
        bail!("{} is a path of your own; only models of the cache are removed", path.display());
    }
    let freed = hub().remove(&args.model)?;
    output::line(format_args!("removed {}, {} freed", args.model, output::bytes(freed)))?;
    Ok(())
}
