//! The contract as it goes over the wire.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_contract::{
    Device, Discovery, Ensured, LoadRequest, Memory, ModelState, ModelStatus, NodeReport, routes,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn state() -> impl Strategy<Value = ModelState> {
    let share = || (0_u8..=100, any::<Option<u32>>()).prop_map(|(p, eta)| (f32::from(p) / 100.0, eta));
    prop_oneof![
        Just(ModelState::Absent),
        share().prop_map(|(progress, eta_s)| ModelState::Staging { progress, eta_s }),
        share().prop_map(|(progress, eta_s)| ModelState::Loading { progress, eta_s }),
        Just(ModelState::Ready),
        Just(ModelState::Draining),
        any::<String>().prop_map(|cause| ModelState::Failed { cause }),
    ]
}

prop_compose! {
    fn model()(
        id in any::<String>(), state in state(), numbers in any::<(u32, u32, u64, bool, i32)>(), kv in 0_u8..=100,
        seconds in any::<(Option<u32>, Option<u32>)>(), context_cap in any::<Option<u32>>(),
    ) -> ModelStatus {
        let (in_flight, queued, bytes, pinned, priority) = numbers;
        let (idle_s, load_s) = seconds;
        let kv_use = f32::from(kv) / 100.0;
        ModelStatus { id, state, in_flight, queued, kv_use, bytes, pinned, priority, idle_s, load_s, context_cap }
    }
}

prop_compose! {
    fn report()(
        names in any::<(String, String, Option<String>)>(), sequence in any::<u64>(), draining in any::<bool>(),
        memory in any::<(u64, u64)>(), models in prop::collection::vec(model(), 0..4),
    ) -> NodeReport {
        let (node_id, boot_id, address) = names;
        let memory = Memory { budget_bytes: memory.0, free_bytes: memory.1 };
        let device = Device { index: 1, backend: "cuda".into(), name: "H200".into(), capability: "9.0".into(),
            memory_bytes: 150_754_820_096, free_bytes: 7 };
        NodeReport { node_id, boot_id, sequence, address, draining, memory, devices: vec![device], models }
    }
}

proptest! {
    #[test]
    fn a_report_arrives_as_it_was_sent(report in report()) {
        let text = serde_json::to_string(&report).unwrap();
        prop_assert_eq!(serde_json::from_str::<NodeReport>(&text).unwrap(), report);
    }

    #[test]
    fn fields_of_a_later_version_are_ignored(report in report()) {
        let mut sent = serde_json::to_value(&report).unwrap();
        sent["moon"] = json!({"phase": 3});
        sent["memory"]["tiers"] = json!([1, 2]);
        for model in sent["models"].as_array_mut().unwrap() {
            model["adapters"] = json!(["a"]);
        }
        prop_assert_eq!(serde_json::from_value::<NodeReport>(sent).unwrap(), report);
    }
}

#[test]
fn a_state_stands_beside_the_other_fields() {
    let state = ModelState::Loading { progress: 0.5, eta_s: Some(12) };
    let sent =
        serde_json::to_value(ModelStatus { id: "chat".into(), state, ..ModelStatus::default() }).unwrap();
    assert_eq!((&sent["id"], &sent["state"]), (&json!("chat"), &json!("loading")));
    assert_eq!((&sent["progress"], &sent["eta_s"]), (&json!(0.5), &json!(12)));
}

#[test]
fn the_least_that_a_node_must_say_is_who_it_is() {
    let report: NodeReport =
        serde_json::from_value(json!({"node_id": "attic", "boot_id": "b1", "sequence": 7})).unwrap();
    assert_eq!((report.node_id.as_str(), report.sequence, report.models.len()), ("attic", 7, 0));
    let missing =
        serde_json::from_value::<NodeReport>(json!({"node_id": "attic", "sequence": 7})).unwrap_err();
    assert!(missing.to_string().contains("boot_id"));
    let found: Discovery = serde_json::from_value(json!({"node_id": "attic", "boot_id": "b1"})).unwrap();
    assert_eq!(found.cores, 0);
}

#[test]
fn a_state_of_a_later_version_is_no_error() {
    let status: ModelStatus =
        serde_json::from_value(json!({"id": "m", "state": "hibernating", "depth": 3, "bytes": 5})).unwrap();
    assert_eq!((status.state, status.bytes), (ModelState::Unknown, 5));
}

#[test]
fn a_load_needs_only_a_reference() {
    let load: LoadRequest = serde_json::from_value(json!({"model_id": "smollm2", "colour": "red"})).unwrap();
    assert_eq!(load, LoadRequest { model_id: "smollm2".into(), ..LoadRequest::default() });
}

#[test]
fn every_verdict_has_its_name_and_its_status() {
    let cases: [(Ensured, Value, u16); 6] = [
        (Ensured::Ready, json!({"verdict": "ready"}), 200),
        (
            Ensured::Loading { progress: 0.25, eta_s: Some(9) },
            json!({"verdict": "loading", "progress": 0.25, "eta_s": 9}),
            202,
        ),
        (
            Ensured::NeverFits { needs_bytes: 9, has_bytes: 4 },
            json!({"verdict": "never_fits", "needs_bytes": 9, "has_bytes": 4}),
            413,
        ),
        (
            Ensured::PinnedOut { by: vec!["chat".into()] },
            json!({"verdict": "pinned_out", "by": ["chat"]}),
            409,
        ),
        (Ensured::Busy { retry_after_s: 3 }, json!({"verdict": "busy", "retry_after_s": 3}), 503),
        (
            Ensured::Failed { cause: "no such file".into(), retry_after_s: None },
            json!({"verdict": "failed", "cause": "no such file", "retry_after_s": null}),
            503,
        ),
    ];
    for (answer, sent, status) in cases {
        assert_eq!((serde_json::to_value(&answer).unwrap(), answer.status()), (sent.clone(), status));
        assert_eq!(serde_json::from_value::<Ensured>(sent).unwrap(), answer);
    }
}

#[test]
fn a_name_with_slashes_finds_its_endpoint() {
    let path = routes::endpoint("Qwen/Qwen3-8B");
    assert_eq!(path, "/models/Qwen/Qwen3-8B/endpoint");
    assert_eq!(routes::endpoint_model(path.strip_prefix("/models/").unwrap()), Some("Qwen/Qwen3-8B"));
    assert_eq!((routes::endpoint_model("chat"), routes::endpoint_model("/endpoint")), (None, None));
}
