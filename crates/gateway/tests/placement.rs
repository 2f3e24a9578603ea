//! Where a model is loaded, and what goes for it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use lichen_contract::{Device, Memory, ModelState, ModelStatus, NodeReport};
use lichen_gateway::catalogue::{Catalogue, CatalogueModel};
use lichen_gateway::fleet::{Limits, Members};
use lichen_gateway::placement::{Strategy as Eviction, Verdict, place};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn model(text: &str) -> CatalogueModel {
    let text = format!("[[models]]\nid = \"new\"\n{text}");
    Catalogue::parse(&text, "models.toml").unwrap().models()[0].clone()
}

/// A model of 4 GiB.
fn four() -> CatalogueModel {
    model("memory_mb = 4096")
}

fn held(id: &str, gib: u64) -> ModelStatus {
    ModelStatus {
        id: id.into(),
        state: ModelState::Ready,
        bytes: gib * GIB,
        priority: 100,
        idle_s: Some(60),
        ..ModelStatus::default()
    }
}

fn node(id: &str, budget: u64, models: Vec<ModelStatus>) -> NodeReport {
    let used: u64 = models.iter().map(|model| model.bytes).sum();
    NodeReport {
        node_id: id.into(),
        boot_id: "a".into(),
        sequence: 1,
        address: Some(format!("http://{id}")),
        memory: Memory { budget_bytes: budget * GIB, free_bytes: budget * GIB - used },
        models,
        ..NodeReport::default()
    }
}

fn fleet(nodes: Vec<NodeReport>) -> Members {
    let limits = Limits { silence: Duration::from_secs(5), forget: Duration::from_secs(600) };
    let mut members = Members::new(limits, &[]);
    for report in nodes {
        members.pushed(Duration::ZERO, None, report);
    }
    members
}

fn decide(members: &Members, model: &CatalogueModel) -> Verdict {
    place(Duration::ZERO, members, model, Eviction::Value, &[])
}

fn load(node: &str, evict: &[&str]) -> Verdict {
    Verdict::Load { node: node.into(), evict: evict.iter().map(|id| (*id).to_owned()).collect() }
}

#[test]
fn a_node_with_room_is_taken_before_one_where_something_must_go() {
    let members = fleet(vec![node("a", 8, vec![held("x", 6)]), node("b", 8, vec![held("y", 3)])]);
    assert_eq!(decide(&members, &four()), load("b", &[]));
}

#[test]
fn of_nodes_with_room_the_least_busy_is_taken() {
    let busy = ModelStatus { in_flight: 3, ..held("x", 1) };
    let members = fleet(vec![node("a", 9, vec![busy]), node("b", 8, vec![held("y", 1)])]);
    assert_eq!(decide(&members, &four()), load("b", &[]));
}

#[test]
fn a_node_that_loads_it_already_is_joined() {
    let coming = ModelStatus { state: ModelState::Loading { progress: 0.1, eta_s: None }, ..held("new", 4) };
    let members = fleet(vec![node("a", 100, vec![]), node("b", 4, vec![coming])]);
    assert_eq!(decide(&members, &four()), load("b", &[]));
}

#[test]
fn the_least_valuable_idle_models_go_and_no_more_than_needed() {
    let old = ModelStatus { idle_s: Some(9000), ..held("old", 3) };
    let slow = ModelStatus { load_s: Some(300), ..held("slow", 3) };
    let classy = ModelStatus { priority: 100, ..held("usual", 2) };
    let members = fleet(vec![node("a", 8, vec![old, slow, classy])]);
    assert_eq!(decide(&members, &model("memory_mb = 3072")), load("a", &["old"]));
    assert_eq!(decide(&members, &model("memory_mb = 5120")), load("a", &["old", "usual"]));
}

#[test]
fn busy_and_pinned_models_and_higher_classes_never_go() {
    let running = ModelStatus { in_flight: 1, ..held("running", 4) };
    let waiting = ModelStatus { queued: 1, ..held("waiting", 4) };
    let pinned = ModelStatus { pinned: true, ..held("pinned", 4) };
    let higher = ModelStatus { priority: 200, ..held("higher", 4) };
    for status in [running.clone(), waiting] {
        assert_eq!(
            decide(&fleet(vec![node("a", 4, vec![status])]), &four()),
            Verdict::Busy { retry_after: 2 }
        );
    }
    let members = fleet(vec![node("a", 4, vec![pinned]), node("b", 4, vec![higher.clone()])]);
    assert_eq!(decide(&members, &four()), Verdict::PinnedOut { by: vec!["higher".into(), "pinned".into()] });
    let important = model("memory_mb = 4096\nresidency_priority = 200");
    assert_eq!(decide(&fleet(vec![node("b", 4, vec![higher])]), &important), load("b", &["higher"]));
}

#[test]
fn requests_sent_since_the_report_make_a_model_busy() {
    let mut members = fleet(vec![node("a", 4, vec![held("x", 4)])]);
    assert_eq!(decide(&members, &four()), load("a", &["x"]));
    let ticket = members.sent("a", "x").unwrap();
    assert_eq!(decide(&members, &four()), Verdict::Busy { retry_after: 2 });
    members.finished(&ticket);
    assert_eq!(decide(&members, &four()), load("a", &["x"]));
}

#[test]
fn what_is_larger_than_every_node_is_refused_with_numbers_and_nothing_goes() {
    let members = fleet(vec![node("a", 3, vec![held("x", 1)]), node("b", 2, vec![])]);
    assert_eq!(decide(&members, &four()), Verdict::NeverFits { needs: 4 * GIB, has: 3 * GIB });
}

#[test]
fn what_fits_only_on_a_node_that_is_away_has_no_node_and_is_not_called_too_large() {
    let mut members = fleet(vec![node("a", 3, vec![]), node("big", 64, vec![])]);
    let ticket = members.sent("big", "x").unwrap();
    members.failed(&ticket);
    assert_eq!(decide(&members, &four()), Verdict::NoNode);
    assert_eq!(decide(&fleet(vec![]), &four()), Verdict::NoNode);
}

#[test]
fn a_pinned_model_goes_to_its_nodes_only() {
    let members = fleet(vec![node("a", 100, vec![]), node("attic", 8, vec![])]);
    let pinned = model("memory_mb = 4096\npinned_on = [\"attic\"]");
    assert_eq!(decide(&members, &pinned), load("attic", &[]));
    let elsewhere = model("memory_mb = 4096\npinned_on = [\"cellar\"]");
    assert_eq!(decide(&members, &elsewhere), Verdict::NoNode);
}

#[test]
fn devices_are_counted_by_their_memory() {
    let device = |gib: u64| Device { memory_bytes: gib * GIB, ..Device::default() };
    let two = NodeReport { devices: vec![device(24), device(8)], ..node("two", 64, vec![]) };
    let members = fleet(vec![two]);
    assert_eq!(decide(&members, &model("memory_mb = 4096\nmin_devices = 2")), load("two", &[]));
    let large = model("memory_mb = 4096\nmin_devices = 2\nmin_device_memory_mb = 16384");
    assert!(matches!(decide(&members, &large), Verdict::NeverFits { .. }));
}

#[test]
fn strategies_differ_in_what_goes_first() {
    let old = ModelStatus { idle_s: Some(1000), priority: 100, load_s: Some(10_000), ..held("old", 4) };
    let low = ModelStatus { idle_s: Some(1), priority: 10, load_s: Some(100), ..held("low", 4) };
    let cheap = ModelStatus { idle_s: Some(2), load_s: Some(1), ..held("cheap", 4) };
    let members = fleet(vec![node("a", 12, vec![old, low, cheap])]);
    let first = |strategy| place(Duration::ZERO, &members, &four(), strategy, &[]);
    assert_eq!(first(Eviction::Lru), load("a", &["old"]));
    assert_eq!(first(Eviction::Priority), load("a", &["low"]));
    assert_eq!(first(Eviction::Value), load("a", &["cheap"]));
}

fn any_status() -> impl Strategy<Value = ModelStatus> {
    let state = prop_oneof![
        Just(ModelState::Ready),
        Just(ModelState::Draining),
        Just(ModelState::Loading { progress: 0.5, eta_s: None })
    ];
    (state, 0_u64..5, 0_u32..2, 0_u32..2, any::<bool>(), 0_i32..3, any::<Option<u8>>()).prop_map(
        |(state, gib, in_flight, queued, pinned, class, idle)| ModelStatus {
            state,
            bytes: gib * GIB,
            in_flight,
            queued,
            pinned,
            priority: class * 100,
            idle_s: idle.map(u32::from),
            ..ModelStatus::default()
        },
    )
}

proptest! {
    #[test]
    fn a_verdict_keeps_its_promises(
        nodes in prop::collection::vec((0_u64..6, prop::collection::vec(any_status(), 0..5)), 0..4),
        gib in 0_u64..12, priority in 0_i32..3,
        strategy in prop_oneof![Just(Eviction::Value), Just(Eviction::Lru), Just(Eviction::Priority)],
    ) {
        let reports: Vec<NodeReport> = nodes.into_iter().enumerate().map(|(at, (spare, mut models))| {
            models.iter_mut().enumerate().for_each(|(index, model)| model.id = format!("m{index}"));
            let used: u64 = models.iter().map(|model| model.bytes / GIB).sum();
            node(&format!("n{at}"), used + spare, models)
        }).collect();
        let members = fleet(reports.clone());
        let wanted = model(&format!("memory_mb = {}\nresidency_priority = {}", gib * 1024, priority * 100));
        match place(Duration::ZERO, &members, &wanted, strategy, &[]) {
            Verdict::Load { node, evict } => {
                let report = reports.iter().find(|report| report.node_id == *node).unwrap();
                let of = |id: &String| report.models.iter().find(|model| &model.id == id).unwrap();
                for status in evict.iter().map(of) {
                    prop_assert!(status.state == ModelState::Ready && status.in_flight + status.queued == 0);
                    prop_assert!(!status.pinned && status.priority <= wanted.residency_priority);
                }
                let freed: u64 = evict.iter().map(|id| of(id).bytes).sum();
                let room = report.memory.free_bytes + freed;
                prop_assert!(room >= wanted.bytes(), "what goes is enough");
                prop_assert!(evict.iter().all(|id| room - of(id).bytes < wanted.bytes()), "and nothing goes in vain");
            }
            Verdict::NeverFits { needs, has } => {
                prop_assert!(reports.iter().all(|report| report.memory.budget_bytes <= has));
                prop_assert!(needs > has);
            }
            Verdict::PinnedOut { by } => prop_assert!(!by.is_empty()),
            Verdict::Busy { .. } => prop_assert!(!reports.is_empty()),
            Verdict::NoNode => prop_assert!(reports.is_empty()),
        }
    }
}
