//! The official Python client against a node. Needs `LICHEN_TEST_PYTHON`: a python that has the `openai` package.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use common::{Act, Scripted, Server};
use lichen_generate::FinishReason;

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_is_content() {
    let Some(python) = std::env::var_os("LICHEN_TEST_PYTHON") else {
        eprintln!("skipped: LICHEN_TEST_PYTHON is not set");
        return;
    };
    let engine = Scripted::new([Act::Say("Hel"), Act::Say("lo"), Act::Finish(FinishReason::Stop)]);
    let server = Server::start(&engine).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/openai_client.py");
    let mut command = std::process::Command::new(python);
    command.arg(script).arg(format!("http://{}/v1", server.address));
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
