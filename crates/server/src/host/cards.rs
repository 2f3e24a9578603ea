//! What there is, for people and metrics.

use lichen_api::ModelCard;
use lichen_registry::{Cause, History, Outcome, State, View};
use serde_json::{Value, json};

use super::Host;

/// Loads that ended so often in each way, and loaded replicas that had to go so often for each cause.
pub(crate) struct Comings {
    pub(crate) loads: [(&'static str, u64); Outcome::ALL.len()],
    pub(crate) unloaded: [(&'static str, u64); Cause::ALL.len()],
}

impl Comings {
    fn of(history: &History) -> Self {
        Self {
            loads: Outcome::ALL.map(|outcome| (outcome.name(), history.loads(outcome))),
            unloaded: Cause::ALL.map(|cause| (cause.name(), history.unloaded(cause))),
        }
    }
}

/// The word for a state, and how much of a load is done.
fn state(state: &State) -> (&'static str, f32) {
    match state {
        State::Ready => ("ready", 1.0),
        State::Queued => ("loading", 0.0),
        State::Loading { progress, .. } => ("loading", *progress),
        State::Draining | State::Unloading => ("draining", 0.0),
        State::Failed { .. } => ("failed", 0.0),
    }
}

impl Host {
    /// How often models came and went.
    pub(crate) fn comings(&self) -> Comings {
        Comings::of(self.lock().registry.history())
    }

    /// The loaded replicas that had to go last, the newest first.
    pub(crate) fn departures(&self) -> Vec<Value> {
        let now = self.now();
        let models = self.lock();
        let departures = models.registry.history().departures().rev();
        let told = departures.map(|gone| {
            json!({
                "seconds_ago": now.saturating_sub(gone.at).as_secs_f64(),
                "model": gone.name,
                "id": gone.id.to_string(),
                "bytes": gone.bytes,
                "reason": gone.cause.name(),
            })
        });
        told.collect()
    }

    /// The replicas of a name, by what unloads one of them.
    pub(crate) fn instances(&self, name: &str) -> Vec<Value> {
        let now = self.now();
        let models = self.lock();
        let told = |view: View<'_>| {
            json!({
                "id": view.id.to_string(),
                "state": state(&view.state).0,
                "in_flight": view.in_flight,
                "bytes": view.bytes,
                "idle_s": view.last_used.map(|at| now.saturating_sub(at).as_secs_f64()),
                "pinned": view.pinned,
            })
        };
        let replicas = models.registry.list().filter(|view| view.name == name);
        replicas.filter(|view| !matches!(view.state, State::Failed { .. })).map(told).collect()
    }

    /// One card a name: that of its readiest replica.
    pub(crate) fn cards(&self, draining: bool) -> Vec<ModelCard> {
        let models = self.lock();
        let mut cards: Vec<ModelCard> = Vec::new();
        for view in models.registry.list() {
            let model = models.loaded.get(&view.id);
            let (state, progress) = if draining { ("draining", 0.0) } else { state(&view.state) };
            let failure = match view.state {
                State::Failed { reason } => Some(reason),
                _ => None,
            };
            let card = ModelCard {
                id: view.name.to_owned(),
                created: model.map_or(0, |model| model.created()),
                context_cap: model.map(|model| model.generate().context_cap()),
                state,
                progress,
                failure,
                in_flight: view.in_flight,
                bytes: view.bytes,
                replicas: 1,
            };
            match cards.iter_mut().find(|known| known.id == card.id) {
                Some(known) => known.join(card),
                None => cards.push(card),
            }
        }
        for (name, staging) in &models.staging {
            let staged =
                ModelCard { state: "staging", progress: staging.progress, ..ModelCard::absent(name, 0) };
            match cards.iter_mut().find(|known| known.id == *name) {
                Some(known) => known.join(staged),
                None => cards.push(staged),
            }
        }
        for entry in models.registry.declared() {
            if !cards.iter().any(|card| card.id == entry.name) {
                cards.push(ModelCard::absent(&entry.name, entry.bytes));
            }
        }
        cards
    }
}
