//! All nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lichen_contract::NodeReport;

use super::{Node, Standing, Ticket};
use crate::config::{FleetConfig, NodeConfig, NodeKind};

/// How long silence is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// After which a node gets no requests.
    pub silence: Duration,
    /// After which a node that has joined by itself is forgotten.
    pub forget: Duration,
}

impl From<&FleetConfig> for Limits {
    fn from(config: &FleetConfig) -> Self {
        Self { silence: config.silence(), forget: Duration::from_secs(config.forget_after_s) }
    }
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The node is new, or its first news has come.
    Joined,
    /// It is news of a known node.
    News,
    /// The node has started anew.
    Rebooted,
    /// It is not newer than what is known.
    Stale,
    /// It lacks an address, and the node isn't known.
    Unreachable,
}

/// The nodes of the fleet.
#[derive(Debug, Clone)]
pub struct Members {
    limits: Limits,
    nodes: BTreeMap<Arc<str>, Node>,
}

impl Members {
    /// The nodes of the configuration, of which nothing is known yet.
    pub fn new(limits: Limits, nodes: &[NodeConfig]) -> Self {
        let node = |config: &NodeConfig| {
            let mut node =
                Node::new(&config.name, config.endpoint.get_ref().trim_end_matches('/'), config.kind);
            node.fixed = true;
            node.api_key = config.api_key.as_deref().map(Arc::from);
            (node.name.clone(), node)
        };
        Self { limits, nodes: nodes.iter().map(node).collect() }
    }

    /// All nodes, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// A node by name.
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// Whether a node gets requests.
    pub fn standing(&self, now: Duration, node: &Node) -> Standing {
        node.standing(now, self.limits.silence)
    }

    /// Whether a node has reported within the silence that is borne.
    pub fn heard_lately(&self, now: Duration, node: &Node) -> bool {
        node.heard.is_some_and(|heard| now.saturating_sub(heard) <= self.limits.silence)
    }

    /// The nodes that get requests.
    pub fn up(&self, now: Duration) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(move |node| self.standing(now, node) == Standing::Up)
    }

    /// Takes a report that a node has pushed. The node is the one that has reported under this id before, else a
    /// configured one with this address, else a new one.
    pub fn pushed(&mut self, now: Duration, api_key: Option<&str>, report: NodeReport) -> Heard {
        let reported = |node: &&Node| node.report.as_ref().is_some_and(|last| last.node_id == report.node_id);
        let addressed = |node: &&Node| report.address.as_deref() == Some(&*node.address);
        let known = self.nodes.values().find(reported).or_else(|| self.nodes.values().find(addressed));
        let name = known.map_or_else(|| Arc::from(report.node_id.as_str()), |node| node.name.clone());
        if !self.nodes.contains_key(&name) {
            let Some(address) = report.address.as_deref() else { return Heard::Unreachable };
            let mut node = Node::new(&report.node_id, address, NodeKind::Lichen);
            node.api_key = api_key.map(Arc::from);
            self.nodes.insert(name.clone(), node);
        }
        self.take(now, &name, true, report)
    }

    /// Takes the answer of a node that was asked.
    pub fn polled(&mut self, now: Duration, name: &str, report: NodeReport) -> Heard {
        if self.nodes.contains_key(name) { self.take(now, name, false, report) } else { Heard::Unreachable }
    }

    fn take(&mut self, now: Duration, name: &str, pushed: bool, report: NodeReport) -> Heard {
        let Some(node) = self.nodes.get_mut(name) else { return Heard::Unreachable };
        let heard = match &node.report {
            None => Heard::Joined,
            Some(last) if last.boot_id == report.boot_id && last.sequence >= report.sequence => Heard::Stale,
            Some(last) if last.boot_id == report.boot_id => Heard::News,
            Some(_) if node.is_over(&report.boot_id) => Heard::Stale,
            Some(_) => Heard::Rebooted,
        };
        if heard != Heard::Stale {
            node.take(now, pushed, report);
        }
        heard
    }

    /// Counts a request to a node. `None` if the node is gone.
    pub fn sent(&mut self, node: &str, model: &str) -> Option<Ticket> {
        self.nodes.get_mut(node).map(|node| node.sent(model))
    }

    /// A request has ended, whatever came of it.
    pub fn finished(&mut self, ticket: &Ticket) {
        if let Some(node) = self.nodes.get_mut(&ticket.node) {
            node.ended(ticket);
        }
    }

    /// A request has ended because the node could not be reached or broke off. The node gets no more until it reports,
    /// unless it has started anew since.
    pub fn failed(&mut self, ticket: &Ticket) {
        if let Some(node) = self.nodes.get_mut(&ticket.node) {
            node.down |= node.ended(ticket);
        }
    }

    /// The node did not answer when asked how it is.
    pub fn unreachable(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.down = true;
        }
    }

    /// Forgets nodes that have joined by themselves and been silent for too long.
    pub fn forget_silent(&mut self, now: Duration) {
        let forget = self.limits.forget;
        let gone = |node: &Node| node.heard.is_none_or(|heard| now.saturating_sub(heard) > forget);
        self.nodes.retain(|_, node| node.fixed || !gone(node));
    }
}
