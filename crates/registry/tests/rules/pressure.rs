//! Memory that is short: who gives way, and loads that find less room than was thought.

use super::*;
use lichen_registry::{Cause, Outcome};

/// Idleness after which a replica gives way.
const IDLE: u64 = 30;

fn declared(registry: &mut Registry, now: Duration, entry: Entry) -> ReplicaId {
    registry.declare(entry.clone());
    ready(registry, now, entry)
}

#[test]
fn the_least_recently_used_model_gives_way_and_comes_back_when_asked_for() {
    let mut registry = empty();
    let a = declared(&mut registry, at(0), entry("a", 8));
    let b = declared(&mut registry, at(0), entry("b", 8));
    serve(&mut registry, at(1), "b");
    serve(&mut registry, at(2), "a");
    assert_eq!(registry.idle_bytes(at(1 + IDLE)), 8, "a was used later");
    assert_eq!(registry.relieve(at(2 + IDLE), 1), (8, vec![Unload(b)]));
    assert_eq!(registry.history().unloaded(Cause::Pressure), 1);
    registry.unloaded(at(2 + IDLE), b);
    assert_eq!(state(&registry, a), Some(State::Ready));
    let (_, actions) = registry.ensure(at(40), "b");
    assert_eq!(loads(&actions), 1);
}

#[test]
fn nothing_pinned_busy_waited_for_fresh_or_undeclared_gives_way() {
    let mut registry = empty();
    declared(&mut registry, at(0), pinned("pinned", 4));
    declared(&mut registry, at(0), entry("busy", 4));
    ready(&mut registry, at(0), entry("undeclared", 4));
    declared(&mut registry, at(99), entry("fresh", 4));
    declared(&mut registry, at(0), entry("waited for", 4));
    registry.acquire(at(0), "busy").unwrap();
    let waiter = registry.wait("waited for").unwrap();
    assert_eq!(registry.relieve(at(100), 20), (0, vec![]));
    registry.give_up(at(100), waiter);
    assert_eq!(registry.idle_bytes(at(100)), 4);
}

#[test]
fn an_extra_replica_gives_way_before_a_last_one_whoever_was_used_later() {
    let mut registry = empty();
    let first = declared(&mut registry, at(0), entry("a", 4));
    declared(&mut registry, at(1), entry("b", 4));
    let second = ready(&mut registry, at(2), entry("a", 4));
    let (freed, actions) = registry.relieve(at(100), 1);
    assert_eq!((freed, actions), (4, vec![Unload(first)]));
    assert_eq!(state(&registry, second), Some(State::Ready));
}

#[test]
fn a_load_that_finds_no_room_has_idle_models_evicted_and_is_begun_again_once() {
    let mut registry = empty();
    let b = declared(&mut registry, at(0), entry("b", 8));
    serve(&mut registry, at(1), "b");
    registry.declare(entry("a", 8));
    let (_, actions) = registry.ensure(at(2), "a");
    let Some(&Load(a)) = actions.first() else { panic!("a load") };
    let (again, actions) = registry.crowded(at(3), a, 8, 5);
    assert_eq!(actions, [Unload(b)]);
    let again = again.unwrap();
    assert_eq!(registry.unloaded(at(4), b), [Load(again)]);
    // It finds no room again, and there is nobody left to go.
    let (none, actions) = registry.crowded(at(5), again, 8, 5);
    assert_eq!((none, actions), (None, vec![]));
    let why = registry.acquire(at(5), "a").unwrap_err();
    assert!(!why.worth_waiting());
    let Unavailable::Refused(RegistryError::NoRoomNow { need: 8, available: 5, .. }) = why else {
        panic!("{why}");
    };
    assert_eq!(registry.history().loads(Outcome::Crowded), 1);
    assert_eq!(registry.history().unloaded(Cause::Room), 1);
}

#[test]
fn a_load_that_finds_no_room_waits_for_the_busy_and_never_ends_them() {
    let mut registry = empty();
    let b = declared(&mut registry, at(0), entry("b", 8));
    registry.acquire(at(0), "b").unwrap();
    registry.declare(entry("a", 8));
    let waiter = registry.wait("a").unwrap();
    let Load(a) = registry.take(at(1), waiter).1[0] else { panic!("a load") };
    assert_eq!(registry.crowded(at(2), a, 8, 5), (None, vec![]));
    assert!(registry.take(at(2), waiter).0.unwrap_err().worth_waiting());
    assert_eq!(loads(&registry.release(at(3), b)), 1, "room may have come free");
}

#[test]
fn a_load_that_turns_out_never_to_fit_costs_nobody_its_place() {
    let mut registry = empty();
    let b = declared(&mut registry, at(0), entry("b", 8));
    serve(&mut registry, at(1), "b");
    let (a, _) = registry.load(at(2), entry("a", 8)).unwrap();
    assert_eq!(registry.crowded(at(3), a, 21, 5), (None, vec![]));
    assert_eq!(state(&registry, b), Some(State::Ready));
    assert!(matches!(registry.acquire(at(3), "a"), Err(Unavailable::Failed { .. })));
}

#[test]
fn one_replica_is_unloaded_and_the_others_stay() {
    let mut registry = empty();
    let first = declared(&mut registry, at(0), entry("a", 4));
    let second = ready(&mut registry, at(0), entry("a", 4));
    assert_eq!(registry.unload_replica(at(1), first), Ok(vec![Unload(first)]));
    assert_eq!(registry.unloaded(at(1), first), []);
    assert_eq!(registry.acquire(at(1), "a"), Ok(second));
    assert!(matches!(registry.unload_replica(at(1), first), Err(RegistryError::NotFound { .. })));
    assert_eq!(registry.history().unloaded(Cause::Told), 1);
}

#[test]
fn what_outgrows_its_room_is_a_failed_load_and_no_unload() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("b", 8));
    let (a, _) = registry.load(at(0), entry("a", 8)).unwrap();
    assert_eq!(registry.room(a), 12);
    assert_eq!(registry.loaded(at(1), a, 13), [Unload(a)]);
    registry.unloaded(at(1), a);
    let history = registry.history();
    assert_eq!((history.loads(Outcome::Failed), history.loads(Outcome::Loaded)), (1, 1));
    assert_eq!(Cause::ALL.map(|cause| history.unloaded(cause)), [0; 4]);
}
