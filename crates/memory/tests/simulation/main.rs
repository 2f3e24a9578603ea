//! Ledger, ladder and admission under a scripted scheduler and scripted pressure, by seed.
//! `LICHEN_SEEDS` sets how many seeds each curve and limit gets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod random;
mod sequence;
mod world;

use lichen_memory::{Level, Transition};
use random::{Curve, Pressure, Random};
use sequence::{MIB, State};
use std::time::Duration;
use world::World;

const REQUESTS: usize = 12;
/// Tenths of a second with pressure.
const PRESSED: u64 = 1500;
/// Tenths of a second after which everything must have ended.
const HORIZON: u64 = 30_000;

fn seeds() -> u64 {
    std::env::var("LICHEN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(110)
}

fn run(curve: Curve, limit: u64, seed: u64) -> World {
    let mut random = Random(seed);
    let phase = random.between(0, 799);
    let pressure = Pressure { curve, limit: limit * MIB, phase, end: PRESSED, walk: 0.0 };
    let mut world = World::new(random, pressure, REQUESTS);
    let busy = |world: &World| world.coming > 0 || world.sequences.iter().any(|one| one.state != State::Done);
    while busy(&world) {
        assert!(world.tenth < HORIZON, "{} run, {} come", world.running().len(), world.coming);
        world.tick();
    }
    world
}

/// No level is left before its dwell, and none more than three times in a minute.
fn keeps_calm(transitions: &[Transition]) {
    for (at, change) in transitions.iter().enumerate() {
        if change.to > change.from {
            continue;
        }
        assert_eq!(change.from as u8, change.to as u8 + 1);
        let dwell = [0, 10, 15, 20][change.from as usize];
        let before = at.checked_sub(1).map_or(Duration::ZERO, |at| transitions[at].at);
        assert!(change.at - before >= Duration::from_secs(dwell), "{transitions:?}");
        let minute = transitions[..=at].iter().filter(|one| {
            one.from == change.from && one.to < one.from && change.at - one.at < Duration::from_secs(60)
        });
        assert!(minute.count() <= 3, "{transitions:?}");
    }
}

/// Runs every seed, and returns how often a sequence was parked.
fn survives(curve: Curve) -> usize {
    let (mut highest, mut parks) = (Level::Normal, 0);
    for limit in [250, 350, 500] {
        for seed in 0..seeds() {
            let world = std::panic::catch_unwind(|| run(curve, limit, seed))
                .unwrap_or_else(|_| panic!("{curve:?} at {limit} MiB with seed {seed}"));
            assert!(world.sequences.iter().all(|one| one.answered == one.answer));
            assert_eq!(world.sequences.len() + world.refused, REQUESTS);
            keeps_calm(&world.transitions);
            highest = world.transitions.iter().map(|change| change.to).fold(highest, Level::max);
            parks += world.parks;
        }
    }
    assert!(highest >= Level::Watch, "the pressure was felt");
    parks
}

#[test]
fn every_admitted_request_completes_without_pressure_and_nobody_is_parked() {
    assert_eq!(survives(Curve::Steady), 0);
}

#[test]
fn every_admitted_request_completes_while_memory_goes_within_a_minute() {
    assert!(survives(Curve::Ramp) > 0, "the last rungs were reached");
}

#[test]
fn every_admitted_request_completes_while_memory_goes_within_three_seconds() {
    assert!(survives(Curve::Steps) > 0, "the last rungs were reached");
}

#[test]
fn every_admitted_request_completes_while_memory_goes_within_one_second() {
    assert!(survives(Curve::Shocks) > 0, "the last rungs were reached");
}

#[test]
fn every_admitted_request_completes_under_pressure_that_wanders() {
    assert!(survives(Curve::Walk) > 0, "the last rungs were reached");
}

#[test]
fn every_admitted_request_completes_under_pressure_that_swings() {
    assert!(survives(Curve::SawTooth) > 0, "the last rungs were reached");
}

#[test]
fn the_same_seed_gives_the_same_transitions() {
    for curve in Curve::ALL {
        assert_eq!(run(curve, 250, 7).transitions, run(curve, 250, 7).transitions);
    }
}

#[test]
fn calm_returns_after_the_pressure() {
    for curve in Curve::ALL {
        let mut world = run(curve, 250, 11);
        let end = world.tenth + 6000;
        while world.level() > Level::Normal {
            assert!(world.tenth < end, "{curve:?} stays {}", world.level());
            world.tick();
        }
    }
}
