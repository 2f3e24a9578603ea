//! Which node answers a request. Pure.
//!
//! Nodes that are up and hold the model are scored; the lowest score wins. Among equals two are drawn and the one with
//! fewer requests of this gateway is taken (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing").

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use crate::config::{NodeKind, RoutingConfig};
use crate::fleet::{Members, Node, Ticket};
use crate::recent::Recent;

/// Sessions whose node is remembered.
const SESSIONS: usize = 16_384;
/// Scores that differ by less are equal.
const EQUAL: f32 = 1e-3;

/// A request to be routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The model's name on the nodes.
    pub model: &'a str,
    /// Hashes of the prompt's blocks, see [`crate::body::Scanned::prefix`].
    pub prefix: &'a [u64],
    /// The session, if the client names one.
    pub session: Option<&'a str>,
    /// Only nodes that speak every dialect can answer it.
    pub lichen_only: bool,
}

/// A request on its way.
#[derive(Debug)]
pub struct Dispatch {
    /// Counts the request until it is given back.
    pub ticket: Ticket,
    /// Where it goes.
    pub target: Target,
}

/// How a node is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `http://HOST:PORT`.
    pub address: Arc<str>,
    /// The key that the node wants.
    pub api_key: Option<Arc<str>>,
    /// What the node speaks.
    pub kind: NodeKind,
}

impl Target {
    /// How this node is reached.
    pub fn of(node: &Node) -> Self {
        Self { address: node.address().clone(), api_key: node.api_key().cloned(), kind: node.kind() }
    }
}

/// What a node has seen of prompts.
#[derive(Debug)]
struct Seen {
    boot: u64,
    blocks: Recent<u64, ()>,
}

/// Chooses nodes and remembers what they have seen.
#[derive(Debug)]
pub struct Router {
    weights: RoutingConfig,
    seen: HashMap<Arc<str>, Seen, RandomState>,
    sessions: Recent<String, Arc<str>>,
    random: u64,
}

impl Router {
    /// A router that has seen nothing; `seed` decides among equals.
    pub fn new(weights: RoutingConfig, seed: u64) -> Self {
        Self { weights, seen: HashMap::default(), sessions: Recent::new(SESSIONS), random: seed }
    }

    /// Chooses a node that was not `tried` yet and counts the request on it. `None` if no node has the model ready.
    pub fn dispatch(
        &mut self,
        now: Duration,
        members: &mut Members,
        ask: Ask<'_>,
        tried: &[Arc<str>],
    ) -> Option<Dispatch> {
        let name = self.choose(now, members, ask, tried)?;
        let ticket = members.sent(&name, ask.model)?;
        let node = members.get(&name)?;
        self.note(node, ask);
        Some(Dispatch { ticket, target: Target::of(node) })
    }

    fn choose(
        &mut self,
        now: Duration,
        members: &Members,
        ask: Ask<'_>,
        tried: &[Arc<str>],
    ) -> Option<Arc<str>> {
        let speaks = |node: &Node| !ask.lichen_only || node.kind() == NodeKind::Lichen;
        let can = |node: &&Node| node.is_ready(ask.model) && speaks(node) && !tried.contains(node.name());
        let scored: Vec<_> = members.up(now).filter(can).map(|node| (self.score(node, ask), node)).collect();
        let best = scored.iter().map(|(score, _)| *score).min_by(f32::total_cmp)?;
        let mut equals: Vec<&Node> =
            scored.into_iter().filter(|(score, _)| *score <= best + EQUAL).map(|(_, node)| node).collect();
        let first = equals.swap_remove(self.below(equals.len()));
        let second = if equals.is_empty() { first } else { equals[self.below(equals.len())] };
        let fewer = second.own_open(ask.model) < first.own_open(ask.model);
        Some(if fewer { second } else { first }.name().clone())
    }

    /// How long the request would wait there, in requests in flight.
    fn score(&self, node: &Node, ask: Ask<'_>) -> f32 {
        let (queued, kv_use) = node.model(ask.model).map_or((0, 0.0), |model| (model.queued, model.kv_use));
        let session = ask.session.and_then(|session| self.sessions.get(&session_key(ask.model, session)));
        let waits = node.in_flight(ask.model) as f32
            + self.weights.queued * queued as f32
            + self.weights.kv_use * kv_use.clamp(0.0, 1.0);
        let knows = self.weights.prefix * self.share_seen(node, ask.prefix)
            + if session == Some(node.name()) { self.weights.session } else { 0.0 };
        waits - knows
    }

    /// The share of a prompt that a node has seen.
    fn share_seen(&self, node: &Node, prefix: &[u64]) -> f32 {
        let Some(seen) = self.seen.get(node.name()).filter(|seen| seen.boot == node.boot()) else {
            return 0.0;
        };
        if prefix.is_empty() {
            return 0.0;
        }
        // Whoever has seen a block has seen all before it.
        let blocks = prefix.partition_point(|block| seen.blocks.get(block).is_some());
        blocks as f32 / prefix.len() as f32
    }

    fn note(&mut self, node: &Node, ask: Ask<'_>) {
        if let Some(session) = ask.session {
            self.sessions.insert(session_key(ask.model, session), node.name().clone());
        }
        if ask.prefix.is_empty() {
            return;
        }
        let fresh = || Seen { boot: node.boot(), blocks: Recent::new(self.weights.prefix_blocks.max(1)) };
        let seen = self.seen.entry(node.name().clone()).or_insert_with(fresh);
        if seen.boot != node.boot() {
            *seen = Seen { boot: node.boot(), blocks: Recent::new(self.weights.prefix_blocks.max(1)) };
        }
        ask.prefix.iter().for_each(|block| seen.blocks.insert(*block, ()));
    }

    /// A number below `end` (SplitMix64).
    fn below(&mut self, end: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

fn session_key(model: &str, session: &str) -> String {
    format!("{model}\n{session}")
}
