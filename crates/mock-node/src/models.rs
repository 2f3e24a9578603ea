//! The models that a mock node pretends to hold, within a budget of bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lichen_contract::{Ensured, LoadRequest, Memory, ModelState, ModelStatus};

#[derive(Debug, Clone)]
struct Held {
    status: ModelStatus,
    /// When its load is done, and how long that takes.
    loading: Option<(Instant, Duration)>,
    last_used: Option<Instant>,
}

/// What is held and how much room there is.
#[derive(Debug, Clone)]
pub(crate) struct Models {
    pub(crate) budget: u64,
    held: BTreeMap<String, Held>,
}

impl Models {
    /// Nothing is held yet.
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, held: BTreeMap::new() }
    }

    /// Makes a model known. Absent ones take no room until they are loaded.
    pub(crate) fn add(&mut self, status: ModelStatus) {
        self.held.insert(status.id.clone(), Held { status, loading: None, last_used: None });
    }

    pub(crate) fn free(&self) -> u64 {
        let takes =
            |held: &&Held| !matches!(held.status.state, ModelState::Absent | ModelState::Failed { .. });
        let used: u64 = self.held.values().filter(takes).map(|held| held.status.bytes).sum();
        self.budget.saturating_sub(used)
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory { budget_bytes: self.budget, free_bytes: self.free() }
    }

    /// Ends loads whose time has come.
    fn settle(&mut self) {
        let now = Instant::now();
        for held in self.held.values_mut() {
            let Some((done, takes)) = held.loading else { continue };
            let left = done.saturating_duration_since(now);
            if left.is_zero() {
                held.loading = None;
                held.status.state = ModelState::Ready;
                held.status.load_s = u32::try_from(takes.as_secs()).ok();
            } else {
                let progress = 1.0 - left.as_secs_f32() / takes.as_secs_f32();
                let eta_s = u32::try_from(left.as_secs() + 1).ok();
                held.status.state = ModelState::Loading { progress, eta_s };
            }
        }
    }

    pub(crate) fn statuses(&mut self) -> Vec<ModelStatus> {
        self.settle();
        let idle = |held: &Held| held.last_used.and_then(|used| u32::try_from(used.elapsed().as_secs()).ok());
        self.held.values().map(|held| ModelStatus { idle_s: idle(held), ..held.status.clone() }).collect()
    }

    /// Takes a reference; false if the model doesn't take requests.
    pub(crate) fn begin(&mut self, id: &str) -> bool {
        self.settle();
        let ready = self.held.get_mut(id).filter(|held| held.status.state == ModelState::Ready);
        ready.map(|held| held.status.in_flight += 1).is_some()
    }

    pub(crate) fn end(&mut self, id: &str) {
        if let Some(held) = self.held.get_mut(id) {
            held.status.in_flight = held.status.in_flight.saturating_sub(1);
            held.last_used = Some(Instant::now());
        }
    }

    /// Begins a load, or says why not. Returns what went for it, too; the flag says whether a load began.
    pub(crate) fn ensure(&mut self, order: &LoadRequest, takes: Duration) -> (Ensured, Vec<String>, bool) {
        self.settle();
        let id = order.name.as_deref().unwrap_or(&order.model_id);
        let Some(held) = self.held.get(id) else {
            let cause = format!("no model '{id}' is known here");
            return (Ensured::Failed { cause, retry_after_s: None }, Vec::new(), false);
        };
        match held.status.state {
            ModelState::Ready => return (Ensured::Ready, Vec::new(), false),
            ModelState::Loading { progress, eta_s } => {
                return (Ensured::Loading { progress, eta_s }, Vec::new(), false);
            }
            _ => {}
        }
        let need = held.status.bytes;
        if need > self.budget {
            let verdict = Ensured::NeverFits { needs_bytes: need, has_bytes: self.budget };
            return (verdict, Vec::new(), false);
        }
        let gone = self.make_room(need, &order.evict);
        if self.free() < need {
            return (self.no_room(), gone, false);
        }
        let (name, pinned) = (id.to_owned(), order.pin);
        if let Some(held) = self.held.get_mut(&name) {
            held.loading = Some((Instant::now() + takes, takes));
            held.status.pinned |= pinned;
            held.status.priority = order.priority;
        }
        self.settle();
        let verdict = match self.held.get(&name).map(|held| &held.status.state) {
            Some(ModelState::Loading { progress, eta_s }) => {
                Ensured::Loading { progress: *progress, eta_s: *eta_s }
            }
            _ => Ensured::Ready,
        };
        (verdict, gone, true)
    }

    /// Lets idle models of the list go until there is room. Nothing goes if that is not enough.
    fn make_room(&mut self, need: u64, evict: &[String]) -> Vec<String> {
        let mut room = self.free();
        let mut going = Vec::new();
        for id in evict {
            let goes = self.held.get(id).filter(|held| {
                held.status.state == ModelState::Ready && held.status.in_flight == 0 && !held.status.pinned
            });
            if let Some(held) = goes.filter(|_| room < need) {
                room += held.status.bytes;
                going.push(id.clone());
            }
        }
        if room < need {
            return Vec::new();
        }
        for id in &going {
            if let Some(held) = self.held.get_mut(id) {
                held.status.state = ModelState::Absent;
            }
        }
        going
    }

    fn no_room(&self) -> Ensured {
        let pinned = self.held.values().filter(|held| held.status.pinned).map(|held| held.status.id.clone());
        let by: Vec<String> = pinned.collect();
        let busy = self.held.values().any(|held| held.status.in_flight > 0 || held.loading.is_some());
        if by.is_empty() || busy { Ensured::Busy { retry_after_s: 1 } } else { Ensured::PinnedOut { by } }
    }

    /// Lets a model go; `None` if it isn't held.
    pub(crate) fn unload(&mut self, id: &str) -> Option<u32> {
        let held = self.held.get_mut(id)?;
        held.status.state = ModelState::Absent;
        held.loading = None;
        Some(held.status.in_flight)
    }
}
