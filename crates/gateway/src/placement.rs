//! Where a model is loaded that nobody holds, and what goes for it. Pure.
//!
//! A node is asked for room only if the model can fit there. Models give way by their value: what it would cost to load
//! them again, times how likely that is soon, times their class. A busy or a pinned model never gives way, nor does one
//! of a higher class.

use std::sync::Arc;
use std::time::Duration;

use lichen_contract::{ModelState, ModelStatus};
use serde::Deserialize;

use crate::catalogue::CatalogueModel;
use crate::config::NodeKind;
use crate::fleet::{Members, Node, Standing};

/// Bytes a second that a load reads, where no load was timed.
const ASSUMED_LOAD_RATE: f64 = 500e6;
/// Idle seconds after which a model is half as likely to be wanted soon.
const HALF_LIKELY: f64 = 120.0;
/// Seconds after which a node whose models are all busy is asked again.
const BUSY_RETRY: u32 = 2;

/// Which idle models go first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The least valuable: cheap to load again, idle for long, of a low class.
    #[default]
    Value,
    /// The longest idle.
    Lru,
    /// The lowest class, and of one class the longest idle.
    Priority,
}

/// What is to be done with a model that no node holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This node is to load it.
    Load {
        /// The node.
        node: Arc<str>,
        /// What may go for it, the least valuable first.
        evict: Vec<String>,
    },
    /// It is larger than every node that may hold it, whatever goes.
    NeverFits {
        /// Bytes needed.
        needs: u64,
        /// Bytes of the largest node.
        has: u64,
    },
    /// Models that don't give way hold the room.
    PinnedOut {
        /// Their names.
        by: Vec<String>,
    },
    /// Models that are answering hold the room.
    Busy {
        /// Seconds after which asking again makes sense.
        retry_after: u32,
    },
    /// No node that may hold it is up.
    NoNode,
}

/// Decides where a model is loaded. Nodes in `excluded` have refused it for good.
pub fn place(
    now: Duration,
    members: &Members,
    model: &CatalogueModel,
    strategy: Strategy,
    excluded: &[Arc<str>],
) -> Verdict {
    let may_hold = |node: &&Node| {
        node.kind() == NodeKind::Lichen
            && (model.pinned_on.is_empty() || model.pinned_on.iter().any(|name| **name == **node.name()))
    };
    let holders: Vec<&Node> = members.iter().filter(may_hold).collect();
    let fitting: Vec<&Node> = holders.iter().copied().filter(|node| fits_alone(node, model)).collect();
    if fitting.is_empty() {
        return never_fits(&holders, model);
    }
    let up: Vec<&Node> = fitting
        .into_iter()
        .filter(|node| members.standing(now, node) == Standing::Up && !excluded.contains(node.name()))
        .collect();
    if let Some(node) = up.iter().find(|node| is_on_its_way(node, model.name())) {
        return Verdict::Load { node: node.name().clone(), evict: Vec::new() };
    }
    let offers = up.iter().filter_map(|node| offer(node, model, strategy));
    match offers.min_by(|a, b| a.compare(b)) {
        Some(offer) => Verdict::Load { node: offer.node.name().clone(), evict: offer.evict },
        None if up.is_empty() => Verdict::NoNode,
        None => why_no_room(&up, model),
    }
}

/// As long as one node was never heard of it can't be told what fits.
fn never_fits(holders: &[&Node], model: &CatalogueModel) -> Verdict {
    let budgets: Option<Vec<u64>> =
        holders.iter().map(|node| node.report().map(|report| report.memory.budget_bytes)).collect();
    match budgets.and_then(|budgets| budgets.into_iter().max()) {
        Some(has) => Verdict::NeverFits { needs: model.bytes(), has },
        None => Verdict::NoNode,
    }
}

/// Whether the node could hold the model if it held nothing else.
fn fits_alone(node: &Node, model: &CatalogueModel) -> bool {
    let Some(report) = node.report() else { return false };
    let enough = |memory: u64| memory >= model.min_device_memory_mb << 20;
    let devices = report.devices.iter().filter(|device| enough(device.memory_bytes)).count();
    // A node that names no devices has one.
    let devices = if report.devices.is_empty() { 1 } else { devices };
    report.memory.budget_bytes >= model.bytes() && devices >= model.min_devices as usize
}

fn is_on_its_way(node: &Node, model: &str) -> bool {
    let coming = |status: &ModelStatus| {
        matches!(status.state, ModelState::Staging { .. } | ModelState::Loading { .. } | ModelState::Ready)
    };
    node.model(model).is_some_and(coming)
}

/// A node that can take the model, and at what price.
struct Offer<'a> {
    node: &'a Node,
    evict: Vec<String>,
    price: f64,
    /// Requests on all its models.
    busy: u32,
    /// Bytes free before anything goes.
    free: u64,
}

impl Offer<'_> {
    /// The cheapest, then the least busy, then the emptiest, then by name.
    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let order = self.price.total_cmp(&other.price).then(self.busy.cmp(&other.busy));
        order.then(other.free.cmp(&self.free)).then_with(|| self.node.name().cmp(other.node.name()))
    }
}

fn offer<'a>(node: &'a Node, model: &CatalogueModel, strategy: Strategy) -> Option<Offer<'a>> {
    let report = node.report()?;
    let free = report.memory.free_bytes;
    let busy = report.models.iter().map(|status| node.in_flight(&status.id)).sum();
    let missing = model.bytes().saturating_sub(free);
    let (evict, price) = cheapest(node, model, missing, strategy)?;
    Some(Offer { node, evict, price, busy, free })
}

/// The models to give up for so many bytes, the least valuable first, and what they are worth. `None` if all that may
/// go is not enough.
fn cheapest(
    node: &Node,
    model: &CatalogueModel,
    missing: u64,
    strategy: Strategy,
) -> Option<(Vec<String>, f64)> {
    let mut idle: Vec<(f64, &ModelStatus)> = loaded(node)
        .filter(|status| gives_way(status, model) && !is_busy(node, status))
        .map(|status| (value(status, strategy), status))
        .collect();
    idle.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.id.cmp(&b.1.id)));
    let mut freed = 0;
    let enough = idle.iter().position(|(_, status)| {
        freed += status.bytes;
        freed >= missing
    });
    let mut chosen = match enough {
        _ if missing == 0 => Vec::new(),
        Some(last) => idle[..=last].to_vec(),
        None => return None,
    };
    // Of what was chosen, the most valuable that the rest can do without stays.
    for index in (0..chosen.len()).rev() {
        if freed - chosen[index].1.bytes >= missing {
            freed -= chosen.remove(index).1.bytes;
        }
    }
    let price = chosen.iter().map(|(value, _)| value).sum();
    Some((chosen.into_iter().map(|(_, status)| status.id.clone()).collect(), price))
}

/// Models that take memory and are not about to go.
fn loaded(node: &Node) -> impl Iterator<Item = &ModelStatus> {
    let takes = |status: &&ModelStatus| {
        status.bytes > 0
            && matches!(
                status.state,
                ModelState::Ready | ModelState::Loading { .. } | ModelState::Staging { .. }
            )
    };
    node.report().into_iter().flat_map(|report| &report.models).filter(takes)
}

/// Whether a model's class lets it go for another.
fn gives_way(status: &ModelStatus, model: &CatalogueModel) -> bool {
    !status.pinned && status.priority <= model.residency_priority && status.id != model.name()
}

/// Whether requests run or wait on it, or it is being loaded, for somebody who waits.
fn is_busy(node: &Node, status: &ModelStatus) -> bool {
    status.state != ModelState::Ready || node.in_flight(&status.id) > 0 || status.queued > 0
}

/// What a model is worth where it is.
fn value(status: &ModelStatus, strategy: Strategy) -> f64 {
    let idle = f64::from(status.idle_s.unwrap_or(0));
    let class = f64::from(status.priority);
    match strategy {
        Strategy::Value => {
            let reload = status.load_s.map_or(status.bytes as f64 / ASSUMED_LOAD_RATE, f64::from).max(0.1);
            // Each hundred of class doubles it.
            reload * (class / 100.0).exp2() / (1.0 + idle / HALF_LIKELY)
        }
        Strategy::Lru => 1.0 / (1.0 + idle),
        Strategy::Priority => class * 1e6 + 1e6 / (1.0 + idle),
    }
}

/// There are nodes that the model fits on, and no room on any. If on one of them the models that don't give way leave
/// room enough, it is only that the others are busy.
fn why_no_room(up: &[&Node], model: &CatalogueModel) -> Verdict {
    let holding = |node: &Node| -> Vec<ModelStatus> {
        loaded(node).filter(|status| !gives_way(status, model)).cloned().collect()
    };
    let only_busy = |node: &&Node| {
        let held: u64 = holding(node).iter().map(|status| status.bytes).sum();
        node.report().is_some_and(|report| report.memory.budget_bytes.saturating_sub(held) >= model.bytes())
    };
    if up.iter().any(only_busy) {
        return Verdict::Busy { retry_after: BUSY_RETRY };
    }
    let mut by: Vec<String> = up.iter().flat_map(|node| holding(node)).map(|status| status.id).collect();
    by.sort();
    by.dedup();
    Verdict::PinnedOut { by }
}
