//! What is read ahead of a pass and dropped behind it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;

use lichen_memory::{CHUNK_BYTES, ReadAhead, ResidencyPlan, Step, WINDOW_BYTES, WeightRange};
use proptest::prelude::*;

/// Weights of so many full chunks, and a room.
fn ahead(chunks: u64, room: u64) -> ReadAhead {
    let weights = WeightRange { bytes: 0..chunks * CHUNK_BYTES, rows: false };
    let mut ahead = ReadAhead::new(ResidencyPlan::new(&[weights]));
    ahead.resize(room);
    ahead
}

/// Does all there is to do, and returns what was read. What is in memory is kept in `held`.
fn settle(ahead: &mut ReadAhead, held: &mut BTreeSet<usize>) -> Vec<usize> {
    let mut read = Vec::new();
    while let Some(step) = ahead.step() {
        match step {
            Step::Ask(chunk) => assert!(held.insert(chunk), "{chunk} was asked for twice"),
            Step::Await(chunk) => {
                assert!(held.contains(&chunk), "{chunk} was not asked for");
                ahead.arrived(chunk);
                read.push(chunk);
            }
            Step::Release(chunk) => assert!(held.remove(&chunk), "{chunk} was not in memory"),
        }
    }
    read
}

#[test]
fn what_comes_next_is_asked_for_at_once_and_awaited_in_order() {
    let mut ahead = ahead(10, 0);
    let asked: Vec<Step> = (0..4).map(|_| ahead.step().unwrap()).collect();
    assert_eq!(asked, [0, 1, 2, 3].map(Step::Ask));
    assert_eq!(ahead.step(), Some(Step::Await(0)));
    ahead.turn_to(0..1);
    assert!(!ahead.ready());
    ahead.arrived(0);
    assert!(ahead.ready());
}

#[test]
fn the_next_pass_is_read_ahead_at_the_end_of_one() {
    let (mut ahead, mut held) = (ahead(10, 0), BTreeSet::new());
    assert!(!ahead.turn_to(8..9));
    settle(&mut ahead, &mut held);
    assert_eq!(held, BTreeSet::from([8, 9, 0, 1]));
    assert!(ahead.turn_to(0..1), "a new pass");
    settle(&mut ahead, &mut held);
    assert_eq!(held, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn after_the_first_pass_only_what_does_not_stay_is_read() {
    let (mut ahead, mut held) = (ahead(30, 20 * CHUNK_BYTES), BTreeSet::new());
    let mut pass = |ahead: &mut ReadAhead| -> usize {
        let mut read = 0;
        for chunk in 0..30 {
            ahead.turn_to(chunk..chunk + 1);
            read += settle(ahead, &mut held).len();
            assert!(ahead.ready());
        }
        read
    };
    pass(&mut ahead);
    let streamed = ahead.plan().streamed_bytes() / CHUNK_BYTES;
    assert_eq!(streamed, 14);
    assert_eq!(pass(&mut ahead) as u64, streamed);
}

#[test]
fn what_stays_no_longer_is_dropped() {
    let (mut ahead, mut held) = (ahead(10, 10 * CHUNK_BYTES), BTreeSet::new());
    for chunk in 0..10 {
        ahead.turn_to(chunk..chunk + 1);
        settle(&mut ahead, &mut held);
    }
    assert_eq!(held.len(), 10);
    ahead.resize(0);
    settle(&mut ahead, &mut held);
    assert_eq!(held, BTreeSet::from([9, 0, 1, 2]));
}

proptest! {
    #[test]
    fn memory_holds_what_stays_a_window_and_what_is_needed(
        count in 1_usize..40,
        moves in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..8, 0_u64..50), 1..40),
    ) {
        let (mut ahead, mut held) = (ahead(count as u64, 0), BTreeSet::new());
        for (place, length, room) in moves {
            ahead.resize(room * CHUNK_BYTES);
            let using = place.index(count)..(place.index(count) + length).min(count);
            ahead.turn_to(using.clone());
            settle(&mut ahead, &mut held);
            prop_assert!(ahead.ready());
            prop_assert!(using.clone().all(|chunk| held.contains(&chunk)));
            let streamed = held.iter().filter(|chunk| !ahead.plan().stays(**chunk)).count();
            prop_assert!(streamed <= using.len().max((WINDOW_BYTES / CHUNK_BYTES) as usize));
        }
    }
}
