//! `lichen serve`: models over HTTP.

use std::fs;
use std::io::Write;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lichen_hub::Reference;
use lichen_server::{AccessLog, ApiKeys, Info, Limits, LoadOrder, Loader, Node, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::build_info::{BACKEND, BUILD};
use crate::commands::serve_models::{ModelArgs, Wanted};
use crate::load::{ComputeArgs, QueueArgs, hub};
use crate::memory::Memory;
use crate::node_loader::{Begun, NodeLoader, load_now};
use crate::signals::Signals;
use crate::spill::{SpillArgs, SpillFolder};
use crate::{machine, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    models: ModelArgs,

    /// Address to listen on
    #[arg(long, env = "LICHEN_HOST", default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, env = "LICHEN_PORT", default_value_t = 8080)]
    port: u16,

    /// File with the API keys that are accepted, one a line; without it everybody who can connect may ask
    #[arg(long, env = "LICHEN_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Where a JSON line about each request goes: stderr, off, or a file
    #[arg(long, env = "LICHEN_ACCESS_LOG", value_name = "WHERE", default_value = "stderr")]
    access_log: PathBuf,

    /// Most memory of this process, such as 6G; without it what the machine and its control groups leave. Near it,
    /// keys and values shrink, then caches go, then requests wait for each other
    #[arg(long, env = "LICHEN_RAM_BUDGET", value_name = "SIZE", value_parser = size)]
    ram_budget: Option<u64>,

    /// Take models whose weights are larger than memory: they are read from disk again and again, which is slow
    #[arg(long, env = "LICHEN_OVERCOMMIT_WEIGHTS")]
    overcommit_weights: bool,

    /// Seconds that a request waits for its model to be loaded before it is told to come back later
    #[arg(long, env = "LICHEN_LOAD_TIMEOUT", value_name = "SECONDS", default_value_t = 120,
          value_parser = clap::value_parser!(u64).range(1..))]
    load_timeout: u64,

    /// Seconds without a request after which a model is unloaded when memory is short, until a request asks for it
    #[arg(long, env = "LICHEN_IDLE_AFTER", value_name = "SECONDS", default_value_t = 30)]
    idle_after: u64,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    queue: QueueArgs,

    #[command(flatten)]
    spill: SpillArgs,
}

/// A number of bytes, with K, M, G or T for the powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write it like 6G, 512M or 1000000");
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

pub(crate) fn run(args: Args) -> Result<()> {
    let wanted = args.models.wanted()?;
    let device = machine::processor().unwrap_or_else(|| "cpu".to_owned());
    output::line(format_args!("backend={BACKEND} build={BUILD} accelerator=none"))?;
    output::line("devices=1")?;
    let (memory, _process) = Memory::watch(args.ram_budget, args.overcommit_weights)?;
    let spill = args.spill.open();
    let memory = memory.with_spill(spill.clone());
    let loader =
        Arc::new(NodeLoader { hub: hub(), compute: args.compute, queue: args.queue, memory: memory.clone() });
    let limit = models_limit(&memory);
    let settings = Settings {
        api_keys: keys(args.api_key_file.as_deref())?,
        access_log: access_log(&args.access_log)?,
        limits: Limits {
            bytes: limit,
            pressure_idle: Duration::from_secs(args.idle_after),
            ..Limits::default()
        },
        loader: Some(loader.clone()),
        load_wait: Duration::from_secs(args.load_timeout),
        memory: Some(Arc::new(memory.clone())),
        ..Settings::default()
    };
    // Before any model is loaded, so that a bad address is told at once.
    let _ = (args.host.as_str(), args.port)
        .to_socket_addrs()
        .with_context(|| unreachable(&args.host, args.port))?;
    let orders = wanted.into_iter().map(|wanted| order(&loader, wanted)).collect::<Result<Vec<_>>>()?;
    let (mut models, mut sizes) = (Vec::new(), Vec::new());
    for begun in load_now(&loader, &orders, limit)? {
        match begun {
            Begun::Loaded(model) => {
                sizes.push(model.bytes());
                models.push(*model);
            }
            Begun::Declared(bytes) => sizes.push(bytes),
        }
    }
    let info = Info {
        name: "lichen".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: BACKEND.to_owned(),
        build: BUILD.to_owned(),
        accelerator: "none".to_owned(),
        devices: vec![device],
    };
    let node = Node::new(info, settings, models)?;
    // What goes after its time to live, or for another model, comes back when a request asks for it.
    orders.into_iter().zip(sizes).for_each(|(order, bytes)| node.declare(order, bytes));
    let _unloader = memory.relieve_with(node.idle_models())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the server's threads could not be started")?;
    let result = runtime.block_on(listen(&args.host, args.port, node, spill));
    // What still runs after the drain ends with the process.
    runtime.shutdown_background();
    result
}

/// Bytes that the registry shares out. Weights that are read from disk again and again know no limit.
fn models_limit(memory: &Memory) -> u64 {
    if memory.overcommit_weights { u64::MAX } else { memory.for_models() }
}

/// What the command line asks for, as the loader takes it. A model without a name is called after its file.
fn order(loader: &NodeLoader, wanted: Wanted) -> Result<LoadOrder> {
    let name = match (wanted.name, &wanted.reference) {
        (Some(name), _) => name,
        (None, Reference::Name(name)) => {
            loader.hub.catalogue().get(name)?.file.trim_end_matches(".gguf").to_owned()
        }
        (None, reference) => loader.name(&reference.to_string()),
    };
    Ok(LoadOrder {
        reference: wanted.reference.to_string(),
        name,
        options: wanted.options,
        ttl: wanted.ttl.map(Duration::from_secs),
        pinned: wanted.pinned,
    })
}

fn keys(file: Option<&std::path::Path>) -> Result<ApiKeys> {
    let Some(file) = file else { return Ok(ApiKeys::default()) };
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the API keys in {}", file.display()))?;
    let keys = ApiKeys::parse(&text);
    if keys.is_empty() {
        bail!("{} holds no API key; write one a line", file.display());
    }
    Ok(keys)
}

fn access_log(place: &std::path::Path) -> Result<Option<AccessLog>> {
    match place.to_str() {
        Some("off") => Ok(None),
        Some("stderr") => Ok(Some(Arc::new(|line: &str| output::note(line)))),
        _ => {
            let file = fs::OpenOptions::new().create(true).append(true).open(place);
            let file = file.with_context(|| format!("cannot write the access log {}", place.display()))?;
            let file = Mutex::new(file);
            Ok(Some(Arc::new(move |line: &str| {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                // A full disk must not stop the server.
                let _ = file.write_all(format!("{line}\n").as_bytes());
            })))
        }
    }
}

fn unreachable(host: &str, port: u16) -> String {
    format!("cannot listen on {host}:{port}; choose another address with --host or --port")
}

async fn listen(host: &str, port: u16, node: Node, spill: Option<Arc<SpillFolder>>) -> Result<()> {
    let listener = TcpListener::bind((host, port)).await.with_context(|| unreachable(host, port))?;
    let address = listener.local_addr().context("the bound address is unknown")?;
    let mut signals = Signals::new().context("signals could not be caught")?;
    output::line(format_args!("listening on http://{address}"))?;
    let (stop, stopped) = oneshot::channel();
    let retiring = spill.clone();
    let serving = async {
        let served = lichen_server::serve(listener, node, async {
            // An error means that the sender is gone, and then there is nothing to wait for either.
            let _ = stopped.await;
        });
        let result = served.await;
        if let Some(spill) = retiring {
            // It fails only by a panic, which the panic hook reports.
            let _ = tokio::task::spawn_blocking(move || spill.retire()).await;
        }
        result
    };
    let signalled = async {
        signals.next().await;
        output::note("stopping once running answers have ended; a second signal stops at once");
        // The receiver is gone only if the server has ended, and then this future is dropped too.
        let _ = stop.send(());
        signals.next().await;
    };
    tokio::select! {
        result = serving => result.context("the server broke off"),
        () = signalled => {
            if let Some(spill) = spill {
                spill.close();
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_a_unit() {
        assert_eq!(size("1000"), Ok(1000));
        assert_eq!(size("2k"), Ok(2048));
        assert_eq!((size("6G"), size("6GiB"), size("6gb")), (Ok(6 << 30), Ok(6 << 30), Ok(6 << 30)));
        for wrong in ["", "G", "6X", "-1", "1.5G", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
