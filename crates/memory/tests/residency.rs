//! Which weights stay where not all fit.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::ops::Range;

use lichen_memory::{
    CHUNK_BYTES, Class, Domain, Group, Ledger, Limit, Owner, ResidencyPlan, Sample, Source, UnknownSize,
    WINDOW_BYTES, WeightRange, weight_room,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn scanned(bytes: Range<u64>) -> WeightRange {
    WeightRange { bytes, rows: false }
}

/// Tensors of these sizes one after another, with a gap between.
fn pass(sizes: &[u64]) -> Vec<WeightRange> {
    let mut at = 0;
    let tensor = |len: &u64| {
        let start = at;
        at += len + 32;
        scanned(start..start + len)
    };
    sizes.iter().map(tensor).collect()
}

#[test]
fn what_fits_stays_and_nothing_is_streamed() {
    let mut plan = ResidencyPlan::new(&pass(&[100 * MIB, 1000, 50 * MIB]));
    plan.resize(150 * MIB + 1000);
    assert_eq!((plan.hot_bytes(), plan.streamed_bytes()), (150 * MIB + 1000, 0));
}

#[test]
fn what_does_not_fit_leaves_room_for_the_window() {
    let mut plan = ResidencyPlan::new(&pass(&[100 * MIB; 4]));
    plan.resize(300 * MIB);
    let wanted = 300 * MIB - WINDOW_BYTES;
    assert!((wanted - CHUNK_BYTES..=wanted).contains(&plan.hot_bytes()), "{}", plan.hot_bytes());
    assert_eq!(plan.hot_bytes() + plan.streamed_bytes(), 400 * MIB);
}

#[test]
fn small_tensors_and_those_read_by_rows_stay_first() {
    let mut weights = pass(&[40 * MIB, 1000, 40 * MIB]);
    weights[2].rows = true;
    let mut plan = ResidencyPlan::new(&weights);
    assert_eq!(plan.hot_bytes(), 1000);
    plan.resize(40 * MIB + 1000 + WINDOW_BYTES);
    let of_the_table = |chunk: &usize| plan.chunks()[*chunk].start >= weights[2].bytes.start;
    assert!((0..plan.chunks().len()).all(|chunk| plan.stays(chunk) == of_the_table(&chunk)));
}

#[test]
fn what_stays_alternates_with_what_is_streamed() {
    let mut plan = ResidencyPlan::new(&pass(&[400 * MIB]));
    plan.resize(200 * MIB + WINDOW_BYTES);
    let stays: Vec<bool> = (0..100).map(|chunk| plan.stays(chunk)).collect();
    assert!(stays.chunks(10).all(|ten| (4..=6).contains(&ten.iter().filter(|stays| **stays).count())));
}

#[test]
fn less_room_is_obeyed_at_once_and_a_little_more_changes_nothing() {
    let mut plan = ResidencyPlan::new(&pass(&[200 * MIB]));
    plan.resize(100 * MIB);
    let before = plan.hot_bytes();
    plan.resize(104 * MIB);
    assert_eq!(plan.hot_bytes(), before);
    plan.resize(80 * MIB);
    assert_eq!(plan.hot_bytes(), 64 * MIB);
    plan.resize(0);
    assert_eq!(plan.hot_bytes(), 0);
}

proptest! {
    #[test]
    fn each_byte_is_in_one_chunk_or_small(sizes in prop::collection::vec(1..40 * MIB, 0..20)) {
        let mut weights = pass(&sizes);
        weights.extend(weights.clone());
        let plan = ResidencyPlan::new(&weights);
        let mut chunks = plan.chunks().to_vec();
        prop_assert!(chunks.iter().all(|chunk| chunk.end - chunk.start <= CHUNK_BYTES));
        chunks.sort_by_key(|chunk| chunk.start);
        prop_assert!(chunks.is_sorted_by(|a, b| a.end <= b.start));
        let covered: u64 = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        prop_assert_eq!(covered + plan.hot_bytes(), sizes.iter().sum::<u64>());
    }

    #[test]
    fn what_stays_fits_whatever_the_room_was_before(
        sizes in prop::collection::vec(64 * 1024..40 * MIB, 1..20),
        rooms in prop::collection::vec(0..600 * MIB, 1..10),
    ) {
        let weights = pass(&sizes);
        let (mut plan, mut twin) = (ResidencyPlan::new(&weights), ResidencyPlan::new(&weights));
        for room in rooms {
            plan.resize(room);
            twin.resize(room);
            prop_assert_eq!(&plan, &twin);
            prop_assert!(plan.hot_bytes() <= room);
            prop_assert_eq!(plan.hot_bytes() + plan.streamed_bytes(), sizes.iter().sum::<u64>());
            let stays = |chunk: &usize| plan.stays(*chunk);
            let bytes = |chunk: usize| plan.chunks()[chunk].end - plan.chunks()[chunk].start;
            let hot: u64 = (0..plan.chunks().len()).filter(stays).map(bytes).sum();
            prop_assert_eq!(hot, plan.hot_bytes());
        }
    }
}

fn group(limit: u64, usage: u64, file: u64) -> Group {
    let (usage, file) = (Some(usage), Some(file));
    Group { name: "/box".into(), limit, usage, file, limit_hits: None, out_of_memory: None }
}

#[test]
fn weights_have_what_the_group_leaves_beside_anonymous_memory() {
    let ledger = Ledger::new(Domain::Host, Limit { bytes: u64::MAX, margin: 0, source: Source::Explicit });
    let reserve = |class, bytes| ledger.reserve(&Owner::new("m", 0), class, bytes).unwrap();
    let _weights = reserve(Class::WeightsMapped, 47 * MIB);
    let _fixed = reserve(Class::Fixed, 40 * MIB);
    let sample = Sample {
        anonymous: Some(60 * MIB),
        groups: vec![group(350 * MIB, 340 * MIB, 270 * MIB)],
        ..Sample::default()
    };
    let room = |explicit| weight_room(&sample, explicit, &ledger.snapshot());
    assert_eq!(room(None), Ok(280 * MIB));
    assert_eq!(room(Some(200 * MIB)), Ok(140 * MIB));
    let _scratch = reserve(Class::Scratch, 50 * MIB);
    assert_eq!(room(None), Ok(250 * MIB), "what is about to be touched is gone");
    assert_eq!(weight_room(&Sample::default(), None, &ledger.snapshot()), Err(UnknownSize));
}
