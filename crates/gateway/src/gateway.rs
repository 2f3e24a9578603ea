//! The gateway's state: who is there, who waits, what is configured. The rest of the server borrows it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lichen_contract::ModelState;

use crate::catalogue::{Catalogue, CatalogueModel};
use crate::config::Config;
use crate::fleet::{Builtin, Fleet, Limits, Members, Standing, Ticket};
use crate::loads::Loads;
use crate::retry_budget::RetryBudget;
use crate::route::{Ask, Dispatch, Router, Target};
use crate::upstream::Upstream;

/// Nodes and what routing knows of them, under one lock: a node is chosen and its request counted in one step.
pub(crate) struct Roster {
    pub(crate) members: Members,
    router: Router,
    retries: RetryBudget,
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) catalogue: Catalogue,
    pub(crate) upstream: Upstream,
    pub(crate) loads: Loads,
    fleet: Box<dyn Fleet>,
    roster: Mutex<Roster>,
    started: Instant,
}

/// A gateway. Clones share everything.
#[derive(Clone)]
pub struct Gateway(pub(crate) Arc<Inner>);

impl Gateway {
    /// A gateway over the nodes that report to it and those of its configuration.
    pub fn new(config: Config, catalogue: Catalogue) -> Self {
        let upstream = Upstream::new(Duration::from_secs(config.gateway.connect_timeout_s));
        let fleet = Box::new(Builtin::new(config.fleet.clone(), upstream.clone()));
        Self::with_fleet(config, catalogue, upstream, fleet)
    }

    fn with_fleet(config: Config, catalogue: Catalogue, upstream: Upstream, fleet: Box<dyn Fleet>) -> Self {
        // Only who wins among equals depends on it, and gateways should not all agree on that.
        let seed = u64::from(std::process::id());
        let roster = Roster {
            members: Members::new(Limits::from(&config.fleet), &config.nodes),
            router: Router::new(config.routing, seed),
            retries: RetryBudget::new(config.gateway.retry_share),
        };
        Self(Arc::new(Inner {
            config,
            catalogue,
            upstream,
            loads: Loads::default(),
            fleet,
            roster: Mutex::new(roster),
            started: Instant::now(),
        }))
    }

    /// Keeps the roster up to date until it is dropped.
    pub(crate) async fn watch_fleet(&self) {
        self.0.fleet.watch(self.clone()).await;
    }

    pub(crate) fn fleet(&self) -> &dyn Fleet {
        &*self.0.fleet
    }

    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Roster> {
        self.0.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the roster.
    pub(crate) fn members<T>(&self, read: impl FnOnce(Duration, &Members) -> T) -> T {
        read(self.now(), &self.lock().members)
    }

    /// Changes the roster.
    pub(crate) fn update<T>(&self, change: impl FnOnce(Duration, &mut Members) -> T) -> T {
        change(self.now(), &mut self.lock().members)
    }

    /// Chooses a node that was not tried yet and counts the request on it.
    pub(crate) fn dispatch(&self, ask: Ask<'_>, tried: &[Arc<str>]) -> Option<(Target, InFlight)> {
        let now = self.now();
        let mut guard = self.lock();
        let Roster { members, router, .. } = &mut *guard;
        let Dispatch { ticket, target } = router.dispatch(now, members, ask, tried)?;
        drop(guard);
        Some((target, InFlight { gateway: self.clone(), ticket: Some(ticket) }))
    }

    /// A request has come that may need retries.
    pub(crate) fn earn_retries(&self) {
        self.lock().retries.earn();
    }

    /// Whether a node that has asked to come back later may be passed over for another one.
    pub(crate) fn may_retry(&self) -> bool {
        self.lock().retries.spend()
    }

    /// Whether a node has fallen silent: it has not reported for so long that what runs on it is given up.
    pub(crate) fn is_silent(&self, node: &str) -> bool {
        let silent =
            |now, members: &Members| members.get(node).is_none_or(|node| !members.heard_lately(now, node));
        self.members(silent)
    }

    /// Ends when a node has fallen silent.
    pub(crate) async fn silence_of(&self, node: &str) {
        while !self.is_silent(node) {
            tokio::time::sleep(self.0.config.fleet.heartbeat()).await;
        }
    }

    /// The model that a name means, and whether the catalogue says so. A model that only nodes know may be loaded by
    /// these nodes.
    pub(crate) fn find_model(&self, name: &str) -> Option<Wanted> {
        if let Some(model) = self.0.catalogue.find(name) {
            return Some(Wanted { model: model.clone(), listed: true });
        }
        let knows = |node: &crate::fleet::Node| node.model(name).is_some().then(|| node.name().to_string());
        let nodes: Vec<String> = self.members(|_, members| members.iter().filter_map(knows).collect());
        (!nodes.is_empty()).then(|| Wanted { model: CatalogueModel::known_on(name, nodes), listed: false })
    }

    /// Every name that a request may use, sorted.
    pub(crate) fn model_names(&self) -> Vec<String> {
        let listed = self.0.catalogue.models().iter().map(|model| model.name().to_owned());
        let mut names: BTreeSet<String> = listed.collect();
        self.members(|now, members| {
            for node in members.iter().filter(|node| members.standing(now, node) == Standing::Up) {
                let models = node.report().into_iter().flat_map(|report| &report.models);
                let there = models.filter(|model| !matches!(model.state, ModelState::Unknown));
                names.extend(there.map(|model| model.id.clone()));
            }
        });
        names.into_iter().collect()
    }
}

/// A model that a request asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) model: CatalogueModel,
    /// It stands in the catalogue.
    pub(crate) listed: bool,
}

/// A request on a node. Dropped, it has ended.
pub(crate) struct InFlight {
    gateway: Gateway,
    ticket: Option<Ticket>,
}

impl InFlight {
    /// The node.
    pub(crate) fn node(&self) -> Arc<str> {
        self.ticket.as_ref().map_or_else(|| "".into(), |ticket| ticket.node().clone())
    }

    /// The node could not be reached or broke off: it gets no more requests until it reports.
    pub(crate) fn failed(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.gateway.update(|_, members| members.failed(&ticket));
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.gateway.lock().members.finished(&ticket);
        }
    }
}
