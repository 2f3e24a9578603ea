//! The ledger: what fits, what doesn't, and that no sum ever passes the limit.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_memory::{Bytes, Class, Domain, Ledger, Limit, Owner, Reach, Reservation, Source};
use proptest::prelude::*;
use std::thread;

fn limit(bytes: u64, margin: u64) -> Limit {
    Limit { bytes, margin, source: Source::Explicit }
}

fn ledger(bytes: u64, margin: u64) -> Ledger {
    Ledger::new(Domain::Host, limit(bytes, margin))
}

fn chat() -> Owner {
    Owner::new("chat", 0)
}

#[test]
fn a_reservation_is_given_back_when_dropped() {
    let ledger = ledger(100, 10);
    let reservation = ledger.reserve(&chat(), Class::Scratch, 90).unwrap();
    assert!(ledger.reserve(&chat(), Class::Scratch, 1).is_err());
    drop(reservation);
    assert_eq!(ledger.snapshot().promised(), 0);
    let _all = ledger.reserve(&chat(), Class::Scratch, 90).unwrap();
}

#[test]
fn a_refusal_tells_the_numbers_and_who_has_the_memory() {
    let ledger = ledger(100, 10);
    let _weights = ledger.reserve(&chat(), Class::WeightsMapped, 60).unwrap();
    let _other = ledger.reserve(&Owner::new("embed", 1), Class::Scratch, 10).unwrap();
    let refusal = ledger.reserve(&chat(), Class::KvFloor, 21).unwrap_err();
    assert_eq!((refusal.need, refusal.available), (21, 20));
    assert_eq!(refusal.largest, [(chat(), 60), (Owner::new("embed", 1), 10)]);
    let message = refusal.to_string();
    assert!(message.contains("chat 60 bytes, embed (replica 1) 10 bytes"), "{message}");
    assert!(message.contains("100 bytes (memory budget)"), "{message}");
}

#[test]
fn revocable_bytes_do_not_stand_in_the_way_of_a_promise() {
    let ledger = ledger(100, 0);
    let mut cache = ledger.reserve(&chat(), Class::PrefixCache, 100).unwrap();
    let mut floor = ledger.reserve(&chat(), Class::KvFloor, 100).unwrap();
    let refusal = floor.map(30, Reach::Budget).unwrap_err();
    assert_eq!((refusal.need, refusal.available), (30, 0));
    cache.shrink(refusal.need - refusal.available);
    floor.map(30, Reach::Budget).unwrap();
    assert_eq!((floor.mapped(), ledger.snapshot().mapped()), (30, 100));
}

#[test]
fn no_more_is_mapped_than_was_promised() {
    let ledger = ledger(100, 0);
    let mut floor = ledger.reserve(&chat(), Class::KvFloor, 20).unwrap();
    floor.map(15, Reach::Budget).unwrap();
    let refusal = floor.map(6, Reach::Budget).unwrap_err();
    assert_eq!((refusal.need, refusal.available), (6, 5));
}

#[test]
fn only_the_right_of_way_reaches_into_the_margin() {
    let ledger = ledger(100, 10);
    assert!(ledger.reserve(&chat(), Class::KvFloor, 95).is_err());
    let mut floor = ledger.reserve_within(&chat(), Class::KvFloor, 95, Reach::Margin).unwrap();
    assert!(floor.map(95, Reach::Budget).is_err());
    assert!(ledger.reserve_within(&chat(), Class::KvSurplus, 96, Reach::Margin).is_err(), "half of it stays");
    floor.map(95, Reach::Margin).unwrap();
}

#[test]
fn a_fallen_limit_takes_nothing_away_and_gives_nothing_out() {
    let ledger = ledger(100, 0);
    let mut scratch = ledger.reserve(&chat(), Class::Scratch, 80).unwrap();
    ledger.set_limit(limit(50, 0));
    assert_eq!(scratch.bytes(), 80);
    assert!(ledger.reserve(&chat(), Class::KvSurplus, 1).is_err());
    assert_eq!(scratch.shrink(31), 31);
    let _one = ledger.reserve(&chat(), Class::KvSurplus, 1).unwrap();
}

#[test]
fn kv_of_an_ended_sequence_moves_to_the_cache() {
    let ledger = ledger(100, 0);
    let mut floor = ledger.reserve(&chat(), Class::KvFloor, 60).unwrap();
    floor.map(40, Reach::Budget).unwrap();
    let mut kept = floor.split(40);
    drop(floor);
    kept.convert(Class::PrefixCache).unwrap();
    let account = ledger.snapshot();
    assert_eq!(
        (account.promised(), account.mapped(), account.class(Class::PrefixCache).reserved),
        (0, 40, 40)
    );
}

#[test]
fn a_promise_cannot_be_turned_into_memory_that_is_not_there() {
    let ledger = ledger(100, 0);
    let _cache = ledger.reserve(&chat(), Class::PrefixCache, 70).unwrap();
    let mut floor = ledger.reserve(&chat(), Class::KvFloor, 60).unwrap();
    assert!(floor.convert(Class::Scratch).is_err());
    assert_eq!((floor.class(), floor.mapped()), (Class::KvFloor, 0));
}

#[test]
fn a_panic_gives_everything_back() {
    let ledger = ledger(100, 0);
    let inner = ledger.clone();
    let ended = thread::spawn(move || {
        let _lost = inner.reserve(&chat(), Class::KvFloor, 100).unwrap();
        panic!("on purpose");
    });
    assert!(ended.join().is_err());
    let _all = ledger.reserve(&chat(), Class::KvFloor, 100).unwrap();
}

#[test]
fn threads_together_never_pass_the_limit() {
    let ledger = ledger(1000, 100);
    let within = |ledger: &Ledger| {
        let account = ledger.snapshot();
        assert!(account.promised() <= 900 && account.mapped() <= 900, "{account:?}");
    };
    thread::scope(|scope| {
        for worker in 0..4 {
            let ledger = ledger.clone();
            scope.spawn(move || {
                let mut held: Vec<Reservation> = Vec::new();
                for round in 0..500u64 {
                    let class = Class::ALL[(round as usize + worker) % Class::ALL.len()];
                    match ledger.reserve(&Owner::new("worker", worker as u32), class, 1 + round % 97) {
                        Ok(mut reservation) => {
                            let _ = reservation.map(round % 50, Reach::Budget);
                            held.push(reservation);
                        }
                        Err(_) => held.truncate(held.len() / 2),
                    }
                    within(&ledger);
                }
            });
        }
    });
    assert_eq!((ledger.snapshot().promised(), ledger.snapshot().mapped()), (0, 0));
}

#[derive(Debug, Clone)]
enum Call {
    Reserve(usize, u64),
    Grow(usize, u64),
    Shrink(usize, u64),
    Map(usize, u64),
    Unmap(usize, u64),
    Split(usize, u64),
    Convert(usize, usize),
    Drop(usize),
    Limit(u64),
}

fn call() -> impl Strategy<Value = Call> {
    let bytes = prop_oneof![9 => 0u64..400, 1 => Just(u64::MAX)];
    let class = 0..Class::ALL.len();
    let at = 0usize..16;
    prop_oneof![
        4 => (class.clone(), bytes.clone()).prop_map(|(class, bytes)| Call::Reserve(class, bytes)),
        1 => (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Call::Grow(at, bytes)),
        1 => (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Call::Shrink(at, bytes)),
        3 => (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Call::Map(at, bytes)),
        1 => (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Call::Unmap(at, bytes)),
        1 => (at.clone(), bytes.clone()).prop_map(|(at, bytes)| Call::Split(at, bytes)),
        1 => (at.clone(), class).prop_map(|(at, class)| Call::Convert(at, class)),
        1 => at.prop_map(Call::Drop),
        1 => bytes.prop_map(Call::Limit),
    ]
}

fn perform(ledger: &Ledger, held: &mut Vec<Reservation>, call: &Call) {
    let count = held.len();
    let index = |at: usize| (count > 0).then(|| at % count);
    match *call {
        Call::Reserve(class, bytes) => held.extend(ledger.reserve(&chat(), Class::ALL[class], bytes)),
        Call::Limit(bytes) => ledger.set_limit(limit(bytes, 10)),
        Call::Grow(at, bytes) => drop(index(at).map(|at| held[at].grow(bytes))),
        Call::Shrink(at, bytes) => drop(index(at).map(|at| held[at].shrink(bytes))),
        Call::Map(at, bytes) => drop(index(at).map(|at| held[at].map(bytes, Reach::Budget))),
        Call::Unmap(at, bytes) => drop(index(at).map(|at| held[at].unmap(bytes))),
        Call::Convert(at, class) => drop(index(at).map(|at| held[at].convert(Class::ALL[class]))),
        Call::Drop(at) => drop(index(at).map(|at| held.swap_remove(at))),
        Call::Split(at, bytes) => {
            if let Some(at) = index(at) {
                let part = held[at].split(bytes);
                held.push(part);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_account_is_the_sum_of_its_reservations(calls in prop::collection::vec(call(), 0..120)) {
        let ledger = ledger(1000, 10);
        let mut held = Vec::new();
        for call in &calls {
            let before = ledger.snapshot();
            perform(&ledger, &mut held, call);
            let account = ledger.snapshot();
            for class in Class::ALL {
                let of_class = || held.iter().filter(|one| one.class() == class);
                let reserved: u64 = of_class().map(Reservation::bytes).sum();
                let mapped: u64 = of_class().map(Reservation::mapped).sum();
                prop_assert_eq!(account.class(class), Bytes { reserved, mapped });
            }
            let budget = account.limit.within(Reach::Budget);
            prop_assert!(account.promised() <= budget.max(before.promised()), "{:?}", call);
            prop_assert!(account.mapped() <= budget.max(before.mapped()), "{:?}", call);
        }
        held.clear();
        prop_assert_eq!(ledger.snapshot().promised() + ledger.snapshot().mapped(), 0);
    }
}
