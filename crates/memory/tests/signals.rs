//! What the observer makes of samples over time.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_memory::{Budget, Group, Observer, Origin, Refaults, Sample, Signals, Source, Stall, Work};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A budget with so much free.
fn free(bytes: u64) -> Budget {
    Budget {
        limit: 1000 * MIB,
        source: Source::Host,
        ceiling: 1000 * MIB,
        margin: 60 * MIB,
        mapped: 1000 * MIB - bytes,
        stationary: 0,
        dynamic: 1000 * MIB - bytes,
        promised: 0,
    }
}

/// An observer with a clock of ten samples a second.
#[derive(Default)]
struct Watcher {
    observer: Observer,
    now: Duration,
}

impl Watcher {
    fn see(&mut self, sample: &Sample, budget: &Budget, work: Work) -> Signals {
        self.now += Duration::from_millis(100);
        self.observer.observe(self.now, sample, budget, work)
    }
}

fn stalled(origin: Origin, milliseconds: u64) -> Sample {
    let some = Duration::from_millis(milliseconds);
    Sample { stall: Some(Stall { origin, some, full: some / 2 }), ..Sample::default() }
}

#[test]
fn stalls_are_counted_over_one_second() {
    let mut watcher = Watcher::default();
    let mut see = |total| watcher.see(&stalled(Origin::System, total), &free(500 * MIB), Work::default());
    assert_eq!(see(5000).stall_some, Some(0.0), "one sample has no difference");
    let parts: Vec<f64> = (1..=20).map(|tenth| see(5000 + tenth * 20).stall_some.unwrap()).collect();
    assert!(parts.iter().all(|part| (part - 0.2).abs() < 1e-9), "{parts:?}");
    for _ in 0..11 {
        see(5400);
    }
    let last = see(5400);
    assert_eq!((last.stall_some, last.stall_full), (Some(0.0), Some(0.0)));
}

#[test]
fn a_stall_counter_that_jumps_to_another_origin_or_back_starts_anew() {
    let mut watcher = Watcher::default();
    let mut see = |sample: &Sample| watcher.see(sample, &free(500 * MIB), Work::default()).stall_some;
    see(&stalled(Origin::Group, 10));
    assert_eq!(see(&stalled(Origin::System, 900_000)), Some(0.0));
    assert_eq!(see(&stalled(Origin::System, 5)), Some(0.0));
    assert_eq!(see(&Sample::default()), None);
    assert_eq!(see(&stalled(Origin::System, 900_000)), Some(0.0));
}

#[test]
fn headroom_is_the_least_of_three_samples_in_margins() {
    let mut watcher = Watcher::default();
    let mut see = |mib| watcher.see(&Sample::default(), &free(mib * MIB), Work::default()).headroom;
    assert_eq!([see(120), see(60), see(120), see(120), see(120)], [2.0, 1.0, 1.0, 1.0, 2.0]);
}

#[test]
fn time_to_exhaustion_is_taken_from_what_others_took_in_half_a_second() {
    let mut watcher = Watcher::default();
    let mut see = |ceiling: u64, mapped: u64| {
        let budget = Budget { ceiling: ceiling * MIB, mapped: mapped * MIB, ..free(0) };
        watcher.see(&Sample::default(), &budget, Work::default()).exhaustion
    };
    assert_eq!(see(1000, 500), f64::INFINITY);
    for tenth in 1..10 {
        see(1000 - 10 * tenth, 500);
    }
    let last = see(900, 500);
    assert!((last - 4.0).abs() < 1e-9, "400 MiB at 100 MiB a second: {last}");
    for _ in 0..6 {
        see(900, 500);
    }
    assert_eq!(see(900, 800), f64::INFINITY, "what we take ourselves is no reason");
    assert_eq!(see(800, 900), 0.0);
}

#[test]
fn thrash_is_bytes_read_again_for_each_byte_of_weights_used() {
    let mut watcher = Watcher::default();
    let mut see = |refaulted, passes| {
        let refaulted = Some(Refaults { origin: Origin::Group, bytes: refaulted });
        let work = Work { passes, weight_bytes: passes * 100, failed_allocations: 0 };
        watcher.see(&Sample { refaulted, ..Sample::default() }, &free(500 * MIB), work).thrash
    };
    assert_eq!(see(1000, 0), None);
    assert_eq!(see(1050, 1), None, "one pass is too little");
    assert_eq!(see(1150, 2), Some(0.75));
    assert_eq!(see(1150, 3), Some(0.75));
    assert_eq!(see(1150, 4), Some(0.0));
    let idle = (0..25).map(|_| see(9000, 4)).last().unwrap();
    assert_eq!(idle, None, "without passes there is no ratio");
    assert_eq!(see(10, 6), None, "a counter that goes back starts anew");
}

fn group(limit_hits: u64, out_of_memory: u64) -> Group {
    Group {
        name: "/box".into(),
        limit: 1000 * MIB,
        usage: Some(0),
        file: None,
        limit_hits: Some(limit_hits),
        out_of_memory: Some(out_of_memory),
    }
}

#[test]
fn limit_hits_count_when_there_is_little_to_drop_but_anonymous_memory() {
    let sample = |anonymous: u64, hits| Sample {
        anonymous: Some(anonymous * MIB),
        groups: vec![group(hits, 0)],
        ..Sample::default()
    };
    let mut watcher = Watcher::default();
    let mut see = |sample: &Sample| watcher.see(sample, &free(500 * MIB), Work::default()).limit_hit;
    assert!(!see(&sample(950, 7)), "hits of the past");
    assert!(!see(&sample(500, 8)), "the kernel drops files");
    assert!(see(&sample(950, 9)));
    assert!(!see(&sample(950, 9)));
}

#[test]
fn running_out_of_memory_is_seen_by_group_or_by_allocation() {
    let sample = |events| Sample { groups: vec![group(0, events)], ..Sample::default() };
    let failed = |failed_allocations| Work { failed_allocations, ..Work::default() };
    let mut watcher = Watcher::default();
    let mut see = |sample: &Sample, work| watcher.see(sample, &free(500 * MIB), work).out_of_memory;
    assert!(!see(&sample(3), failed(0)));
    assert!(see(&sample(4), failed(0)));
    assert!(!see(&Sample::default(), failed(0)), "the group has vanished");
    assert!(!see(&sample(9), failed(0)), "and come back: nothing is known of the time between");
    assert!(see(&sample(9), failed(1)));
}

#[test]
fn files_that_others_read_again_are_no_thrashing_of_ours() {
    let ratio = |faults: [u64; 2]| {
        let mut observer = Observer::default();
        let mut signals = None;
        for (step, faults) in (0u64..).zip(faults) {
            let refaulted = Some(Refaults { origin: Origin::Group, bytes: step * 1000 });
            let sample = Sample { refaulted, major_faults: Some(faults), ..Sample::default() };
            let work = Work { passes: 4 * step, weight_bytes: 2000 * step, failed_allocations: 0 };
            signals = observer.observe(Duration::from_secs(3 * step), &sample, &free(100 * MIB), work).thrash;
        }
        signals
    };
    assert_eq!(ratio([7, 7]), Some(0.0));
    assert_eq!(ratio([7, 8]), Some(0.5));
}
