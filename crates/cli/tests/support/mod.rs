//! The program under test and the models of the oracle.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by several test programs")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A tiny model.
pub fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data").join(name)
}

/// The program with an empty environment of its own, a cache that is not there, and nothing from earlier runs.
pub fn lichen() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lichen"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LICHEN_") {
            command.env_remove(name);
        }
    }
    command.env("LICHEN_HOME", std::env::temp_dir().join("lichen-cli-tests-empty"));
    command.env("LICHEN_SPILL_BUDGET", "0");
    command
}

/// Runs it to its end.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    lichen().args(args).stdin(std::process::Stdio::null()).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
