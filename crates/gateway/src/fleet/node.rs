//! One node as the gateway knows it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lichen_contract::{ModelState, ModelStatus, NodeReport};

use crate::config::NodeKind;

/// Boots that are remembered as over, so that a late report of one is not taken for a new boot.
const OLD_BOOTS: usize = 8;

/// Whether a node gets requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Up,
    /// A request to it has failed, and it has not reported since.
    Down,
    /// It has not reported for too long, or never.
    Silent,
    /// It is about to stop.
    Draining,
}

impl Standing {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Silent => "silent",
            Self::Draining => "draining",
        }
    }
}

/// A request that is on a node. Given back with [`crate::fleet::Members::finished`] or
/// [`crate::fleet::Members::failed`].
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) node: Arc<str>,
    pub(super) model: String,
    /// The boot of the node that it went to.
    pub(super) boot: u64,
    /// The last report before it was sent.
    pub(super) epoch: u64,
}

impl Ticket {
    /// The node that it is on.
    pub fn node(&self) -> &Arc<str> {
        &self.node
    }
}

/// Requests of this gateway on one model of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Own {
    /// That are on it.
    open: u32,
    /// Of these, sent since the last report.
    since_report: u32,
}

/// A node of the fleet.
#[derive(Debug, Clone)]
pub struct Node {
    pub(super) name: Arc<str>,
    pub(super) address: Arc<str>,
    pub(super) kind: NodeKind,
    pub(super) api_key: Option<Arc<str>>,
    /// It stands in the configuration: its address is given, and it is never forgotten.
    pub(super) fixed: bool,
    pub(super) report: Option<NodeReport>,
    pub(super) heard: Option<Duration>,
    pub(super) down: bool,
    /// Its last report came by itself.
    pub(super) pushes: bool,
    boot: u64,
    epoch: u64,
    old_boots: VecDeque<String>,
    own: BTreeMap<String, Own>,
}

impl Node {
    pub(super) fn new(name: &str, address: &str, kind: NodeKind) -> Self {
        Self {
            name: name.into(),
            address: address.into(),
            kind,
            api_key: None,
            fixed: false,
            report: None,
            heard: None,
            down: false,
            pushes: false,
            boot: 0,
            epoch: 0,
            old_boots: VecDeque::new(),
            own: BTreeMap::new(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// `http://HOST:PORT`.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// What it speaks.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// The key that the gateway shows to it.
    pub fn api_key(&self) -> Option<&Arc<str>> {
        self.api_key.as_ref()
    }

    /// The last report.
    pub fn report(&self) -> Option<&NodeReport> {
        self.report.as_ref()
    }

    /// When it last reported.
    pub fn heard(&self) -> Option<Duration> {
        self.heard
    }

    /// Whether it reports by itself.
    pub fn pushes(&self) -> bool {
        self.pushes
    }

    /// Grows with every restart of the node.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Whether it gets requests.
    pub fn standing(&self, now: Duration, silence: Duration) -> Standing {
        let lately = self.heard.is_some_and(|heard| now.saturating_sub(heard) <= silence);
        match &self.report {
            _ if self.down => Standing::Down,
            Some(report) if lately && report.draining => Standing::Draining,
            Some(_) if lately => Standing::Up,
            _ => Standing::Silent,
        }
    }

    /// A model of its last report.
    pub fn model(&self, id: &str) -> Option<&ModelStatus> {
        self.report.as_ref()?.models.iter().find(|model| model.id == id)
    }

    /// Whether a model takes requests.
    pub fn is_ready(&self, id: &str) -> bool {
        self.model(id).is_some_and(|model| model.state == ModelState::Ready)
    }

    /// Requests on a model: the reported ones and those sent since, and never fewer than this gateway itself has on it.
    ///
    /// Both are counts of requests that are there; nothing is subtracted from a report, so it can't go below zero. A
    /// request that was sent before the report and has ended since counts until the next one.
    pub fn in_flight(&self, id: &str) -> u32 {
        let own = self.own.get(id).copied().unwrap_or_default();
        let reported = self.model(id).map_or(0, |model| model.in_flight);
        reported.saturating_add(own.since_report).max(own.open)
    }

    /// Requests of this gateway on a model.
    pub fn own_open(&self, id: &str) -> u32 {
        self.own.get(id).map_or(0, |own| own.open)
    }

    /// Whether the report is of a boot that is over.
    pub(super) fn is_over(&self, boot_id: &str) -> bool {
        self.old_boots.iter().any(|old| old == boot_id)
    }

    /// Takes a report in.
    pub(super) fn take(&mut self, now: Duration, pushed: bool, report: NodeReport) {
        if let Some(last) = self.report.take().filter(|last| last.boot_id != report.boot_id) {
            self.old_boots.push_back(last.boot_id);
            if self.old_boots.len() > OLD_BOOTS {
                self.old_boots.pop_front();
            }
            self.boot += 1;
            self.own.clear();
        }
        if let Some(address) = report.address.as_ref().filter(|_| !self.fixed) {
            self.address = address.as_str().into();
        }
        self.own.retain(|_, own| own.open > 0);
        self.own.values_mut().for_each(|own| own.since_report = 0);
        self.epoch += 1;
        self.report = Some(report);
        self.heard = Some(now);
        self.down = false;
        self.pushes = pushed;
    }

    pub(super) fn sent(&mut self, model: &str) -> Ticket {
        let own = self.own.entry(model.to_owned()).or_default();
        own.open += 1;
        own.since_report += 1;
        Ticket { node: self.name.clone(), model: model.to_owned(), boot: self.boot, epoch: self.epoch }
    }

    /// Whether the request was of this boot.
    pub(super) fn ended(&mut self, ticket: &Ticket) -> bool {
        let current = ticket.boot == self.boot;
        if let Some(own) = self.own.get_mut(&ticket.model).filter(|_| current) {
            own.open = own.open.saturating_sub(1);
            if ticket.epoch == self.epoch {
                own.since_report = own.since_report.saturating_sub(1);
            }
        }
        current
    }
}
