//! The command line.

use clap::{Parser, Subcommand};

use crate::build_info::VERSION;
use crate::commands::{
    bench, chat, completions, devices, gateway, inspect, kernels, list, perplexity, plan, pull, rm, run,
    serve, session,
};

/// Runs language models on this machine.
#[derive(Debug, Parser)]
#[command(name = "lichen", version = VERSION, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// Print in one word what this program computes with, and end
    #[arg(long)]
    pub(crate) backend: bool,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(run::Args),
    /// Talk with a model
    Chat(chat::Args),
    /// Serve models over HTTP, compatible with OpenAI clients
    Serve(serve::Args),
    /// Serve a fleet of nodes under one address
    Gateway(gateway::Args),
    /// Fetch a model into the cache
    Pull(pull::Args),
    /// Show the models of the cache
    List(list::Args),
    /// Remove a model from the cache
    Rm(rm::Args),
    /// Show what a model is and what it needs
    Inspect(inspect::Args),
    /// Show whether a model fits here, and with what context
    Plan(plan::Args),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::Args),
    /// Measure tokens per second, as llama-bench does
    Bench(bench::Args),
    /// Take conversations out of a running node, and put them in
    Session(session::Args),
    /// Show the kernels of this binary and which of them this processor can run
    Kernels(kernels::Args),
    /// Show what this machine offers to compute with
    Devices(devices::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
