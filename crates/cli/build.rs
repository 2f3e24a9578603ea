//! Puts the commit into the binary, where the source is a checkout.

use std::path::Path;
use std::process::Command;

fn main() {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = output.ok().filter(|output| output.status.success()).map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    println!("cargo::rustc-env=LICHEN_COMMIT={commit}");
    // This log grows with each commit and checkout. A path that is not there would rebuild on each call.
    let log = Path::new("../../.git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
}
