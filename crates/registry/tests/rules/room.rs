//! Who is evicted for whom, and what there is no room for.

use crate::*;

#[test]
fn an_idle_model_is_evicted_for_another_and_the_load_waits_for_its_room() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), entry("a", 12));
    let (b, actions) = registry.load(at(RESIDENCY), entry("b", 12)).unwrap();
    assert_eq!(actions, [Unload(a)]);
    assert_eq!(registry.unloaded(at(RESIDENCY + 1), a), [Load(b)]);
}

#[test]
fn the_cheapest_idle_model_is_evicted() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), entry("a", 8));
    let b = ready(&mut registry, at(0), entry("b", 8));
    registry.acquire(at(50), "a").unwrap();
    registry.release(at(50), a);
    assert_eq!(registry.load(at(60), entry("c", 8)).unwrap().1, [Unload(b)]);
}

#[test]
fn the_less_used_of_two_replicas_is_evicted_before_a_last_one() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("b", 6));
    let less_used = ready(&mut registry, at(5), entry("a", 6));
    let used = ready(&mut registry, at(5), entry("a", 6));
    assert_eq!(registry.acquire(at(6), "a"), Ok(less_used));
    registry.acquire(at(6), "a").unwrap();
    registry.release(at(7), less_used);
    registry.release(at(8), used);
    assert_eq!(registry.load(at(60), entry("c", 6)).unwrap().1, [Unload(less_used)]);
}

#[test]
fn a_replica_beside_a_fresh_one_is_an_extra_replica() {
    let mut registry = empty();
    let old = ready(&mut registry, at(0), entry("a", 6));
    ready(&mut registry, at(0), entry("b", 6));
    ready(&mut registry, at(50), entry("a", 6));
    serve(&mut registry, at(57), "b");
    assert_eq!(serve(&mut registry, at(58), "a"), old);
    assert_eq!(registry.load(at(60), entry("c", 6)).unwrap().1, [Unload(old)]);
}

#[test]
fn a_model_is_not_evicted_for_a_further_replica_of_itself() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("a", 12));
    let why = registry.load(at(60), entry("a", 12)).unwrap_err();
    assert_eq!(why, RegistryError::Crowded { name: "a".into(), need: 12, left: 8, kept: vec!["a".into()] });
}

#[test]
fn no_busy_or_fresh_model_is_evicted() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), entry("a", 8));
    let b = ready(&mut registry, at(40), entry("b", 8));
    registry.acquire(at(40), "a").unwrap();
    let why = |available, busy: &[&str], recent: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let (busy, recent) = (names(busy), names(recent));
        RegistryError::NoRoomNow { name: "c".into(), need: 13, available, busy, recent }
    };
    assert_eq!(registry.load(at(41), entry("c", 13)).unwrap_err(), why(4, &["a"], &["b"]));
    assert_eq!(registry.load(at(70), entry("c", 13)).unwrap_err(), why(12, &["a"], &[]));
    registry.release(at(71), a);
    assert_eq!(registry.load(at(71), entry("c", 13)).unwrap().1, [Unload(a), Unload(b)]);
}

#[test]
fn no_pinned_model_is_evicted_or_expires() {
    let mut registry = empty();
    let a = ready(&mut registry, at(0), Entry { ttl: Some(at(1)), ..pinned("a", 12) });
    assert_eq!(registry.tick(at(100)), []);
    registry.declare(entry("b", 12));
    let why: Unavailable =
        RegistryError::Crowded { name: "b".into(), need: 12, left: 8, kept: vec!["a".into()] }.into();
    assert!(!why.worth_waiting());
    assert_eq!(registry.ensure(at(100), "b"), (Err(why), vec![]));
    assert_eq!(registry.unload(at(100), "a"), Ok(vec![Unload(a)]));
}

#[test]
fn what_exceeds_the_limit_never_fits() {
    let why = empty().load(at(0), entry("a", 21)).unwrap_err();
    assert_eq!(why, RegistryError::NeverFits { name: "a".into(), need: 21, limit: 20 });
}

#[test]
fn sizes_near_the_largest_number_do_not_overflow() {
    let mut registry = Registry::new(Limits::default());
    registry.load(Duration::MAX, brief("a", u64::MAX, u64::MAX)).unwrap();
    let why = registry.load(Duration::MAX, entry("b", u64::MAX)).unwrap_err();
    assert!(matches!(why, RegistryError::NoRoomNow { available: 0, .. }));
}

#[test]
fn two_models_that_do_not_fit_together_take_turns_and_each_load_serves_somebody() {
    let mut registry = empty();
    registry.declare(entry("a", 12));
    registry.declare(entry("b", 12));
    let (mut loads, mut served) = (0, 0);
    for second in 0..300 {
        let name = if second % 2 == 0 { "a" } else { "b" };
        let (answer, mut actions) = registry.ensure(at(second), name);
        while let Some(action) = actions.pop() {
            actions.extend(match action {
                Load(id) => registry.loaded(at(second), id, 12),
                Unload(id) => registry.unloaded(at(second), id),
            });
            loads += usize::from(matches!(action, Load(_)));
        }
        if let Ok(id) = answer {
            registry.release(at(second), id);
            served += 1;
        }
    }
    assert!((2..=served + 1).contains(&loads), "{loads} loads for {served} requests");
    assert!(served >= 100, "nobody waits for more than the request before: {served} served in 300 s");
}

#[test]
fn a_model_larger_than_announced_goes_again_if_there_is_no_room_for_it() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("b", 8));
    registry.declare(entry("a", 8));
    let (_, actions) = registry.ensure(at(0), "a");
    let Some(&Load(a)) = actions.first() else { panic!("a load") };
    assert_eq!(registry.loaded(at(1), a, 16), [Unload(a)]);
    registry.unloaded(at(1), a);
    assert!(matches!(registry.acquire(at(1), "a"), Err(Unavailable::Failed { .. })));
    assert_eq!(registry.declared().map(|entry| entry.bytes).collect::<Vec<_>>(), [16]);
}

#[test]
fn messages_name_the_model_and_the_way_out() {
    let mut registry = empty();
    ready(&mut registry, at(0), entry("a", 12));
    let why = registry.load(at(1), entry("b", 12)).unwrap_err();
    assert_eq!(
        why.to_string(),
        "model 'b' needs 12 bytes and 8 can be had now, loaded only just now: a; \
         try again later, or unload one of them"
    );
}
