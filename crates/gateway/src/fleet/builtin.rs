//! Membership without anything else to run: nodes push reports to the gateway, and the gateway asks those that don't.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lichen_contract::{Ensured, LoadRequest, ModelState, ModelStatus, NodeReport, routes};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Fleet, Node, Pending};
use crate::Gateway;
use crate::config::{FleetConfig, NodeKind};
use crate::route::Target;
use crate::upstream::{CallError, Upstream};

/// How long a node may think about a load before it answers. It answers before the load is done.
const ENSURE_TIMEOUT: Duration = Duration::from_secs(10);

/// Nodes push, or are asked.
pub(crate) struct Builtin {
    config: FleetConfig,
    upstream: Upstream,
    /// Nodes that are being asked. Each is asked once at a time, so that one that hangs delays no other.
    asking: Mutex<BTreeSet<Arc<str>>>,
    /// Numbers the reports of nodes that don't number them.
    sequence: AtomicU64,
}

/// `GET /v1/models` of a server that knows no contract.
#[derive(Deserialize)]
struct ModelList {
    data: Vec<ModelEntry>,
}

#[derive(Deserialize)]
struct ModelEntry {
    id: String,
}

impl Builtin {
    pub(crate) fn new(config: FleetConfig, upstream: Upstream) -> Self {
        Self { config, upstream, asking: Mutex::default(), sequence: AtomicU64::new(1) }
    }

    /// The nodes that have not reported within a heartbeat and a half, and are not being asked.
    fn due(&self, gateway: &Gateway) -> Vec<Arc<str>> {
        let fresh = self.config.heartbeat() * 3 / 2;
        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        gateway.members(|now, members| {
            let quiet = |node: &&Node| node.heard().is_none_or(|heard| now.saturating_sub(heard) >= fresh);
            // One that pushes nothing is asked at every heartbeat.
            let asked = |node: &&Node| quiet(node) || !node.pushes();
            members
                .iter()
                .filter(|node| asked(node) && !asking.contains(node.name()))
                .map(|node| node.name().clone())
                .collect()
        })
    }

    async fn ask(&self, gateway: &Gateway, name: &Arc<str>) {
        let Some(target) = gateway.members(|_, members| members.get(name).map(Target::of)) else { return };
        match timeout(self.config.silence(), self.report(&target, name)).await {
            Ok(Ok(report)) => {
                gateway.update(|now, members| members.polled(now, name, report));
            }
            // Nobody listens there: that is certain. Anything else may pass, and counts as silence if it doesn't.
            Ok(Err(CallError::Unreachable(_))) => gateway.update(|_, members| members.unreachable(name)),
            Ok(Err(_)) | Err(_) => {}
        }
    }

    async fn report(&self, target: &Target, name: &str) -> Result<NodeReport, CallError> {
        if target.kind == NodeKind::Lichen {
            return self.upstream.get(target, routes::MODELS).await;
        }
        let list: ModelList = self.upstream.get(target, "/v1/models").await?;
        let ready = |model: ModelEntry| ModelStatus {
            id: model.id,
            state: ModelState::Ready,
            ..ModelStatus::default()
        };
        Ok(NodeReport {
            node_id: name.to_owned(),
            sequence: self.sequence.fetch_add(1, Ordering::Relaxed),
            models: list.data.into_iter().map(ready).collect(),
            ..NodeReport::default()
        })
    }
}

/// Marks a node as being asked until it is dropped.
struct Asking<'a> {
    fleet: &'a Builtin,
    name: Arc<str>,
}

impl<'a> Asking<'a> {
    fn new(fleet: &'a Builtin, name: Arc<str>) -> Self {
        fleet.asking.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        Self { fleet, name }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.fleet.asking.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.name);
    }
}

impl Fleet for Builtin {
    fn watch(&self, gateway: Gateway) -> Pending<'_, ()> {
        Box::pin(async move {
            let mut tick = interval(self.config.heartbeat());
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut running = JoinSet::new();
            loop {
                tokio::select! {
                    _ = tick.tick() => {
                        gateway.update(|now, members| members.forget_silent(now));
                        for name in self.due(&gateway) {
                            let gateway = gateway.clone();
                            running.spawn(async move { gateway.fleet().refresh(&gateway, &name).await });
                        }
                    }
                    Some(_) = running.join_next() => {}
                }
            }
        })
    }

    fn ensure<'a>(
        &'a self,
        gateway: &'a Gateway,
        node: &'a Arc<str>,
        request: &'a LoadRequest,
    ) -> Pending<'a, Option<Ensured>> {
        Box::pin(async move {
            let target = gateway.members(|_, members| members.get(node).map(Target::of))?;
            match timeout(ENSURE_TIMEOUT, self.upstream.post(&target, routes::LOAD, request)).await {
                Ok(Ok(answer)) => Some(answer),
                Ok(Err(CallError::Answer(cause))) => Some(Ensured::Failed { cause, retry_after_s: None }),
                Ok(Err(CallError::Unreachable(_))) => {
                    gateway.update(|_, members| members.unreachable(node));
                    None
                }
                // It may be doing what it was asked; asking again finds out.
                Ok(Err(CallError::Broken(_))) | Err(_) => Some(Ensured::Busy { retry_after_s: 1 }),
            }
        })
    }

    fn refresh<'a>(&'a self, gateway: &'a Gateway, node: &'a Arc<str>) -> Pending<'a, ()> {
        Box::pin(async move {
            let _asking = Asking::new(self, node.clone());
            self.ask(gateway, node).await;
        })
    }
}
