//! `lichen serve`: models over HTTP.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lichen_cpu::table::instruction_sets;
use lichen_hub::Reference;
use lichen_server::{AccessLog, ApiKeys, Device, Discovery, Info, Limits, LoadOrder, Loader, Node, Settings};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::build_info::{BACKEND, BUILD};
use crate::commands::serve_models::{ModelArgs, Wanted};
use crate::heartbeat::Heartbeats;
use crate::known_models::{default_model, known_models};
use crate::load::{ComputeArgs, QueueArgs, hub};
use crate::memory::Memory;
use crate::node_config::NodeConfig;
use crate::node_loader::{Begun, NodeLoader, OnFailure, load_now};
use crate::signals::Signals;
use crate::spill::{SpillArgs, SpillFolder};
use crate::{machine, output};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    models: ModelArgs,

    /// File with the node's settings, such as models, gateways and limits; options here go before what it says
    #[arg(long, env = "LICHEN_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// Address to listen on [default: 127.0.0.1]
    #[arg(long, env = "LICHEN_HOST")]
    host: Option<String>,

    /// Port to listen on; 0 takes a free one [default: 8080]
    #[arg(long, env = "LICHEN_PORT")]
    port: Option<u16>,

    /// File with the API keys that are accepted, one a line; without it everybody who can connect may ask
    #[arg(long, env = "LICHEN_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Where a JSON line about each request goes: stderr, off, or a file [default: stderr]
    #[arg(long, env = "LICHEN_ACCESS_LOG", value_name = "WHERE")]
    access_log: Option<PathBuf>,

    /// Most memory of this process, such as 6G; without it what the machine and its control groups leave. Near it,
    /// keys and values shrink, then caches go, then requests wait for each other
    #[arg(long, env = "LICHEN_RAM_BUDGET", value_name = "SIZE", value_parser = size)]
    ram_budget: Option<u64>,

    /// Take models whose weights are larger than memory: they are read from disk again and again, which is slow
    #[arg(long, env = "LICHEN_OVERCOMMIT_WEIGHTS")]
    overcommit_weights: bool,

    /// Seconds that a request waits for its model to be loaded before it is told to come back later [default: 120]
    #[arg(long, env = "LICHEN_LOAD_TIMEOUT", value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..))]
    load_timeout: Option<u64>,

    /// Seconds without a request after which a model is unloaded when memory is short, until a request asks for it
    /// [default: 30]
    #[arg(long, env = "LICHEN_IDLE_AFTER", value_name = "SECONDS")]
    idle_after: Option<u64>,

    /// Seconds that running answers have to end when the server stops [default: 30]
    #[arg(long, env = "LICHEN_DRAIN", value_name = "SECONDS")]
    drain: Option<u64>,

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

impl Args {
    /// The settings of the file, if there is one, with those of the command line before them.
    ///
    /// # Errors
    /// The file can't be used.
    fn settings(&self) -> Result<NodeConfig> {
        let mut config = self.config.as_deref().map(NodeConfig::read).transpose()?.unwrap_or_default();
        let node = &mut config.node;
        if let Some(host) = &self.host {
            node.host.clone_from(host);
        }
        if let Some(log) = &self.access_log {
            node.access_log.clone_from(log);
        }
        node.api_key_file = self.api_key_file.clone().or(node.api_key_file.take());
        node.port = self.port.unwrap_or(node.port);
        node.load_timeout_s = self.load_timeout.unwrap_or(node.load_timeout_s);
        node.idle_after_s = self.idle_after.unwrap_or(node.idle_after_s);
        node.drain_s = self.drain.unwrap_or(node.drain_s);
        node.overcommit_weights |= self.overcommit_weights;
        if !config.gateways.is_empty() && config.node.address.is_none() {
            let everywhere = config.node.host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
            if everywhere {
                bail!("gateways can't be told to reach {}; set address under [node]", config.node.host);
            }
        }
        Ok(config)
    }

    /// Most memory of the process.
    fn budget(&self, config: &NodeConfig) -> Result<Option<u64>> {
        let told = config.node.ram_budget.as_ref().map(|told| size(told.get_ref())).transpose();
        Ok(self.ram_budget.or(told.map_err(anyhow::Error::msg)?))
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let wanted = args.models.wanted()?;
    let config = args.settings()?;
    let budget = args.budget(&config)?;
    output::line(format_args!("backend={BACKEND} build={BUILD} accelerator=none"))?;
    output::line("devices=1")?;
    let (memory, _process) = Memory::watch(budget, config.node.overcommit_weights)?;
    let spill = args.spill.open();
    let memory = memory.with_spill(spill.clone());
    let loader =
        Arc::new(NodeLoader { hub: hub(), compute: args.compute, queue: args.queue, memory: memory.clone() });
    let limit = models_limit(&memory);
    let settings = Settings {
        api_keys: keys(config.node.api_key_file.as_deref())?,
        access_log: access_log(&config.node.access_log)?,
        limits: Limits {
            bytes: limit,
            pressure_idle: Duration::from_secs(config.node.idle_after_s),
            ..Limits::default()
        },
        loader: Some(loader.clone()),
        load_wait: Duration::from_secs(config.node.load_timeout_s),
        drain: Duration::from_secs(config.node.drain_s),
        memory: Some(Arc::new(memory.clone())),
        address: config
            .node
            .address
            .as_ref()
            .map(|address| address.get_ref().trim_end_matches('/').to_owned()),
        ..Settings::default()
    };
    let (host, port) = (config.node.host.as_str(), config.node.port);
    // Before any model is loaded, so that a bad address is told at once.
    let _ = (host, port).to_socket_addrs().with_context(|| unreachable(host, port))?;
    let known = known_models(&config);
    let (orders, on_failure) = if wanted.is_empty() {
        let defaults = config.node.default_models.iter();
        (defaults.map(|model| default_model(&known, model, &*loader)).collect(), OnFailure::GoOn)
    } else {
        let orders = wanted.into_iter().map(|wanted| order(&loader, wanted));
        (orders.collect::<Result<Vec<_>>>()?, OnFailure::Stop)
    };
    let mut models = Vec::new();
    // What goes after its time to live, or for another model, comes back when a request asks for it.
    let (mut declared, mut failed) = (declared(&loader, known), Vec::new());
    let begun = load_now(&loader, &orders, limit, on_failure)?;
    for (order, begun) in orders.into_iter().zip(begun) {
        let bytes = match begun {
            Begun::Loaded(model) => {
                let bytes = model.bytes();
                models.push(*model);
                bytes
            }
            Begun::Declared(bytes) => bytes,
            Begun::Failed(reason) => {
                failed.push((order.name.clone(), reason));
                loader.estimate(&order).unwrap_or(0)
            }
        };
        declared.push((order, bytes));
    }
    let node = Node::new(info(&config, &memory), settings, models)?;
    declared.into_iter().for_each(|(order, bytes)| node.declare(order, bytes));
    failed.iter().for_each(|(name, reason)| node.note_failure(name, reason));
    let _unloader = memory.relieve_with(node.idle_models())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the server's threads could not be started")?;
    let result = runtime.block_on(listen(&config, node, spill));
    // What still runs after the drain ends with the process.
    runtime.shutdown_background();
    result
}

/// Known models with the bytes that they will take. One that can't be read is told and left out.
fn declared(loader: &NodeLoader, known: Vec<LoadOrder>) -> Vec<(LoadOrder, u64)> {
    let measured = |order: LoadOrder| match loader.estimate(&order) {
        Ok(bytes) => Some((order, bytes)),
        Err(reason) => {
            output::note(format_args!("leaving {} out: {reason}", order.name));
            None
        }
    };
    known.into_iter().filter_map(measured).collect()
}

/// What the node tells of itself.
fn info(config: &NodeConfig, memory: &Memory) -> Info {
    let processor = machine::processor().unwrap_or_else(|| "cpu".to_owned());
    let ram = machine::memory().map_or(0, |(total, _)| total);
    let group = memory.group_limit();
    let device = Device {
        index: 0,
        backend: BACKEND.to_owned(),
        name: processor.clone(),
        capability: instruction_sets().next().unwrap_or_default().to_owned(),
        memory_bytes: group.map_or(ram, |limit| limit.min(ram)),
        free_bytes: 0,
    };
    let number = if config.node.port == 0 { std::process::id() } else { config.node.port.into() };
    let node_id = config.node.name.clone();
    Info {
        name: "lichen".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        backend: BACKEND.to_owned(),
        build: BUILD.to_owned(),
        accelerator: "none".to_owned(),
        devices: vec![processor],
        machine: Discovery {
            node_id: node_id.unwrap_or_else(|| format!("{}-{number}", machine::host_name())),
            cores: u32::try_from(machine::threads()).unwrap_or(u32::MAX),
            ram_bytes: ram,
            cgroup_limit_bytes: group,
            backend: BACKEND.to_owned(),
            build: BUILD.to_owned(),
            devices: vec![device],
            ..Discovery::default()
        },
    }
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
        priority: 0,
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

async fn listen(config: &NodeConfig, node: Node, spill: Option<Arc<SpillFolder>>) -> Result<()> {
    let (host, port) = (config.node.host.as_str(), config.node.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| unreachable(host, port))?;
    let bound = listener.local_addr().context("the bound address is unknown")?;
    let signals = Signals::new().context("signals could not be caught")?;
    output::line(format_args!("listening on http://{bound}"))?;
    let address = config.node.address.as_ref();
    let address = address.map_or_else(|| format!("http://{bound}"), |address| address.get_ref().clone());
    let heartbeats = Heartbeats::start(&node, address.trim_end_matches('/'), &config.gateways)?;
    let (stop, stopped) = oneshot::channel();
    let retiring = spill.clone();
    let serving = async {
        let served = lichen_server::serve(listener, node.clone(), async {
            // An error means that the sender is gone, and then there is nothing to wait for either.
            let _ = stopped.await;
        });
        let result = served.await;
        if let Some(spill) = retiring {
            // It fails only by a panic, which the panic hook reports.
            let _ = tokio::task::spawn_blocking(move || spill.retire()).await;
        }
        node.retire().await;
        // As above.
        let _ = tokio::task::spawn_blocking(move || heartbeats.finish()).await;
        result
    };
    tokio::select! {
        result = serving => result.context("the server broke off"),
        () = signals.stop(stop) => {
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
