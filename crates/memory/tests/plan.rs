//! What is done at each level, and which rung is asked for how much.

use lichen_memory::{
    Budget, Change, Concurrency, Effects, Escalation, KvPrecision, Level, PrefillWindow, Request, Rung,
    Source, Yields, changes, in_force,
};
use proptest::prelude::*;
use std::time::Duration;

/// A budget of 1000 bytes of room beside 100 of margin.
fn budget(dynamic: u64, promised: u64) -> Budget {
    Budget {
        limit: 1100,
        source: Source::Host,
        ceiling: 1100,
        margin: 100,
        mapped: dynamic,
        stationary: 0,
        dynamic,
        promised,
    }
}

fn yields(all: &[(Rung, u64)]) -> Yields {
    all.iter().copied().collect()
}

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn ask(rung: Rung, bytes: u64) -> Request {
    Request { rung, bytes }
}

#[test]
fn rungs_are_ranked_by_level() {
    assert!(Rung::ALL.is_sorted_by(|a, b| a < b && a.level() <= b.level()));
    assert_eq!(in_force(Level::Normal).count(), 0);
    assert_eq!(in_force(Level::Critical).collect::<Vec<_>>(), Rung::ALL);
}

#[test]
fn a_level_is_undone_in_reverse_order() {
    for from in Level::ALL {
        for to in Level::ALL {
            let mut undone = changes(to, from);
            undone.reverse();
            let begun: Vec<Change> = undone
                .into_iter()
                .map(|change| match change {
                    Change::Begin(rung) => Change::End(rung),
                    Change::End(rung) => Change::Begin(rung),
                })
                .collect();
            assert_eq!(changes(from, to), begun);
        }
    }
    assert_eq!(changes(Level::Normal, Level::Watch).first(), Some(&Change::Begin(Rung::FreezeCaches)));
}

#[test]
fn effects_of_each_level() {
    let [normal, watch, tight, critical] = Level::ALL.map(Effects::of);
    assert!(normal.caches_grow && normal.admission && normal.packed_weights && !normal.park);
    assert_eq!(
        (normal.new_pages, watch.new_pages, tight.new_pages),
        (KvPrecision::F16, KvPrecision::Q5, KvPrecision::Q4)
    );
    assert_eq!(
        (watch.requantise_active, tight.requantise_active),
        (Some(KvPrecision::Q5), Some(KvPrecision::Q4))
    );
    assert_eq!((watch.concurrency.of(4), tight.concurrency.of(4), critical.concurrency.of(4)), (4, 2, 1));
    assert_eq!(Concurrency::Halved.of(1), 1);
    let batches = [watch, tight, critical].map(|effects| effects.prefill_window.tokens(512));
    assert_eq!(batches, [512, 128, 32]);
    assert_eq!(PrefillWindow::Narrow.tokens(64), 64);
    assert!(!watch.evict_cold && tight.evict_cold && tight.admission && !critical.admission);
}

#[test]
fn the_least_harmful_rung_is_asked_first_and_only_for_what_is_missing() {
    let mut escalation = Escalation::default();
    let offers =
        yields(&[(Rung::RequantiseCached, 500), (Rung::RequantiseActive, 500), (Rung::EvictCold, 500)]);
    let batch = escalation.batch(at(0), Level::Tight, &budget(900, 0), 9.0, &offers);
    assert_eq!(batch, [ask(Rung::RequantiseCached, 180)]);
}

#[test]
fn the_next_rung_is_asked_when_the_one_before_is_not_enough() {
    let mut escalation = Escalation::default();
    let offers =
        yields(&[(Rung::RequantiseCached, 50), (Rung::RequantiseActive, 60), (Rung::EvictCold, 500)]);
    let batch = escalation.batch(at(0), Level::Tight, &budget(900, 0), 9.0, &offers);
    assert_eq!(
        batch,
        [ask(Rung::RequantiseCached, 50), ask(Rung::RequantiseActive, 60), ask(Rung::EvictCold, 70)]
    );
}

#[test]
fn rungs_of_higher_levels_are_not_asked() {
    let mut escalation = Escalation::default();
    let offers = yields(&[(Rung::EvictCold, 500)]);
    assert_eq!(escalation.batch(at(0), Level::Watch, &budget(900, 0), 9.0, &offers), []);
}

#[test]
fn enough_is_enough() {
    let mut escalation = Escalation::default();
    let offers = yields(&[(Rung::RequantiseCached, 500), (Rung::OneSlot, 500)]);
    assert_eq!(escalation.batch(at(0), Level::Critical, &budget(720, 1000), 0.5, &offers), []);
}

#[test]
fn what_is_merely_full_parks_nobody() {
    let offers = yields(&[(Rung::ParkNewest, 500)]);
    assert_eq!(Escalation::default().batch(at(0), Level::Tight, &budget(1000, 1000), 9.0, &offers), []);
    assert_eq!(
        Escalation::default().batch(at(0), Level::Tight, &budget(1040, 1000), 9.0, &offers),
        [ask(Rung::ParkNewest, 40)]
    );
    assert_eq!(
        Escalation::default().batch(at(0), Level::Tight, &budget(100, 1200), 9.0, &offers),
        [ask(Rung::ParkNewest, 200)]
    );
}

#[test]
fn the_last_is_parked_only_when_half_the_margin_is_gone_and_nothing_else_helps() {
    let batch = |dynamic, offers: &[(Rung, u64)]| {
        Escalation::default().batch(at(0), Level::Critical, &budget(dynamic, 900), 9.0, &yields(offers))
    };
    assert_eq!(batch(1050, &[(Rung::ParkLast, 800)]), []);
    assert_eq!(batch(1060, &[(Rung::ParkLast, 800)]), [ask(Rung::ParkLast, 10)]);
    assert_eq!(batch(1060, &[(Rung::EvictCold, 10), (Rung::ParkLast, 800)]), [ask(Rung::EvictCold, 10)]);
}

#[test]
fn a_batch_is_given_time_to_show_unless_memory_is_nearly_out() {
    let mut escalation = Escalation::default();
    let offers = yields(&[(Rung::RequantiseCached, 500), (Rung::EvictCold, 500)]);
    let mut count =
        |now, level, exhaustion| escalation.batch(at(now), level, &budget(900, 0), exhaustion, &offers).len();
    assert_eq!(count(0, Level::Watch, 9.0), 1);
    assert_eq!(count(100, Level::Watch, 9.0), 0);
    assert_eq!(count(100, Level::Watch, 0.5), 1);
    assert_eq!(count(300, Level::Watch, 9.0), 1);
    assert_eq!(count(310, Level::Tight, 9.0), 1, "a new level doesn't wait");
}

#[test]
fn a_rung_that_freed_nothing_twice_is_passed_over_until_it_offers_more() {
    let mut escalation = Escalation::default();
    let first = |now: u64, offer: u64, escalation: &mut Escalation| {
        let offers = yields(&[(Rung::RequantiseCached, offer), (Rung::RequantiseActive, 500)]);
        escalation.batch(at(now), Level::Watch, &budget(900, 0), 9.0, &offers)[0].rung
    };
    for round in 0..2 {
        assert_eq!(first(round * 200, 300, &mut escalation), Rung::RequantiseCached);
        escalation.report(Rung::RequantiseCached, 300, 0);
    }
    assert_eq!(first(400, 300, &mut escalation), Rung::RequantiseActive);
    assert_eq!(first(600, 301, &mut escalation), Rung::RequantiseCached);
    escalation.report(Rung::RequantiseCached, 301, 10);
    assert_eq!(first(800, 300, &mut escalation), Rung::RequantiseCached);
}

proptest! {
    #[test]
    fn harm_is_monotone(
        offers in prop::collection::vec(0u64..400, Rung::ALL.len()),
        dynamic in 0u64..1100,
        promised in 0u64..1500,
        level in 0usize..4,
    ) {
        let offers: Yields = Rung::ALL.into_iter().zip(offers).collect();
        let level = Level::ALL[level];
        let batch = Escalation::default().batch(at(0), level, &budget(dynamic, promised), 9.0, &offers);
        prop_assert!(batch.is_sorted_by_key(|request| request.rung));
        for (at, request) in batch.iter().enumerate() {
            prop_assert!(request.rung.level() <= level);
            prop_assert!(request.bytes > 0 && request.bytes <= offers[&request.rung]);
            // Only some rungs help where promises don't fit.
            let helps = |rung| matches!(
                rung,
                Rung::NarrowPrefill | Rung::UnloadIdle | Rung::ParkNewest | Rung::OneSlot
                    | Rung::SmallestScratch | Rung::ParkLast
            );
            let mut before = batch[..at].iter().filter(|earlier| promised <= 1000 || helps(earlier.rung));
            let exhausted = before.all(|earlier| earlier.bytes == offers[&earlier.rung]);
            prop_assert!(exhausted || !helps(request.rung) && promised > 1000, "{:?}", batch);
        }
    }
}
