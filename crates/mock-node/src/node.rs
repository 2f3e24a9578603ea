//! The node: its listener, its state, its end.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::routing::{get, patch, post};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use lichen_contract::{ModelState, ModelStatus, NodeReport, routes};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::heartbeat::{Gateway, report_to};
use crate::models::Models;
use crate::{Script, Stats, answer, contract};

/// Restarts of nodes in this process, so that each has a boot id of its own.
static BOOTS: AtomicU64 = AtomicU64::new(0);

/// What the routes share.
pub(crate) struct Shared {
    pub(crate) id: String,
    pub(crate) boot_id: String,
    pub(crate) address: String,
    sequence: AtomicU64,
    pub(crate) script: Mutex<Script>,
    pub(crate) stats: Mutex<Stats>,
    pub(crate) models: Mutex<Models>,
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) stop: Notify,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn report(&self) -> NodeReport {
        let mut models = lock(&self.models);
        NodeReport {
            node_id: self.id.clone(),
            boot_id: self.boot_id.clone(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
            address: Some(self.address.clone()),
            draining: lock(&self.script).draining,
            memory: models.memory(),
            devices: Vec::new(),
            models: models.statuses(),
        }
    }
}

/// A mock node that runs in this process. Dropping it breaks everything off, as a killed process does.
pub struct MockNode {
    shared: Arc<Shared>,
    address: SocketAddr,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for MockNode {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl MockNode {
    /// Starts a node on a free port of the loopback that holds these models, each ready and taking a GiB, without limit.
    ///
    /// # Errors
    /// No port is to be had.
    pub async fn start(id: &str, models: &[&str]) -> io::Result<Self> {
        let ready = |id: &&str| ModelStatus {
            id: (*id).to_owned(),
            state: ModelState::Ready,
            bytes: 1 << 30,
            priority: 100,
            ..ModelStatus::default()
        };
        let statuses = models.iter().map(ready).collect();
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), id, 1 << 40, statuses, Script::default()).await
    }

    /// Starts a node at an address, with a budget of bytes, these models and a script.
    ///
    /// # Errors
    /// The address is taken.
    pub async fn start_at(
        address: SocketAddr,
        id: &str,
        budget: u64,
        models: Vec<ModelStatus>,
        script: Script,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let mut held = Models::new(budget);
        models.into_iter().for_each(|model| held.add(model));
        let boot = BOOTS.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared {
            id: id.to_owned(),
            boot_id: format!("{}-{boot}", std::process::id()),
            address: format!("http://{address}"),
            sequence: AtomicU64::new(1),
            slots: Arc::new(Semaphore::new(script.slots)),
            script: Mutex::new(script),
            stats: Mutex::default(),
            models: Mutex::new(held),
            stop: Notify::new(),
        });
        let server = tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { shared, address, server })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://HOST:PORT`.
    pub fn url(&self) -> String {
        self.shared.address.clone()
    }

    /// Changes the script.
    pub fn set(&self, change: impl FnOnce(&mut Script)) {
        change(&mut lock(&self.shared.script));
    }

    /// What has happened so far.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.stats).clone()
    }

    /// What it reports now.
    pub fn report(&self) -> NodeReport {
        self.shared.report()
    }

    /// Reports to a gateway until the node ends.
    pub fn join(&self, gateway: Gateway) {
        let shared = self.shared.clone();
        let server = self.server.abort_handle();
        tokio::spawn(async move {
            tokio::select! {
                () = report_to(shared, gateway) => {}
                () = async { while !server.is_finished() { tokio::time::sleep(std::time::Duration::from_millis(10)).await } } => {}
            }
        });
    }

    /// Breaks everything off, as `kill -9` does: the listener and all connections close at once.
    pub async fn kill(self) {
        self.server.abort();
        while !self.server.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until it is told to stop over HTTP.
    pub async fn stopped(&self) {
        self.shared.stop.notified().await;
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let router = router(shared);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(connection(stream, router.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, router: Router) {
    // Without it a small write waits for the acknowledgement of the last one.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    // An error is a connection that the other side has closed.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(answer::chat))
        .route("/v1/completions", post(answer::completion))
        .route("/v1/responses", post(answer::responses))
        .route("/v1/messages", post(answer::messages))
        .route("/v1/messages/count_tokens", post(answer::count_tokens))
        .route("/v1/embeddings", post(answer::embeddings))
        .route("/v1/models", get(contract::model_list))
        .route("/health", get(contract::health))
        .route(routes::MODELS, get(contract::models))
        .route(routes::LOAD, post(contract::load))
        .route(routes::UNLOAD, post(contract::unload))
        .route(routes::ENDPOINT, get(contract::endpoint))
        .route(routes::DISCOVERY, get(contract::discovery))
        .route("/mock", patch(contract::change).get(contract::stats))
        .route("/mock/kill", post(contract::kill))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(shared)
}
