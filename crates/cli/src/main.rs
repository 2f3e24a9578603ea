//! The `lichen` program: one command a file, errors told once, here.

mod answer;
mod args;
mod build_info;
mod commands;
mod executor;
mod heartbeat;
mod known_models;
mod kv_gate;
mod language;
mod load;
mod machine;
mod memory;
mod needs;
mod node_config;
mod node_loader;
mod output;
mod sampling;
mod sessions;
mod signals;
mod spill;
mod start;
mod streaming;
mod vocabulary;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::args::{Cli, Command};

/// Exit code of a call that makes no sense, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match dispatch(Cli::parse_from(commands::bench::spell_out(std::env::args_os()))) {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    if cli.backend {
        output::line(build_info::BACKEND)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(command) = cli.command else {
        output::note(Cli::command().render_help());
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        Command::Run(args) => commands::run::run(args),
        Command::Chat(args) => commands::chat::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Gateway(args) => commands::gateway::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::List(args) => commands::list::run(&args),
        Command::Rm(args) => commands::rm::run(&args),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Perplexity(args) => commands::perplexity::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Session(args) => commands::session::run(&args),
        Command::Kernels(args) => commands::kernels::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}
