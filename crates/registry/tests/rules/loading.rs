//! Loads, requests and failures.

use crate::*;

#[test]
fn a_load_shows_its_progress_and_ends_ready() {
    let mut registry = empty();
    let (id, actions) = registry.load(at(0), entry("a", 8)).unwrap();
    assert_eq!(actions, [Load(id)]);
    registry.progress(id, 0.5);
    registry.progress(id, 0.25);
    registry.progress(id, f32::NAN);
    assert_eq!(state(&registry, id), Some(State::Loading { since: at(0), progress: 0.5 }));
    let why = registry.acquire(at(1), "a").unwrap_err();
    assert_eq!(why, Unavailable::Loading { name: "a".into(), progress: 0.5 });
    assert_eq!(registry.loaded(at(2), id, 9), []);
    assert_eq!(registry.replica(id).map(|view| (view.state, view.bytes)), Some((State::Ready, 9)));
    assert_eq!(registry.acquire(at(3), "a"), Ok(id));
}

#[test]
fn loads_run_one_at_a_time_in_order() {
    let mut registry = empty();
    let (a, _) = registry.load(at(0), entry("a", 4)).unwrap();
    let (b, actions) = registry.load(at(0), entry("b", 4)).unwrap();
    assert_eq!((actions, state(&registry, b)), (vec![], Some(State::Queued)));
    let (c, _) = registry.load(at(0), entry("c", 4)).unwrap();
    assert_eq!(registry.failed(at(1), a, "no such file"), [Load(b)]);
    assert_eq!(registry.loaded(at(2), b, 4), [Load(c)]);
}

#[test]
fn a_load_holds_up_no_request_for_another_model() {
    let mut registry = empty();
    let b = ready(&mut registry, at(0), entry("b", 8));
    registry.load(at(1), entry("a", 8)).unwrap();
    assert_eq!(registry.acquire(at(1), "b"), Ok(b));
}

#[test]
fn a_request_goes_to_the_least_busy_replica() {
    let mut registry = empty();
    let first = ready(&mut registry, at(0), entry("a", 8));
    let second = ready(&mut registry, at(0), entry("a", 8));
    let taken: Vec<_> = (0..4).map(|_| registry.acquire(at(1), "a").unwrap()).collect();
    assert_eq!(taken, [first, second, first, second]);
    registry.release(at(2), second);
    assert_eq!(registry.acquire(at(2), "a"), Ok(second));
}

#[test]
fn a_hundred_requests_start_one_load() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    let mut actions = Vec::new();
    for _ in 0..100 {
        let (answer, asked) = registry.ensure(at(0), "a");
        assert!(answer.unwrap_err().worth_waiting());
        actions.extend(asked);
    }
    assert_eq!(loads(&actions), 1);
}

#[test]
fn acquire_loads_nothing() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    assert_eq!(registry.acquire(at(0), "a"), Err(Unavailable::NotLoaded { name: "a".into() }));
    assert_eq!(registry.list().count(), 0);
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    ready(&mut registry, at(0), entry("b", 8));
    let why = RegistryError::NotFound { name: "c".into(), known: vec!["a".into(), "b".into()] };
    assert_eq!(registry.ensure(at(0), "c").0, Err(why.clone().into()));
    assert_eq!(registry.unload(at(0), "c"), Err(why.clone()));
    assert_eq!(registry.wait("c"), Err(why));
}

#[test]
fn a_report_about_a_load_in_line_is_ignored() {
    let mut registry = empty();
    registry.load(at(0), entry("a", 4)).unwrap();
    let (in_line, _) = registry.load(at(0), entry("b", 4)).unwrap();
    registry.failed(at(1), in_line, "who asked?");
    registry.loaded(at(1), in_line, 9);
    registry.unloaded(at(1), in_line);
    let view = registry.replica(in_line).unwrap();
    assert_eq!((view.state, view.bytes), (State::Queued, 4));
}

#[test]
fn a_failed_load_stays_visible_and_is_retried_after_a_growing_pause() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    let mut now = 0;
    for pause in [10, 20, 40, 80, 160, 300, 300] {
        let (_, actions) = registry.ensure(at(now), "a");
        let Some(&Load(id)) = actions.first() else { panic!("a load after {now} s") };
        registry.failed(at(now), id, "bad magic");
        assert_eq!(state(&registry, id), Some(State::Failed { reason: "bad magic".into() }));
        let (answer, actions) = registry.ensure(at(now + pause - 1), "a");
        let (name, reason) = ("a".into(), "bad magic".into());
        assert_eq!(answer, Err(Unavailable::Failed { name, reason, retry_in: Some(at(1)) }));
        assert_eq!(actions, []);
        now += pause;
    }
}

#[test]
fn a_load_of_another_size_leaves_the_declaration() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    ready(&mut registry, at(0), entry("a", 12));
    assert_eq!(registry.declared().map(|entry| entry.bytes).collect::<Vec<_>>(), [8]);
}

#[test]
fn a_success_or_forgetting_ends_the_pause() {
    let mut registry = empty();
    registry.declare(entry("a", 8));
    let fail = |registry: &mut Registry| {
        let (_, actions) = registry.ensure(at(0), "a");
        let Some(&Load(id)) = actions.first() else { panic!("a load") };
        registry.failed(at(0), id, "bad magic");
    };
    fail(&mut registry);
    assert!(registry.forget("a"));
    fail(&mut registry);
    ready(&mut registry, at(1), entry("a", 8));
    assert_eq!(registry.list().count(), 1);
    assert!(!registry.forget("a"));
}

#[test]
fn a_model_that_breaks_is_gone_with_its_references() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), entry("a", 12));
    registry.acquire(at(1), "a").unwrap();
    registry.failed(at(2), a, "device lost");
    assert_eq!(registry.release(at(3), a), []);
    let why = registry.acquire(at(3), "a").unwrap_err();
    assert_eq!(why, Unavailable::Failed { name: "a".into(), reason: "device lost".into(), retry_in: None });
    ready(&mut registry, at(4), entry("b", 20));
}

#[test]
fn failures_of_ever_new_names_are_not_remembered_without_bound() {
    let mut registry = empty();
    for number in 0..1000 {
        let (id, _) = registry.load(at(0), entry(&format!("m{number}"), 1)).unwrap();
        registry.failed(at(0), id, "no such file");
    }
    assert_eq!(registry.list().count(), 256);
    assert_eq!(registry.list().last().map(|view| view.name), Some("m999"));
}
