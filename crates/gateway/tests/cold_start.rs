//! One load however many ask.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use lichen_contract::Ensured;
use lichen_gateway::cold_start::{ColdStart, Outcome, Step, Waiters};
use lichen_gateway::placement::Verdict;
use proptest::prelude::*;

fn name(node: &str) -> Arc<str> {
    node.into()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn load(node: &str) -> Verdict {
    Verdict::Load { node: name(node), evict: vec!["old".into()] }
}

fn place(excluded: &[&str]) -> Step {
    Step::Place { excluded: excluded.iter().map(|node| name(node)).collect() }
}

fn loading(progress: f32) -> Option<Ensured> {
    Some(Ensured::Loading { progress, eta_s: Some(9) })
}

#[test]
fn a_load_is_looked_after_until_it_is_ready_even_if_nobody_waits() {
    let (mut job, first) = ColdStart::new(0);
    assert_eq!(first, place(&[]));
    assert_eq!(job.placed(load("a")), Step::Ask { node: name("a"), evict: vec!["old".into()] });
    assert!(matches!(job.answered(at(1), &name("a"), loading(0.5)), Step::Wait(_)));
    assert_eq!((job.progress().state, job.progress().share, job.progress().eta_s), ("loading", 0.5, Some(9)));
    assert_eq!(job.woke(0), Step::Ask { node: name("a"), evict: vec![] });
    assert_eq!(job.answered(at(2), &name("a"), Some(Ensured::Ready)), Step::End(Outcome::Ready(name("a"))));
}

#[test]
fn while_all_is_busy_it_tries_again_as_long_as_somebody_waits() {
    let (mut job, _) = ColdStart::new(0);
    assert_eq!(job.placed(Verdict::Busy { retry_after: 3 }), Step::Wait(at(3)));
    assert_eq!(job.woke(1), place(&[]));
    assert!(matches!(job.placed(Verdict::NoNode), Step::Wait(_)));
    assert_eq!(job.woke(0), Step::End(Outcome::Abandoned));
}

#[test]
fn a_restart_is_waited_for_and_an_outage_is_not() {
    let (mut job, _) = ColdStart::new(0);
    for _ in 0..4 {
        assert!(matches!(job.placed(Verdict::NoNode), Step::Wait(_)));
    }
    assert_eq!(job.placed(Verdict::NoNode), Step::End(Outcome::NoNode));
}

#[test]
fn a_node_that_fails_is_not_asked_again_and_its_cause_is_told() {
    let (mut job, _) = ColdStart::new(0);
    job.placed(load("a"));
    let failed = Some(Ensured::Failed { cause: "no such file".into(), retry_after_s: Some(7) });
    assert_eq!(job.answered(at(0), &name("a"), failed), place(&["a"]));
    job.placed(load("b"));
    let pinned = Some(Ensured::PinnedOut { by: vec!["x".into()] });
    assert_eq!(job.answered(at(0), &name("b"), pinned), place(&["a", "b"]));
    let outcome = Outcome::Failed { cause: "a: no such file".into(), retry_after: 7 };
    assert_eq!(job.placed(Verdict::NoNode), Step::End(outcome));
}

#[test]
fn a_node_that_dies_while_it_loads_is_replaced() {
    let (mut job, _) = ColdStart::new(0);
    job.placed(load("a"));
    job.answered(at(0), &name("a"), loading(0.9));
    job.woke(1);
    assert_eq!(job.answered(at(1), &name("a"), None), place(&[]));
    assert_eq!(job.progress().share, 0.0);
    assert_eq!(job.placed(load("b")), Step::Ask { node: name("b"), evict: vec!["old".into()] });
}

#[test]
fn what_never_fits_and_what_is_pinned_out_end_at_once() {
    let ends = |verdict| ColdStart::new(0).0.placed(verdict);
    assert_eq!(
        ends(Verdict::NeverFits { needs: 9, has: 4 }),
        Step::End(Outcome::NeverFits { needs: 9, has: 4 })
    );
    let by = vec!["chat".to_owned()];
    assert_eq!(ends(Verdict::PinnedOut { by: by.clone() }), Step::End(Outcome::PinnedOut { by }));
}

#[test]
fn a_load_that_never_ends_is_given_up_after_a_time_that_grows_with_its_size() {
    let lasts = |bytes: u64, seconds: u64| {
        let (mut job, _) = ColdStart::new(bytes);
        job.placed(load("a"));
        job.answered(at(0), &name("a"), loading(0.0));
        matches!(job.answered(at(seconds), &name("a"), loading(0.1)), Step::Wait(_))
    };
    assert!(lasts(0, 299) && !lasts(0, 300));
    assert!(lasts(10 << 30, 499) && !lasts(10 << 30, 500));
}

#[test]
fn sixteen_requests_start_one_job_and_the_next_one_after_it_another() {
    let mut waiters = Waiters::default();
    assert_eq!((0..16).filter(|_| waiters.join("m")).count(), 1);
    assert!(waiters.join("other"));
    (0..16).for_each(|_| waiters.leave("m"));
    assert_eq!(waiters.count("m"), 0);
    assert!(!waiters.join("m"), "the job goes on without waiters");
    waiters.over("m");
    assert!(waiters.join("m"));
}

proptest! {
    /// However nodes answer: no node that has refused is asked again, and a job whose nodes have all refused ends.
    #[test]
    fn a_job_ends_and_asks_nobody_in_vain(answers in prop::collection::vec(0_u8..6, 1..60), nodes in 1_usize..5) {
        let names: Vec<Arc<str>> = (0..nodes).map(|at| name(&format!("n{at}"))).collect();
        let (mut job, mut step) = ColdStart::new(0);
        let mut refused: Vec<Arc<str>> = Vec::new();
        let mut answers = answers.into_iter();
        for second in 0..10_000 {
            step = match step {
                Step::Place { excluded } => {
                    prop_assert_eq!(&excluded, &refused);
                    let free = names.iter().find(|node| !excluded.contains(node));
                    job.placed(free.map_or(Verdict::NoNode, |node| load(node)))
                }
                Step::Ask { node, .. } => {
                    prop_assert!(!refused.contains(&node));
                    let answer = match answers.next() {
                        Some(0) | None => Some(Ensured::Failed { cause: "x".into(), retry_after_s: None }),
                        Some(1) => Some(Ensured::Busy { retry_after_s: 0 }),
                        Some(2) => Some(Ensured::NeverFits { needs_bytes: 2, has_bytes: 1 }),
                        Some(3) => Some(Ensured::PinnedOut { by: vec![] }),
                        Some(4) => loading(0.1),
                        Some(_) => None,
                    };
                    let refuses = !matches!(answer, None | Some(Ensured::Busy { .. } | Ensured::Loading { .. }));
                    if refuses {
                        refused.push(node.clone());
                    }
                    job.answered(at(second), &node, answer)
                }
                Step::Wait(_) => job.woke(1),
                Step::End(outcome) => {
                    prop_assert_eq!(refused.len(), nodes, "{:?}", outcome);
                    return Ok(());
                }
            };
        }
        prop_assert!(false, "it never ends");
    }
}
