//! Who is in the fleet, and who gets requests.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use lichen_contract::{ModelState, ModelStatus, NodeReport};
use lichen_gateway::fleet::{Heard, Limits, Members, Standing};
use proptest::prelude::*;

const LIMITS: Limits = Limits { silence: Duration::from_secs(5), forget: Duration::from_secs(600) };

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fixed(text: &str) -> Members {
    Members::new(LIMITS, &lichen_gateway::config::Config::parse(text, "test").unwrap().nodes)
}

fn report(boot: &str, sequence: u64, in_flight: u32) -> NodeReport {
    let model = ModelStatus { id: "m".into(), state: ModelState::Ready, in_flight, ..ModelStatus::default() };
    NodeReport {
        node_id: "attic".into(),
        boot_id: boot.into(),
        sequence,
        address: Some("http://10.0.0.2:1".into()),
        models: vec![model],
        ..NodeReport::default()
    }
}

fn joined() -> Members {
    let mut members = Members::new(LIMITS, &[]);
    assert_eq!(members.pushed(at(0), None, report("a", 1, 0)), Heard::Joined);
    members
}

fn standing(members: &Members, now: u64) -> Standing {
    members.standing(at(now), members.get("attic").unwrap())
}

#[test]
fn a_node_joins_with_its_first_report_and_is_silent_without_more() {
    let mut members = joined();
    assert_eq!((standing(&members, 5), standing(&members, 6)), (Standing::Up, Standing::Silent));
    members.forget_silent(at(600));
    assert!(members.get("attic").is_some());
    members.forget_silent(at(601));
    assert!(members.get("attic").is_none());
}

#[test]
fn a_report_that_is_not_newer_changes_nothing() {
    let mut members = joined();
    members.pushed(at(1), None, report("a", 5, 3));
    for sequence in [5, 4, 0] {
        assert_eq!(members.pushed(at(9), None, report("a", sequence, 99)), Heard::Stale);
    }
    assert_eq!(members.get("attic").unwrap().in_flight("m"), 3);
    assert_eq!(standing(&members, 7), Standing::Silent);
}

#[test]
fn a_restart_is_news_whatever_its_sequence_and_the_old_boot_never_comes_back() {
    let mut members = joined();
    members.pushed(at(1), None, report("a", 50, 9));
    assert_eq!(members.pushed(at(2), None, report("b", 1, 0)), Heard::Rebooted);
    assert_eq!(members.pushed(at(3), None, report("a", 51, 9)), Heard::Stale);
    assert_eq!(members.get("attic").unwrap().in_flight("m"), 0);
}

#[test]
fn a_changed_address_is_taken() {
    let mut members = joined();
    let moved = NodeReport { address: Some("http://10.0.0.9:1".into()), ..report("a", 2, 0) };
    members.pushed(at(1), None, moved);
    assert_eq!(&**members.get("attic").unwrap().address(), "http://10.0.0.9:1");
}

#[test]
fn one_failed_request_takes_a_node_down_and_one_report_brings_it_back() {
    let mut members = joined();
    let ticket = members.sent("attic", "m").unwrap();
    members.failed(&ticket);
    assert_eq!(standing(&members, 1), Standing::Down);
    members.pushed(at(2), None, report("a", 2, 0));
    assert_eq!(standing(&members, 2), Standing::Up);
}

#[test]
fn a_request_that_dies_with_the_old_boot_does_not_take_the_new_one_down() {
    let mut members = joined();
    let ticket = members.sent("attic", "m").unwrap();
    members.pushed(at(1), None, report("b", 1, 0));
    members.failed(&ticket);
    assert_eq!(standing(&members, 1), Standing::Up);
    assert_eq!(members.get("attic").unwrap().own_open("m"), 0);
}

#[test]
fn a_draining_node_gets_no_requests() {
    let mut members = joined();
    members.pushed(at(1), None, NodeReport { draining: true, ..report("a", 2, 0) });
    assert_eq!(standing(&members, 1), Standing::Draining);
    assert_eq!(members.up(at(1)).count(), 0);
}

#[test]
fn a_configured_node_keeps_its_name_and_address_and_is_never_forgotten() {
    let text = "[[nodes]]\nname = \"under-the-roof\"\nendpoint = \"http://10.0.0.2:1/\"\n";
    let mut members = fixed(text);
    members.forget_silent(at(10_000));
    assert_eq!(members.pushed(at(1), None, report("a", 1, 0)), Heard::Joined);
    let inside = NodeReport { address: Some("http://127.0.0.1:1".into()), ..report("a", 2, 0) };
    assert_eq!(members.pushed(at(2), None, inside), Heard::News);
    assert_eq!(members.polled(at(3), "under-the-roof", report("a", 3, 0)), Heard::News);
    assert_eq!(members.iter().count(), 1);
    assert_eq!(&**members.get("under-the-roof").unwrap().address(), "http://10.0.0.2:1");
}

#[test]
fn requests_sent_since_the_last_report_count_on_top_of_it() {
    let mut members = joined();
    members.pushed(at(1), None, report("a", 2, 10));
    let tickets: Vec<_> = (0..3).map(|_| members.sent("attic", "m").unwrap()).collect();
    assert_eq!(members.get("attic").unwrap().in_flight("m"), 13);
    members.finished(&tickets[0]);
    assert_eq!(members.get("attic").unwrap().in_flight("m"), 12);
    members.pushed(at(2), None, report("a", 3, 0));
    assert_eq!(members.get("attic").unwrap().in_flight("m"), 2, "never fewer than its own");
}

#[derive(Debug, Clone)]
enum Step {
    Report { boot: u8, sequence: u64, in_flight: u32 },
    Send,
    Finish(usize),
    Fail(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..3, 0_u64..20, 0_u32..9).prop_map(|(boot, sequence, in_flight)| Step::Report {
            boot,
            sequence,
            in_flight
        }),
        Just(Step::Send),
        any::<usize>().prop_map(Step::Finish),
        any::<usize>().prop_map(Step::Fail),
    ]
}

proptest! {
    /// A slow model of the same rules: a list of open requests with the boot that they went to.
    #[test]
    fn counts_are_those_of_the_open_requests(steps in prop::collection::vec(step(), 0..200)) {
        let mut members = joined();
        let (mut tickets, mut boots, mut newest) = (Vec::new(), vec!["a".to_owned()], 1);
        let mut last = 0;
        for (now, step) in steps.into_iter().enumerate() {
            match step {
                Step::Report { boot, sequence, in_flight } => {
                    let boot = ["a", "b", "c"][usize::from(boot)];
                    let heard = members.pushed(at(now as u64), None, report(boot, sequence, in_flight));
                    let current = boots.last().unwrap() == boot;
                    let expected = match (current, boots.iter().any(|old| old == boot)) {
                        (true, _) if sequence <= newest => Heard::Stale,
                        (true, _) => Heard::News,
                        (false, true) => Heard::Stale,
                        (false, false) => Heard::Rebooted,
                    };
                    prop_assert_eq!(heard, expected);
                    if heard != Heard::Stale {
                        newest = sequence;
                        last = in_flight;
                    }
                    if heard == Heard::Rebooted {
                        boots.push(boot.to_owned());
                    }
                }
                Step::Send => tickets.push((members.sent("attic", "m").unwrap(), boots.len())),
                Step::Finish(_) | Step::Fail(_) if tickets.is_empty() => {}
                Step::Finish(at) => members.finished(&tickets.swap_remove(at % tickets.len()).0),
                Step::Fail(at) => members.failed(&tickets.swap_remove(at % tickets.len()).0),
            }
            let node = members.get("attic").unwrap();
            let open = tickets.iter().filter(|(_, boot)| *boot == boots.len()).count() as u32;
            prop_assert_eq!(node.own_open("m"), open);
            prop_assert!(node.in_flight("m") >= open && node.in_flight("m") <= last + open);
        }
    }
}
