//! Which node answers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeMap;
use std::time::Duration;

use lichen_contract::{ModelState, ModelStatus, NodeReport};
use lichen_gateway::config::RoutingConfig;
use lichen_gateway::fleet::{Limits, Members, Ticket};
use lichen_gateway::route::{Ask, Router};
use proptest::prelude::*;

const NOW: Duration = Duration::from_secs(1);
const ASK: Ask<'static> = Ask { model: "m", prefix: &[], session: None, lichen_only: false };

fn ready(in_flight: u32) -> ModelStatus {
    ModelStatus { id: "m".into(), state: ModelState::Ready, in_flight, ..ModelStatus::default() }
}

fn report(node: &str, sequence: u64, model: ModelStatus) -> NodeReport {
    NodeReport {
        node_id: node.into(),
        boot_id: "a".into(),
        sequence,
        address: Some(format!("http://{node}")),
        models: vec![model],
        ..NodeReport::default()
    }
}

fn fleet(models: impl IntoIterator<Item = ModelStatus>) -> Members {
    let limits = Limits { silence: Duration::from_secs(5), forget: Duration::from_secs(600) };
    let mut members = Members::new(limits, &[]);
    for (index, model) in models.into_iter().enumerate() {
        members.pushed(Duration::ZERO, None, report(&format!("n{index}"), 1, model));
    }
    members
}

fn router() -> Router {
    Router::new(RoutingConfig::default(), 7)
}

fn send(router: &mut Router, members: &mut Members, ask: Ask<'_>) -> Ticket {
    router.dispatch(NOW, members, ask, &[]).unwrap().ticket
}

fn spread(tickets: &[Ticket]) -> BTreeMap<String, usize> {
    let mut spread = BTreeMap::new();
    tickets.iter().for_each(|ticket| *spread.entry(ticket.node().to_string()).or_default() += 1);
    spread
}

#[test]
fn sixty_four_at_once_on_four_equal_nodes_spread_evenly_between_two_reports() {
    let prefix: Vec<u64> = (0..40).collect();
    for ask in [ASK, Ask { prefix: &prefix, ..ASK }, Ask { session: Some("s"), prefix: &prefix, ..ASK }] {
        let (mut router, mut members) = (router(), fleet([ready(0), ready(0), ready(0), ready(0)]));
        let tickets: Vec<_> = (0..64).map(|_| send(&mut router, &mut members, ask)).collect();
        let spread = spread(&tickets);
        assert!(spread.len() == 4 && spread.values().all(|count| (14..=18).contains(count)), "{spread:?}");
    }
}

#[test]
fn the_less_busy_node_is_taken() {
    let queued = ModelStatus { queued: 9, ..ready(0) };
    let full = ModelStatus { kv_use: 1.0, ..ready(0) };
    let mut members = fleet([ready(9), queued, full, ready(1)]);
    assert_eq!(&**send(&mut router(), &mut members, ASK).node(), "n3");
}

#[test]
fn only_nodes_that_are_up_with_the_model_ready_are_taken() {
    let states =
        [ModelState::Absent, ModelState::Loading { progress: 0.9, eta_s: None }, ModelState::Draining];
    let models = states.into_iter().chain([ModelState::Unknown, ModelState::Failed { cause: "x".into() }]);
    let mut members = fleet(models.map(|state| ModelStatus { state, ..ready(0) }));
    assert!(router().dispatch(NOW, &mut members, ASK, &[]).is_none());
    members.pushed(NOW, None, report("n1", 2, ready(0)));
    let ticket = send(&mut router(), &mut members, ASK);
    assert_eq!(&**ticket.node(), "n1");
    members.failed(&ticket);
    assert!(router().dispatch(NOW, &mut members, ASK, &[]).is_none(), "it is down now");
}

#[test]
fn what_only_lichen_speaks_goes_to_no_other_node() {
    let text = "[[nodes]]\nname = \"old\"\nendpoint = \"http://old\"\nkind = \"openai\"\n";
    let limits = Limits { silence: Duration::from_secs(5), forget: Duration::from_secs(600) };
    let nodes = lichen_gateway::config::Config::parse(text, "test").unwrap().nodes;
    let mut members = Members::new(limits, &nodes);
    members.polled(NOW, "old", report("old", 1, ready(0)));
    assert!(router().dispatch(NOW, &mut members, Ask { lichen_only: true, ..ASK }, &[]).is_none());
    assert!(router().dispatch(NOW, &mut members, ASK, &[]).is_some());
}

#[test]
fn a_node_that_was_tried_is_not_tried_again() {
    let mut members = fleet([ready(0), ready(5)]);
    let mut router = router();
    let first = send(&mut router, &mut members, ASK);
    let tried = [first.node().clone()];
    let second = router.dispatch(NOW, &mut members, ASK, &tried).unwrap().ticket;
    assert_eq!((&**first.node(), &**second.node()), ("n0", "n1"));
    let both = [first.node().clone(), second.node().clone()];
    assert!(router.dispatch(NOW, &mut members, ASK, &both).is_none());
}

#[test]
fn a_conversation_stays_where_its_prefix_is() {
    let (mut router, mut members) = (router(), fleet([ready(0), ready(0), ready(0)]));
    let turns: Vec<u64> = (100..160).collect();
    let first = send(&mut router, &mut members, Ask { prefix: &turns[..50], ..ASK });
    members.finished(&first);
    for length in 50..60 {
        let next = send(&mut router, &mut members, Ask { prefix: &turns[..length], ..ASK });
        assert_eq!(next.node(), first.node());
        members.finished(&next);
    }
}

#[test]
fn a_conversation_moves_when_its_node_is_much_busier() {
    let (mut router, mut members) = (router(), fleet([ready(0), ready(0)]));
    let turns: Vec<u64> = (0..50).collect();
    let ask = Ask { prefix: &turns, ..ASK };
    let first = send(&mut router, &mut members, ask);
    let home = first.node().to_string();
    members.finished(&first);
    members.pushed(NOW, None, report(&home, 2, ready(20)));
    assert_ne!(send(&mut router, &mut members, ask).node().to_string(), home);
}

#[test]
fn a_restarted_node_has_seen_nothing() {
    let (mut router, mut members) = (router(), fleet([ready(0), ready(0)]));
    let turns: Vec<u64> = (0..50).collect();
    let ask = Ask { prefix: &turns, ..ASK };
    let first = send(&mut router, &mut members, ask);
    members.finished(&first);
    let (home, busy) = (first.node().to_string(), ready(1));
    members.pushed(NOW, None, NodeReport { boot_id: "b".into(), ..report(&home, 1, busy) });
    assert_ne!(send(&mut router, &mut members, ask).node().to_string(), home);
}

#[test]
fn a_session_stays_on_its_node() {
    let (mut router, mut members) = (router(), fleet([ready(0), ready(0), ready(0), ready(0)]));
    let ask = Ask { session: Some("s1"), ..ASK };
    let first = send(&mut router, &mut members, ask);
    members.finished(&first);
    for _ in 0..20 {
        let next = send(&mut router, &mut members, ask);
        assert_eq!(next.node(), first.node());
        members.finished(&next);
    }
}

proptest! {
    /// Requests of any length over nodes that report at any time: nobody waits beside an idle node.
    #[test]
    fn no_node_is_left_idle_while_another_has_two(
        steps in prop::collection::vec((any::<bool>(), any::<usize>()), 1..300), nodes in 2_usize..6, seed in any::<u64>(),
    ) {
        let mut router = Router::new(RoutingConfig::default(), seed);
        let mut members = fleet((0..nodes).map(|_| ready(0)));
        let mut open: Vec<Ticket> = Vec::new();
        for (arrives, which) in steps {
            if arrives || open.is_empty() {
                let before: Vec<u32> = members.iter().map(|node| node.in_flight("m")).collect();
                let ticket = send(&mut router, &mut members, ASK);
                let at = members.iter().position(|node| node.name() == ticket.node()).unwrap();
                prop_assert_eq!(before[at], *before.iter().min().unwrap());
                open.push(ticket);
            } else {
                members.finished(&open.swap_remove(which % open.len()));
            }
        }
    }
}
