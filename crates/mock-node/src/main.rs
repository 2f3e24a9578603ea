//! `mock-node`: a node without a model, for tests and load generators.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use lichen_contract::{ModelState, ModelStatus};
use lichen_mock_node::{Gateway, MockNode, Script};

/// A node without a model, which does what a script says
#[derive(Debug, Parser)]
struct Args {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The node's name
    #[arg(long, default_value = "mock")]
    id: String,
    /// Memory for models in MiB
    #[arg(long, default_value_t = 1 << 20)]
    budget_mb: u64,
    /// A model that is ready, as NAME or NAME=MIB; may be given several times
    #[arg(long)]
    model: Vec<String>,
    /// A model that is known and not loaded, as NAME or NAME=MIB; may be given several times
    #[arg(long)]
    absent: Vec<String>,
    /// The script as JSON, such as {"token_ms": 20}
    #[arg(long, default_value = "{}")]
    script: String,
    /// A gateway to report to; may be given several times
    #[arg(long)]
    gateway: Vec<String>,
    /// What lets the node join
    #[arg(long, default_value = "")]
    token: String,
    /// Milliseconds between two reports
    #[arg(long, default_value_t = 1000)]
    heartbeat_ms: u64,
}

fn model(text: &str, state: ModelState) -> Result<ModelStatus> {
    let (id, mib) = text.split_once('=').unwrap_or((text, "1024"));
    let mib: u64 = mib.parse().with_context(|| format!("'{text}' is not of the form NAME=MIB"))?;
    Ok(ModelStatus { id: id.to_owned(), state, bytes: mib << 20, priority: 100, ..ModelStatus::default() })
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let script: Script = serde_json::from_str(&args.script).context("--script is no script")?;
    let ready = args.model.iter().map(|text| model(text, ModelState::Ready));
    let absent = args.absent.iter().map(|text| model(text, ModelState::Absent));
    let models = ready.chain(absent).collect::<Result<Vec<_>>>()?;
    let node = MockNode::start_at(args.listen, &args.id, args.budget_mb << 20, models, script)
        .await
        .with_context(|| format!("cannot listen on {}; choose another address with --listen", args.listen))?;
    for url in args.gateway {
        let interval = Duration::from_millis(args.heartbeat_ms);
        node.join(Gateway { url, token: args.token.clone(), interval });
    }
    announce(&node.url())?;
    tokio::select! {
        () = node.stopped() => {}
        signal = tokio::signal::ctrl_c() => signal.context("signals could not be caught")?,
    }
    node.kill().await;
    Ok(())
}

fn announce(url: &str) -> Result<()> {
    use std::io::Write;
    writeln!(std::io::stdout(), "listening on {url}").context("standard output is closed")
}
