//! `lichen completions`: a completion script for a shell.

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::output;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell that will read the script
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lichen", &mut script);
    output::text(&String::from_utf8(script).context("the script is not UTF-8")?)?;
    Ok(())
}
