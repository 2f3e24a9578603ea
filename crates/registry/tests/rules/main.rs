//! The rules, one by one. The node has room for 20 bytes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bringing;
mod leaving;
mod loading;
mod pressure;
mod room;

use lichen_registry::Action::{Load, Unload};
use lichen_registry::{Action, Entry, Limits, Registry, RegistryError, ReplicaId, State, Unavailable};
use std::time::Duration;

const RESIDENCY: u64 = 30;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn entry(name: &str, bytes: u64) -> Entry {
    Entry { name: name.to_owned(), bytes, ttl: None, pinned: false, priority: 0 }
}

fn pinned(name: &str, bytes: u64) -> Entry {
    Entry { pinned: true, ..entry(name, bytes) }
}

fn brief(name: &str, bytes: u64, ttl: u64) -> Entry {
    Entry { ttl: Some(at(ttl)), ..entry(name, bytes) }
}

fn empty() -> Registry {
    Registry::new(Limits { bytes: 20, min_residency: at(RESIDENCY), ..Limits::default() })
}

/// Loads a replica at this time, and performs what that takes.
fn ready(registry: &mut Registry, now: Duration, entry: Entry) -> ReplicaId {
    let bytes = entry.bytes;
    let (id, mut actions) = registry.load(now, entry).unwrap();
    while let Some(action) = actions.pop() {
        actions.extend(match action {
            Unload(gone) => registry.unloaded(now, gone),
            Load(_) => Vec::new(),
        });
    }
    registry.loaded(now, id, bytes);
    assert_eq!(state(registry, id), Some(State::Ready));
    id
}

fn state(registry: &Registry, id: ReplicaId) -> Option<State> {
    registry.list().find(|view| view.id == id).map(|view| view.state)
}

fn loads(actions: &[Action]) -> usize {
    actions.iter().filter(|action| matches!(action, Load(_))).count()
}

/// A request that starts and ends at this time.
fn serve(registry: &mut Registry, now: Duration, name: &str) -> ReplicaId {
    let id = registry.acquire(now, name).unwrap();
    registry.release(now, id);
    id
}
