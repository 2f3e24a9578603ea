//! Models that somebody asks to have without using them yet.

use crate::*;

fn classed(name: &str, bytes: u64, priority: i32) -> Entry {
    Entry { priority, ..entry(name, bytes) }
}

fn bring(registry: &mut Registry, now: Duration, entry: Entry) -> (Result<(), Unavailable>, Vec<Action>) {
    registry.bring(now, entry, Vec::new())
}

fn refused(answer: Result<(), Unavailable>) -> RegistryError {
    match answer.unwrap_err() {
        Unavailable::Refused(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn whoever_asks_again_joins_the_load_that_runs() {
    let mut registry = empty();
    let (answer, actions) = bring(&mut registry, at(0), entry("a", 8));
    assert_eq!(answer, Err(Unavailable::Loading { name: "a".into(), progress: 0.0 }));
    let [Load(id)] = actions[..] else { panic!("{actions:?}") };
    registry.progress(id, 0.5);
    let joined = Err(Unavailable::Loading { name: "a".into(), progress: 0.5 });
    assert_eq!(bring(&mut registry, at(1), entry("a", 8)), (joined, vec![]));
    registry.loaded(at(3), id, 8);
    assert_eq!(bring(&mut registry, at(4), entry("a", 8)), (Ok(()), vec![]));
    assert_eq!(registry.history().load_time("a"), Some(at(3)));
}

#[test]
fn what_was_brought_in_comes_back_for_a_request() {
    let mut registry = empty();
    let (_, actions) = bring(&mut registry, at(0), entry("a", 8));
    let [Load(id)] = actions[..] else { panic!("{actions:?}") };
    registry.loaded(at(1), id, 8);
    assert_eq!(registry.unload(at(2), "a").unwrap(), [Unload(id)]);
    registry.unloaded(at(3), id);
    assert_eq!(loads(&registry.ensure(at(4), "a").1), 1);
}

#[test]
fn a_model_that_failed_is_tried_again_only_after_its_pause() {
    let mut registry = empty();
    let (_, actions) = bring(&mut registry, at(0), entry("a", 8));
    let [Load(id)] = actions[..] else { panic!("{actions:?}") };
    registry.failed(at(1), id, "no such file");
    let (answer, actions) = bring(&mut registry, at(2), entry("a", 8));
    let (reason, retry_in) = ("no such file".to_owned(), Some(at(9)));
    assert_eq!(answer, Err(Unavailable::Failed { name: "a".into(), reason, retry_in }));
    assert_eq!(actions, []);
    assert_eq!(loads(&bring(&mut registry, at(11), entry("a", 8)).1), 1);
}

#[test]
fn a_failure_from_before_the_load_counts_like_one_of_it() {
    let mut registry = empty();
    registry.note_failure(at(0), "a", "nobody has it");
    let (answer, _) = bring(&mut registry, at(1), entry("a", 8));
    assert!(matches!(answer, Err(Unavailable::Failed { retry_in: Some(_), .. })), "{answer:?}");
    let failed: Vec<_> = registry.list().map(|view| (view.name.to_owned(), view.state)).collect();
    assert_eq!(failed, [("a".to_owned(), State::Failed { reason: "nobody has it".into() })]);
}

#[test]
fn a_model_that_drains_is_loaded_anew_beside_it_if_there_is_room() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("a", 8));
    registry.acquire(at(1), "a").unwrap();
    assert_eq!(registry.unload(at(2), "a").unwrap(), []);
    assert_eq!(loads(&bring(&mut registry, at(3), entry("a", 8)).1), 1);
}

#[test]
fn a_model_displaces_its_own_class_and_lower_ones_but_no_higher_one() {
    let mut registry = empty();
    let low = ready(&mut registry, at(0), classed("low", 8, 0));
    ready(&mut registry, at(0), classed("high", 12, 2));
    let (answer, actions) = bring(&mut registry, at(60), classed("new", 8, 1));
    assert!(matches!(answer, Err(Unavailable::Loading { .. })), "{answer:?}");
    assert_eq!(actions, [Unload(low)]);
    let (answer, actions) = bring(&mut registry, at(60), classed("large", 12, 1));
    let kept = vec!["high".to_owned()];
    assert_eq!(refused(answer), RegistryError::Crowded { name: "large".into(), need: 12, left: 8, kept });
    assert_eq!(actions, []);
}

#[test]
fn only_models_that_are_named_go_and_only_as_many_as_it_takes() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("a", 5));
    let b = ready(&mut registry, at(0), entry("b", 5));
    let c = ready(&mut registry, at(0), entry("c", 5));
    ready(&mut registry, at(0), entry("d", 5));
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let (answer, actions) = registry.bring(at(60), entry("x", 10), named(&["b"]));
    assert!(matches!(refused(answer), RegistryError::NoRoomNow { available: 5, .. }));
    assert_eq!(actions, []);
    let (_, actions) = registry.bring(at(60), entry("x", 10), named(&["c", "b", "d"]));
    assert_eq!(actions, [Unload(c), Unload(b)]);
}

#[test]
fn a_named_model_stays_if_it_is_busy_or_pinned() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("busy", 8));
    ready(&mut registry, at(0), pinned("pinned", 8));
    registry.acquire(at(50), "busy").unwrap();
    let named = vec!["busy".to_owned(), "pinned".to_owned()];
    let (answer, _) = registry.bring(at(60), entry("x", 10), named.clone());
    let RegistryError::NoRoomNow { busy, .. } = refused(answer) else { panic!("it fits once one has ended") };
    assert_eq!(busy, ["busy"]);
    let (answer, _) = registry.bring(at(60), entry("x", 14), named);
    let RegistryError::Crowded { kept, .. } = refused(answer) else { panic!("a pinned model is in its way") };
    assert_eq!(kept, ["pinned"]);
}
