//! The ladder, rule by rule.

use lichen_memory::{Cause, Ladder, Level, Signals, Thresholds, Transition};
use proptest::prelude::*;
use std::time::Duration;

const TICK: Duration = Duration::from_millis(100);

fn calm() -> Signals {
    Signals {
        utilization: 0.1,
        commitment: 0.1,
        excess: -5.0,
        headroom: 10.0,
        exhaustion: f64::INFINITY,
        stall_some: Some(0.0),
        stall_full: Some(0.0),
        thrash: Some(0.0),
        limit_hit: false,
        out_of_memory: false,
    }
}

/// A ladder with a clock.
struct Climber {
    ladder: Ladder,
    now: Duration,
    transitions: Vec<Transition>,
}

impl Climber {
    fn new() -> Self {
        Self { ladder: Ladder::new(Thresholds::default()), now: Duration::ZERO, transitions: Vec::new() }
    }

    fn step(&mut self, signals: &Signals) -> Level {
        self.now += TICK;
        self.transitions.extend(self.ladder.step(self.now, signals));
        self.ladder.level()
    }

    fn stay(&mut self, signals: &Signals, seconds: u64) -> Level {
        (0..seconds * 10).fold(self.ladder.level(), |_, _| self.step(signals))
    }

    /// Steps until the level changes, and says after how many tenths of a second.
    fn until_change(&mut self, signals: &Signals) -> u64 {
        let level = self.ladder.level();
        (1..20_000).find(|_| self.step(signals) != level).unwrap_or(u64::MAX)
    }
}

type Set = fn(&mut Signals, f64);

/// Signal, and for each level from watch on the values that just enter it, and that do not yet leave and do.
type Row = (Cause, Set, [Option<(f64, f64, f64)>; 3]);

const TABLE: [Row; 8] = [
    (
        Cause::Utilization,
        |s, v| s.utilization = v,
        [Some((0.80, 0.72, 0.719)), Some((0.90, 0.81, 0.809)), None],
    ),
    (Cause::Commitment, |s, v| s.commitment = v, [None, Some((1.0, 0.90, 0.899)), None]),
    (Cause::Excess, |s, v| s.excess = v, [None, None, Some((1.0, 0.0, -0.01))]),
    (Cause::Headroom, |s, v| s.headroom = v, [None, Some((0.999, 1.199, 1.2)), Some((0.499, 0.999, 1.0))]),
    (
        Cause::Exhaustion,
        |s, v| s.exhaustion = v,
        [Some((9.99, 19.9, 20.0)), Some((2.99, 5.99, 6.0)), Some((0.99, 1.99, 2.0))],
    ),
    (
        Cause::StallSome,
        |s, v| s.stall_some = Some(v),
        [Some((0.02, 0.005, 0.0049)), Some((0.10, 0.04, 0.039)), Some((0.25, 0.10, 0.099))],
    ),
    (
        Cause::StallFull,
        |s, v| s.stall_full = Some(v),
        [None, Some((0.05, 0.02, 0.019)), Some((0.20, 0.08, 0.079))],
    ),
    (
        Cause::Thrash,
        |s, v| s.thrash = Some(v),
        [Some((0.02, 0.005, 0.0049)), Some((0.10, 0.05, 0.049)), Some((0.30, 0.15, 0.149))],
    ),
];

fn rows() -> impl Iterator<Item = (Cause, Set, Level, (f64, f64, f64))> {
    TABLE.into_iter().flat_map(|(cause, set, edges)| {
        let levels = Level::ALL.into_iter().skip(1).zip(edges);
        levels.filter_map(move |(level, values)| Some((cause, set, level, values?)))
    })
}

fn with(set: Set, value: f64) -> Signals {
    let mut signals = calm();
    set(&mut signals, value);
    signals
}

#[test]
fn each_signal_alone_enters_each_of_its_levels() {
    for (cause, set, level, (enter, _, _)) in rows() {
        let mut climber = Climber::new();
        climber.stay(&with(set, enter), 1);
        let [first] = climber.transitions[..] else { panic!("{cause:?} {level}: {:?}", climber.transitions) };
        assert_eq!((first.from, first.to, first.cause), (Level::Normal, level, cause));
    }
}

#[test]
fn each_signal_alone_holds_a_level_above_its_lower_edge_and_lets_go_below() {
    for (cause, set, level, (enter, hold, release)) in rows() {
        let mut climber = Climber::new();
        climber.stay(&with(set, enter), 1);
        assert_eq!(climber.stay(&with(set, hold), 300), level, "{cause:?}");
        climber.stay(&with(set, release), 30);
        assert!(climber.ladder.level() < level, "{cause:?} {level}");
    }
}

#[test]
fn stalls_and_thrash_count_at_the_second_sample_and_the_rest_at_the_first() {
    for (cause, set, level, (enter, _, _)) in rows() {
        let slow = matches!(cause, Cause::StallSome | Cause::StallFull | Cause::Thrash);
        let mut climber = Climber::new();
        assert_eq!(climber.step(&with(set, enter)), if slow { Level::Normal } else { level }, "{cause:?}");
        assert_eq!(climber.step(&with(set, enter)), level, "{cause:?}");
    }
    let mut climber = Climber::new();
    for _ in 0..10 {
        climber.step(&Signals { thrash: Some(9.0), ..calm() });
        assert_eq!(climber.step(&calm()), Level::Normal, "one sample is an accident");
    }
}

#[test]
fn events_count_at_once_and_are_over_at_once() {
    for (signals, level, cause) in [
        (Signals { limit_hit: true, ..calm() }, Level::Tight, Cause::LimitHit),
        (Signals { out_of_memory: true, ..calm() }, Level::Critical, Cause::OutOfMemory),
    ] {
        let mut climber = Climber::new();
        assert_eq!(climber.step(&signals), level);
        assert_eq!(climber.transitions[0].cause, cause);
        assert_eq!(climber.stay(&calm(), 60), Level::Normal);
    }
}

#[test]
fn the_way_down_is_one_level_at_a_time_after_the_dwell_of_each() {
    let mut climber = Climber::new();
    climber.step(&Signals { headroom: 0.0, ..calm() });
    assert_eq!(climber.ladder.level(), Level::Critical);
    let waits: Vec<u64> = (0..3).map(|_| climber.until_change(&calm())).collect();
    assert_eq!(waits, [200, 150, 100]);
    assert_eq!(climber.ladder.level(), Level::Normal);
}

#[test]
fn a_signal_in_between_starts_the_dwell_anew() {
    let mut climber = Climber::new();
    climber.step(&Signals { utilization: 0.85, ..calm() });
    climber.stay(&calm(), 9);
    climber.step(&Signals { utilization: 0.75, ..calm() });
    assert_eq!(climber.until_change(&calm()), 100);
}

#[test]
fn a_level_entered_again_soon_is_left_later_each_time() {
    let mut climber = Climber::new();
    let mut waits = Vec::new();
    for _ in 0..5 {
        climber.step(&Signals { utilization: 0.85, ..calm() });
        waits.push(climber.until_change(&calm()) / 10);
        climber.stay(&calm(), 5);
    }
    assert_eq!(waits, [10, 20, 40, 80, 80]);
    climber.stay(&calm(), 300);
    climber.step(&Signals { utilization: 0.85, ..calm() });
    assert_eq!(climber.until_change(&calm()), 100, "five calm minutes forgive");
}

#[test]
fn missing_sensors_neither_raise_nor_hold() {
    let blind = Signals { stall_some: None, stall_full: None, thrash: None, ..calm() };
    let mut climber = Climber::new();
    climber.stay(&Signals { thrash: Some(0.5), ..calm() }, 1);
    assert_eq!(climber.ladder.level(), Level::Critical);
    assert_eq!(climber.stay(&blind, 60), Level::Normal);
    assert_eq!(
        climber.step(&Signals { utilization: 0.95, ..blind }),
        Level::Tight,
        "the ledger alone is enough"
    );
}

#[test]
fn a_value_that_is_no_number_is_no_reason_for_calm() {
    let mut climber = Climber::new();
    climber.step(&Signals { utilization: 0.85, ..calm() });
    assert_eq!(climber.stay(&Signals { utilization: f64::NAN, ..calm() }, 100), Level::Watch);
}

#[test]
fn time_without_samples_is_not_calm_and_a_clock_that_goes_back_stands_still() {
    let mut climber = Climber::new();
    climber.step(&Signals { utilization: 0.85, ..calm() });
    climber.now += Duration::from_secs(600);
    assert_eq!(climber.step(&calm()), Level::Watch);
    climber.now -= Duration::from_secs(300);
    assert_eq!(climber.stay(&calm(), 299), Level::Watch);
    assert_eq!(climber.stay(&calm(), 20), Level::Normal);
}

#[test]
fn a_saw_tooth_around_an_edge_gives_two_changes_in_a_dwell_at_most() {
    for (cause, set, level, (enter, _, release)) in rows() {
        let mut climber = Climber::new();
        for _ in 0..200 {
            climber.stay(&with(set, enter), 1);
            climber.stay(&with(set, release), 1);
        }
        assert!(climber.transitions.len() <= 2, "{cause:?} {level}: {:?}", climber.transitions);
    }
}

fn signals() -> impl Strategy<Value = Signals> {
    let part = || prop_oneof![3 => 0.0..0.05f64, 1 => 0.0..1.2f64];
    let sensor = || prop::option::of(part());
    (0.5..1.1f64, part(), 0.0..9.0f64, 0.0..60.0f64, sensor(), sensor(), prop::bool::weighted(0.01)).prop_map(
        |(utilization, commitment, headroom, exhaustion, stall, thrash, out_of_memory)| Signals {
            utilization,
            commitment,
            headroom,
            exhaustion,
            stall_some: stall,
            thrash,
            out_of_memory,
            ..calm()
        },
    )
}

proptest! {
    #[test]
    fn any_course_keeps_the_rules(course in prop::collection::vec((signals(), 1u64..300), 1..60)) {
        let mut climber = Climber::new();
        for (signals, tenths) in &course {
            for _ in 0..*tenths {
                let (level, count) = (climber.ladder.level(), climber.transitions.len());
                climber.step(signals);
                let Some(change) = climber.transitions.get(count) else { continue };
                prop_assert_eq!((change.from, change.to), (level, climber.ladder.level()));
                if change.to < level {
                    prop_assert_eq!(change.to as u8 + 1, level as u8);
                    let before = count.checked_sub(1).map_or(Duration::ZERO, |at| climber.transitions[at].at);
                    let dwell = [0, 10, 15, 20][level as usize];
                    prop_assert!(change.at - before >= Duration::from_secs(dwell));
                }
            }
        }
        let mut again = Climber::new();
        for (signals, tenths) in &course {
            for _ in 0..*tenths {
                again.step(signals);
            }
        }
        prop_assert_eq!(again.transitions, climber.transitions);
    }
}
