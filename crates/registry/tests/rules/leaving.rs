//! Time to live, unloading, waiting and shutdown.

use crate::*;

#[test]
fn what_never_comes_due_has_no_time() {
    let mut registry = Registry::new(Limits { min_residency: Duration::MAX, ..Limits::default() });
    ready(&mut registry, at(1), Entry { ttl: Some(Duration::MAX), ..entry("a", 8) });
    ready(&mut registry, at(1), brief("b", 8, 5));
    assert_eq!(registry.next_tick(at(1)), None);
}

#[test]
fn a_time_to_live_counts_from_the_last_use() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), brief("a", 8, 60));
    registry.acquire(at(50), "a").unwrap();
    assert_eq!((registry.next_tick(at(50)), registry.tick(at(200))), (None, vec![]));
    registry.release(at(200), a);
    assert_eq!(registry.next_tick(at(200)), Some(at(260)));
    assert_eq!(registry.tick(at(259)), []);
    assert_eq!(registry.tick(at(260)), [Unload(a)]);
    assert_eq!(registry.tick(at(261)), []);
}

#[test]
fn a_short_time_to_live_leaves_time_for_the_first_request() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), brief("a", 8, 0));
    assert_eq!(registry.next_tick(at(0)), Some(at(RESIDENCY)));
    registry.acquire(at(RESIDENCY), "a").unwrap();
    assert_eq!(registry.release(at(RESIDENCY + 1), a), [Unload(a)]);
}

#[test]
fn an_unload_drains_first() {
    let mut registry = empty();
    let busy = ready(&mut registry, at(0), entry("a", 8));
    let idle = ready(&mut registry, at(0), entry("a", 8));
    registry.declare(entry("a", 8));
    registry.acquire(at(1), "a").unwrap();
    assert_eq!(registry.unload(at(2), "a"), Ok(vec![Unload(idle)]));
    assert_eq!(state(&registry, busy), Some(State::Draining));
    assert_eq!(registry.ensure(at(3), "a"), (Err(Unavailable::Draining { name: "a".into() }), vec![]));
    assert_eq!(registry.unload(at(3), "a"), Ok(vec![]));
    assert_eq!(registry.release(at(4), busy), [Unload(busy)]);
    registry.unloaded(at(5), busy);
    registry.unloaded(at(5), idle);
    assert_eq!(registry.list().count(), 0);
}

#[test]
fn an_unload_cancels_loads_in_line_and_stops_a_running_one() {
    let mut registry = empty();
    let (running, _) = registry.load(at(0), entry("a", 4)).unwrap();
    let (in_line, _) = registry.load(at(0), entry("a", 4)).unwrap();
    let (other, _) = registry.load(at(0), entry("b", 4)).unwrap();
    assert_eq!(registry.unload(at(1), "a"), Ok(vec![Unload(running)]));
    assert_eq!(state(&registry, in_line), None);
    assert_eq!(registry.unloaded(at(2), running), [Load(other)]);
    assert_eq!(registry.loaded(at(3), running, 4), []);
    assert_eq!(state(&registry, running), None);
}

#[test]
fn a_stopped_load_that_fails_is_gone_and_no_failure() {
    let mut registry = empty();
    let (id, _) = registry.load(at(0), entry("a", 4)).unwrap();
    registry.unload(at(1), "a").unwrap();
    registry.failed(at(2), id, "stopped");
    assert_eq!(registry.list().count(), 0);
}

#[test]
fn a_request_for_a_model_that_is_being_dropped_has_it_loaded_again() {
    let mut registry = empty();
    registry.declare(entry("a", 12));
    let old = ready(&mut registry, at(0), entry("a", 12));
    registry.unload(at(1), "a").unwrap();
    assert!(registry.ensure(at(1), "a").0.unwrap_err().worth_waiting());
    assert_eq!(loads(&registry.unloaded(at(2), old)), 1);
}

#[test]
fn a_model_that_is_waited_for_is_not_evicted_and_does_not_expire() {
    let mut registry = empty();
    registry.declare(brief("a", 12, 1));
    let waiter = registry.wait("a").unwrap();
    let Load(a) = registry.take(at(0), waiter).1[0] else { panic!("a load") };
    registry.loaded(at(1), a, 12);
    assert_eq!(registry.tick(at(100)), []);
    let why = registry.load(at(100), entry("b", 12)).unwrap_err();
    assert!(matches!(why, RegistryError::NoRoomNow { busy, .. } if busy == ["a"]));
    assert_eq!(registry.take(at(100), waiter), (Ok(a), vec![]));
    assert_eq!(registry.release(at(101), a), []);
    assert_eq!(registry.tick(at(102)), [Unload(a)]);
}

#[test]
fn a_waiter_that_gives_up_protects_nothing() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), brief("a", 12, 1));
    let waiter = registry.wait("a").unwrap();
    assert_eq!(registry.tick(at(100)), []);
    assert_eq!(registry.give_up(at(100), waiter), [Unload(a)]);
    assert_eq!(registry.give_up(at(100), waiter), []);
}

#[test]
fn a_model_that_is_waited_for_loads_once_there_is_room() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), entry("a", 12));
    registry.acquire(at(0), "a").unwrap();
    registry.declare(entry("b", 12));
    let waiter = registry.wait("b").unwrap();
    assert!(registry.take(at(10), waiter).0.unwrap_err().worth_waiting());
    assert_eq!(registry.release(at(20), a), [Unload(a)]);
    assert_eq!(loads(&registry.unloaded(at(20), a)), 1);
    assert_eq!(registry.next_tick(at(20)), None);
}

#[test]
fn an_unload_sends_its_waiters_away() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    let waiter = registry.wait("a").unwrap();
    assert_eq!(loads(&registry.take(at(0), waiter).1), 1);
    registry.unload(at(1), "a").unwrap();
    assert_eq!(registry.take(at(1), waiter), (Err(Unavailable::Cancelled), vec![]));
}

#[test]
fn a_failure_is_hidden_by_the_next_load_and_retried_for_who_waits() {
    let mut registry = empty();
    ready(&mut registry, at(90), entry("b", 4));
    registry.declare(entry("a", 8));
    let waiter = registry.wait("a").unwrap();
    let Load(id) = registry.take(at(100), waiter).1[0] else { panic!("a load") };
    assert_eq!(registry.next_tick(at(100)), None);
    registry.failed(at(100), id, "bad magic");
    assert_eq!(registry.next_tick(at(100)), Some(at(110)));
    assert_eq!(loads(&registry.tick(at(110))), 1);
    assert_eq!(state(&registry, id), None);
}

#[test]
fn a_shutdown_drains_everything_and_takes_nothing_new() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), pinned("a", 8));
    registry.acquire(at(0), "a").unwrap();
    let (b, _) = registry.load(at(0), entry("b", 8)).unwrap();
    let waiter = registry.wait("b").unwrap();
    assert_eq!(registry.shutdown(at(1)), [Unload(b)]);
    assert_eq!(registry.load(at(1), entry("c", 1)).unwrap_err(), RegistryError::ShuttingDown);
    assert_eq!(registry.acquire(at(1), "a"), Err(RegistryError::ShuttingDown.into()));
    assert_eq!(registry.take(at(1), waiter).0, Err(RegistryError::ShuttingDown.into()));
    assert_eq!(registry.release(at(2), a), [Unload(a)]);
    registry.unloaded(at(3), a);
    registry.unloaded(at(3), b);
    assert_eq!(registry.list().count(), 0);
}
