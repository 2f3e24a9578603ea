//! What of a machine is ours.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_memory::{
    Budget, Class, Domain, Group, Ledger, Limit, Owner, Sample, Source, UnknownSize, margin, static_limit,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn host(total: u64, available: u64) -> Sample {
    Sample { total: Some(total), available: Some(available), ..Sample::default() }
}

fn group(limit: u64, usage: u64, file: u64) -> Group {
    Group {
        name: "/box".into(),
        limit,
        usage: Some(usage),
        file: Some(file),
        limit_hits: None,
        out_of_memory: None,
    }
}

fn empty() -> Ledger {
    Ledger::new(Domain::Host, Limit { bytes: u64::MAX, margin: 0, source: Source::Explicit })
}

#[test]
fn the_tightest_limit_counts() {
    let mut sample = host(16 * GIB, 12 * GIB);
    assert_eq!(static_limit(&sample, None), Ok((16 * GIB - 16 * GIB / 20, Source::Host)));
    sample.groups = vec![group(8 * GIB, 0, 0), Group { name: "/".into(), ..group(4 * GIB, 0, 0) }];
    assert_eq!(static_limit(&sample, None), Ok((4 * GIB, Source::Group("/".into()))));
    assert_eq!(static_limit(&sample, Some(GIB)), Ok((GIB, Source::Explicit)));
    assert_eq!(static_limit(&Sample::default(), None), Err(UnknownSize));
}

#[test]
fn a_small_machine_keeps_half() {
    assert_eq!(static_limit(&host(600 * MIB, 0), None), Ok((300 * MIB, Source::Host)));
}

#[test]
fn the_margin_is_six_percent_and_at_least_24_mib() {
    assert_eq!(margin(100 * MIB), 24 * MIB);
    assert_eq!(margin(1000 * MIB), 60 * MIB);
    assert!(margin(u64::MAX) < u64::MAX / 10);
}

#[test]
fn hot_mapped_weights_do_not_count_as_available() {
    // Mapping and touching 469 MiB leaves MemAvailable as it was, so they are taken off it and added as used.
    let ledger = empty();
    let _weights = ledger.reserve(&Owner::new("chat", 0), Class::WeightsMapped, 469 * MIB).unwrap();
    let seen = Sample {
        anonymous: Some(0),
        file: Some(469 * MIB),
        groups: vec![group(700 * MIB, 479 * MIB, 479 * MIB)],
        ..Sample::default()
    };
    let budget = Budget::measure(&seen, None, 469 * MIB, &ledger.snapshot()).unwrap();
    // 700 − 479 free and 9 of the other 10 MiB of files droppable, on top of the weights.
    assert_eq!(budget.ceiling, 699 * MIB);
    assert_eq!(budget.room(), 699 * MIB - 469 * MIB - budget.margin);
}

#[test]
fn pages_of_files_nobody_uses_count_as_available() {
    let sample = Sample { groups: vec![group(100 * MIB, 90 * MIB, 80 * MIB)], ..Sample::default() };
    let budget = Budget::measure(&sample, None, 0, &empty().snapshot()).unwrap();
    assert_eq!(budget.ceiling, (10 + 72) * MIB);
}

#[test]
fn what_others_take_lowers_the_ceiling() {
    let ledger = empty();
    let _scratch = ledger.reserve(&Owner::new("chat", 0), Class::Scratch, 100 * MIB).unwrap();
    let sample = |usage| Sample {
        anonymous: Some(100 * MIB),
        groups: vec![group(500 * MIB, usage, 0)],
        ..Sample::default()
    };
    let alone = Budget::measure(&sample(100 * MIB), None, 0, &ledger.snapshot()).unwrap();
    let crowded = Budget::measure(&sample(350 * MIB), None, 0, &ledger.snapshot()).unwrap();
    assert_eq!((alone.ceiling, crowded.ceiling), (500 * MIB, 250 * MIB));
    assert_eq!(crowded.headroom(), 150 * MIB);
}

#[test]
fn an_explicit_budget_bounds_the_ceiling() {
    let budget = Budget::measure(&host(16 * GIB, 12 * GIB), Some(2 * GIB), 0, &empty().snapshot()).unwrap();
    assert_eq!((budget.limit, budget.ceiling, budget.source), (2 * GIB, 2 * GIB, Source::Explicit));
}

#[test]
fn an_account_ahead_of_the_memory_does_not_raise_the_ceiling() {
    let ledger = empty();
    let _fixed = ledger.reserve(&Owner::new("server", 0), Class::Fixed, 200 * MIB).unwrap();
    let sample = Sample {
        anonymous: Some(50 * MIB),
        groups: vec![group(500 * MIB, 150 * MIB, 0)],
        ..Sample::default()
    };
    let budget = Budget::measure(&sample, None, 0, &ledger.snapshot()).unwrap();
    assert_eq!(budget.ceiling, 400 * MIB);
}

#[test]
fn use_without_room_is_infinitely_much() {
    let ledger = empty();
    let sample = Sample { groups: vec![group(30 * MIB, 0, 0)], ..Sample::default() };
    let _stationary = ledger.reserve(&Owner::new("chat", 0), Class::Scratch, 10 * MIB).unwrap();
    let idle = Budget::measure(&sample, None, 0, &ledger.snapshot()).unwrap();
    assert_eq!((idle.room(), idle.utilization()), (0, 0.0));
    let _cache = ledger.reserve(&Owner::new("chat", 0), Class::PrefixCache, 1).unwrap();
    assert_eq!(idle.refresh(&ledger.snapshot()).utilization(), f64::INFINITY);
}

#[test]
fn sizes_without_sense_are_survived() {
    let ledger = empty();
    let _scratch = ledger.reserve(&Owner::new("chat", 0), Class::Scratch, u64::MAX / 2).unwrap();
    for size in [0, 1, u64::MAX] {
        let sample = Sample {
            anonymous: Some(size),
            file: Some(size),
            groups: vec![group(size, u64::MAX, u64::MAX)],
            ..host(size, u64::MAX)
        };
        let budget = Budget::measure(&sample, None, u64::MAX, &ledger.snapshot()).unwrap();
        assert!(budget.ceiling <= size);
    }
}
