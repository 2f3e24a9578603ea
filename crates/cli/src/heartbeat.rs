//! Reports to gateways: one thread for each, which never stands in the way of requests.

mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lichen_server::{Heartbeat, Node};

use crate::node_config::GatewayConfig;
use crate::output;
use pace::Pace;

/// The longest that one report may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Changes that come so close together are told in one report.
const TOGETHER: Duration = Duration::from_millis(20);

/// Reports that go out until they are ended.
pub(crate) struct Heartbeats {
    node: Node,
    stop: Arc<AtomicBool>,
    /// A thread has ended once its sender is gone.
    ended: Vec<Receiver<()>>,
}

impl Heartbeats {
    /// Begins to report to gateways that the node is reached at this address.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(node: &Node, address: &str, gateways: &[GatewayConfig]) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut ended = Vec::new();
        for gateway in gateways {
            let (alive, end) = channel::<()>();
            let reporter = Reporter::new(node.clone(), address, gateway, stop.clone());
            let thread = std::thread::Builder::new().name("heartbeat".to_owned());
            let run = move || {
                reporter.run();
                drop(alive);
            };
            thread.spawn(run).context("the thread that reports to a gateway could not be started")?;
            ended.push(end);
        }
        Ok(Self { node: node.clone(), stop, ended })
    }

    /// Sends each gateway a last report, and waits for that within bounds.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Release);
        self.node.changes().note();
        let until = Instant::now() + PATIENCE;
        for end in self.ended {
            // Ends with an error either way: the thread is through, or it takes too long.
            let _ = end.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Reports to one gateway.
struct Reporter {
    node: Node,
    address: String,
    url: String,
    token: Option<String>,
    agent: ureq::Agent,
    stop: Arc<AtomicBool>,
    pace: Pace,
}

impl Reporter {
    fn new(node: Node, address: &str, gateway: &GatewayConfig, stop: Arc<AtomicBool>) -> Self {
        let config = ureq::Agent::config_builder()
            .user_agent(concat!("lichen/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .max_redirects(0)
            .proxy(None)
            .build();
        Self {
            node,
            address: address.to_owned(),
            url: gateway.endpoint(),
            token: gateway.join_token.as_ref().map(|token| format!("Bearer {token}")),
            agent: ureq::Agent::new_with_config(config),
            stop,
            pace: Pace::new(gateway.period()),
        }
    }

    fn run(mut self) {
        // Of the changes that a report contains.
        let mut told = self.node.changes().wait(0, Duration::ZERO);
        loop {
            let last = self.stop.load(Ordering::Acquire);
            match self.send() {
                Ok(heartbeat) => {
                    if self.pace.heard(Duration::from_millis(heartbeat.interval_ms.into())) {
                        output::note(format_args!("reports to {} arrive", self.url));
                    }
                }
                Err(reason) => {
                    if self.pace.missed() {
                        output::note(format_args!("cannot report to {}: {reason}; trying on", self.url));
                    }
                }
            }
            if last {
                return;
            }
            told = self.pause(told);
        }
    }

    /// Waits until the next report is due: a change brings it forward, unless the gateway is away. Returns the count of
    /// changes that it will contain.
    fn pause(&mut self, told: u64) -> u64 {
        let until = Instant::now() + self.pace.pause();
        let (changes, mut seen) = (self.node.changes(), told);
        loop {
            seen = changes.wait(seen, until.saturating_duration_since(Instant::now()));
            let due = Instant::now() >= until || self.stop.load(Ordering::Acquire);
            if due {
                return seen;
            }
            if !self.pace.is_away() {
                std::thread::sleep(TOGETHER);
                return changes.wait(seen, Duration::ZERO);
            }
        }
    }

    fn send(&self) -> Result<Heartbeat, String> {
        let report = self.node.report(Some(self.address.clone()));
        let body = serde_json::to_vec(&report).map_err(|error| error.to_string())?;
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        let mut response = request.send(&body[..]).map_err(|error| error.to_string())?;
        let answer = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
        match response.status().as_u16() {
            // An answer that says nothing leaves the pace to us.
            200..=299 => Ok(serde_json::from_str(&answer).unwrap_or_default()),
            401 | 403 => Err("it doesn't know the join token".to_owned()),
            status => Err(format!("it answers with status {status}")),
        }
    }
}
