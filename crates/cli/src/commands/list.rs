//! `lichen list`: the models of the cache, or of the catalogue.

use anyhow::Result;
use lichen_hub::{CachedModel, CatalogueEntry};

use crate::load::hub;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show the catalogue, which can be pulled by name, instead
    #[arg(long)]
    catalogue: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let hub = hub();
    if args.catalogue {
        let rows: Vec<_> = hub.catalogue().entries().iter().map(entry).collect();
        output::text(&output::table(&rows))?;
        return Ok(());
    }
    let models = hub.list()?;
    if models.is_empty() {
        output::note("the cache is empty; `lichen list --catalogue` shows what can be pulled by name");
    }
    let rows: Vec<_> = models.iter().map(cached).collect();
    output::text(&output::table(&rows))?;
    Ok(())
}

fn entry(entry: &CatalogueEntry) -> [String; 2] {
    [entry.name.clone(), entry.title.clone()]
}

fn cached(model: &CachedModel) -> [String; 3] {
    [model.reference.clone(), output::bytes(model.bytes), model.path.display().to_string()]
}
