//! `lichen serve`: models over HTTP.

use std::io;

use anyhow::{Context, Result, bail};
use lichen_hub::Reference;
use lichen_server::{Info, Model, Node, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::build_info::{BACKEND, BUILD};
use crate::load::{LimitArgs, LoadArgs, load};
use crate::{machine, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model to serve: a path, a name from the catalogue or a reference; may be given several times
    #[arg(short, long = "model", env = "LICHEN_MODEL", value_name = "REF", required = true)]
    models: Vec<Reference>,

    /// Name of the model in requests, once per --model in the same order; the file's stem if not given
    #[arg(long = "name", env = "LICHEN_NAME", value_name = "NAME")]
    names: Vec<String>,

    /// Address to listen on
    #[arg(long, env = "LICHEN_HOST", default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "LICHEN_PORT", default_value_t = 8080)]
    port: u16,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    limits: LimitArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.names.len() > args.models.len() {
        bail!(
            "there are {} names for {} models; give one --name per --model",
            args.names.len(),
            args.models.len()
        );
    }
    let device = machine::processor().unwrap_or_else(|| "cpu".to_owned());
    output::line(format_args!("backend={BACKEND} build={BUILD} accelerator=none"))?;
    output::line("devices=1")?;
    let models = models(&args)?;
    let info = Info {
        name: "lichen".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: BACKEND.to_owned(),
        build: BUILD.to_owned(),
        accelerator: "none".to_owned(),
        devices: vec![device],
    };
    let node = Node::new(info, Settings::default(), models);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the server's threads could not be started")?;
    let result = runtime.block_on(listen(&args.host, args.port, node));
    // What still runs after the drain ends with the process.
    runtime.shutdown_background();
    result
}

fn models(args: &Args) -> Result<Vec<Model>> {
    let mut taken: Vec<String> = Vec::new();
    let mut models = Vec::new();
    for (index, reference) in args.models.iter().enumerate() {
        let loaded = load(reference, &args.load, &args.limits)?;
        let name = args.names.get(index).cloned().unwrap_or(loaded.name);
        if taken.contains(&name) {
            bail!("two models would be called {name}; tell them apart with --name");
        }
        models.push(Model::new(&name, loaded.engine, loaded.language).with_pooling(loaded.pooling));
        taken.push(name);
    }
    Ok(models)
}

async fn listen(host: &str, port: u16, node: Node) -> Result<()> {
    let listener = TcpListener::bind((host, port)).await.with_context(|| {
        format!("cannot listen on {host}:{port}; choose another address with --host or --port")
    })?;
    let address = listener.local_addr().context("the bound address is unknown")?;
    let mut signals = Signals::new().context("signals could not be caught")?;
    output::line(format_args!("listening on http://{address}"))?;
    let (stop, stopped) = oneshot::channel();
    let serving = lichen_server::serve(listener, node, async {
        // An error means that the sender is gone, and then there is nothing to wait for either.
        let _ = stopped.await;
    });
    let signalled = async {
        signals.next().await;
        output::note("stopping once running answers have ended; a second signal stops at once");
        // The receiver is gone only if the server has ended, and then this future is dropped too.
        let _ = stop.send(());
        signals.next().await;
    };
    tokio::select! {
        result = serving => result.context("the server broke off"),
        () = signalled => Ok(()),
    }
}

/// SIGTERM and SIGINT.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
