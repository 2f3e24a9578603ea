//! `lichen gateway`: one address for a fleet of nodes.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use lichen_gateway::Gateway;
use lichen_gateway::catalogue::Catalogue;
use lichen_gateway::config::Config;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::output;
use crate::signals::Signals;

/// Threads of the gateway. It waits most of the time.
const THREADS: usize = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The gateway's configuration
    #[arg(long, env = "LICHEN_GATEWAY_CONFIG", value_name = "FILE")]
    config: PathBuf,

    /// Address to listen on, instead of the configured one; port 0 takes a free one
    #[arg(long, env = "LICHEN_GATEWAY_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,

    /// Read the configuration and the catalogue, say what is wrong with them, and end
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let config = Config::read(&args.config)?;
    let catalogue = match &config.gateway.models_config {
        Some(path) => Catalogue::read(&args.config.parent().unwrap_or(&args.config).join(path))?,
        None => Catalogue::default(),
    };
    if args.check {
        let (nodes, models) = (config.nodes.len(), catalogue.models().len());
        output::line(format_args!("{nodes} nodes and {models} models are configured"))?;
        return Ok(());
    }
    let address = args.listen.unwrap_or(config.gateway.listen);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("the gateway's threads could not be started")?;
    let result = runtime.block_on(listen(address, Gateway::new(config, catalogue)));
    // What still runs after the drain ends with the process.
    runtime.shutdown_background();
    result
}

async fn listen(address: SocketAddr, gateway: Gateway) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; choose another address with --listen or in the configuration")
    })?;
    let address = listener.local_addr().context("the bound address is unknown")?;
    let signals = Signals::new().context("signals could not be caught")?;
    output::line(format_args!("listening on http://{address}"))?;
    let (stop, stopped) = oneshot::channel();
    let serving = lichen_gateway::serve(listener, gateway, async {
        // An error means that the sender is gone, and then there is nothing to wait for either.
        let _ = stopped.await;
    });
    tokio::select! {
        result = serving => result.context("the gateway broke off"),
        () = signals.stop(stop) => Ok(()),
    }
}
