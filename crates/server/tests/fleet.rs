//! The node's side of the contract with gateways, with a scripted loader.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::{Act, Bytes, Reply, Scripted, Server};
use lichen_contract::{Discovery, Endpoint, Ensured, ModelState, ModelStatus, NodeReport, Unloading, routes};
use lichen_generate::{FinishReason, Stats};
use lichen_server::{Limits, LoadError, LoadOrder, Loader, Model, Progress, Settings};
use serde_json::{Value, json};

/// Loads models of 100 bytes (`large` has 300). Each step waits until it is let go.
#[derive(Default)]
struct Stepped {
    loads: AtomicUsize,
    fetches: AtomicUsize,
    fetched: AtomicUsize,
    estimating: AtomicBool,
    gate: (Mutex<bool>, Condvar),
    stats: Stats,
}

impl Stepped {
    fn open() -> Arc<Self> {
        let loader = Arc::new(Self::default());
        loader.let_go();
        loader
    }

    fn let_go(&self) {
        *self.gate.0.lock().unwrap() = true;
        self.gate.1.notify_all();
    }

    fn wait(&self) {
        let open = self.gate.0.lock().unwrap();
        drop(self.gate.1.wait_while(open, |open| !*open).unwrap());
    }
}

impl Loader for Stepped {
    fn name(&self, reference: &str) -> String {
        reference.trim_start_matches("hf:").to_owned()
    }

    fn is_away(&self, order: &LoadOrder) -> bool {
        order.reference.starts_with("hf:") && self.fetched.load(Ordering::Relaxed) == 0
    }

    fn fetch(&self, order: &LoadOrder, progress: Progress) -> Result<(), String> {
        self.fetches.fetch_add(1, Ordering::Relaxed);
        progress(0.25);
        self.wait();
        if order.reference == "hf:nobody/nothing" {
            return Err("nobody has it".into());
        }
        self.fetched.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn estimate(&self, order: &LoadOrder) -> Result<u64, String> {
        match order.reference.as_str() {
            "missing" => Err("missing is not there".into()),
            "large" => Ok(300),
            "far" => {
                self.estimating.store(true, Ordering::Release);
                self.wait();
                Ok(100)
            }
            _ => Ok(100),
        }
    }

    fn load(&self, order: &LoadOrder, _room: u64, progress: Progress) -> Result<Model, LoadError> {
        progress(0.5);
        self.loads.fetch_add(1, Ordering::Relaxed);
        self.wait();
        if order.reference == "broken" {
            return Err(LoadError::Failed("the file is broken".into()));
        }
        let acts = match order.reference.as_str() {
            "endless" => vec![Act::Say("on"), Act::Forever, Act::Finish(FinishReason::Stop)],
            "slow" => vec![
                Act::Say("a"),
                Act::Sleep(Duration::from_millis(600)),
                Act::Say("b"),
                Act::Finish(FinishReason::Stop),
            ],
            _ => vec![Act::Say("hi"), Act::Finish(FinishReason::Stop)],
        };
        let engine = Arc::new(Scripted { acts, stats: self.stats, ..Scripted::default() });
        Ok(Model::new(&order.name, engine, Arc::new(Bytes)).with_bytes(100))
    }
}

async fn server(loader: &Arc<Stepped>, bytes: u64) -> Server {
    let settings = Settings {
        limits: Limits { bytes, min_residency: Duration::ZERO, ..Limits::default() },
        loader: Some(loader.clone()),
        load_wait: Duration::from_secs(5),
        ..Settings::default()
    };
    Server::with(&Scripted::new([]), settings, &[]).await
}

async fn ask(server: &Server, body: Value) -> (Reply, Ensured) {
    let reply = server.post(routes::LOAD, body).await;
    let ensured = serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("{reply:?}"));
    (reply, ensured)
}

async fn ensure(server: &Server, body: Value) -> Ensured {
    ask(server, body).await.1
}

async fn report(server: &Server) -> NodeReport {
    serde_json::from_str(&server.get(routes::MODELS).await.body).unwrap()
}

async fn status(server: &Server, name: &str) -> Option<ModelStatus> {
    report(server).await.models.into_iter().find(|model| model.id == name)
}

async fn becomes(server: &Server, name: &str, wanted: impl Fn(&ModelState) -> bool) -> ModelStatus {
    for _ in 0..400 {
        if let Some(status) = status(server, name).await.filter(|status| wanted(&status.state)) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", report(server).await);
}

async fn ready(server: &Server, body: Value) -> ModelStatus {
    let name = body["model_id"].as_str().unwrap().to_owned();
    assert!(matches!(ensure(server, body).await, Ensured::Loading { .. } | Ensured::Ready));
    becomes(server, &name, |state| *state == ModelState::Ready).await
}

fn complete(model: &str) -> Value {
    json!({"model": model, "prompt": "a"})
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_again_joins_the_load_that_runs_and_sees_how_far_it_is() {
    let loader = Arc::new(Stepped::default());
    let server = server(&loader, 200).await;
    let (reply, first) = ask(&server, json!({"model_id": "a"})).await;
    assert_eq!(reply.status, 202);
    assert!(matches!(first, Ensured::Loading { .. }), "{first:?}");
    becomes(&server, "a", |state| matches!(state, ModelState::Loading { progress, .. } if *progress == 0.5))
        .await;
    let joined = ensure(&server, json!({"model_id": "a", "pin": true})).await;
    let Ensured::Loading { progress, eta_s } = joined else { panic!("{joined:?}") };
    assert_eq!((progress, eta_s.is_some()), (0.5, true));
    loader.let_go();
    let status = becomes(&server, "a", |state| *state == ModelState::Ready).await;
    assert!(!status.pinned, "a load that runs is left as it is");
    assert_eq!((status.bytes, status.context_cap, status.load_s.is_some()), (100, Some(128), true));
    let (reply, again) = ask(&server, json!({"model_id": "a"})).await;
    assert_eq!((reply.status, again, loader.loads.load(Ordering::Relaxed)), (200, Ensured::Ready, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_goes_on_when_who_asked_has_gone() {
    let loader = Arc::new(Stepped::default());
    let server = server(&loader, 200).await;
    let asking = server.open("POST", routes::LOAD, "", &json!({"model_id": "far"}).to_string()).await;
    while !loader.estimating.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Gone before the file is read, let alone loaded.
    drop(asking);
    tokio::time::sleep(Duration::from_millis(50)).await;
    loader.let_go();
    becomes(&server, "far", |state| *state == ModelState::Ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_elsewhere_is_fetched_first_and_holds_up_no_other_load() {
    let loader = Arc::new(Stepped::default());
    let server = server(&loader, 200).await;
    for _ in 0..2 {
        let staging = ensure(&server, json!({"model_id": "hf:org/m", "name": "m"})).await;
        assert!(matches!(staging, Ensured::Loading { .. }), "{staging:?}");
    }
    let quarter =
        |state: &ModelState| matches!(state, ModelState::Staging { progress, .. } if *progress == 0.25);
    let status = becomes(&server, "m", quarter).await;
    assert_eq!((status.bytes, report(&server).await.memory.free_bytes), (0, 200), "nothing is reserved yet");
    assert_eq!(server.get("/v1/models/m").await.json()["state"], "staging");
    ensure(&server, json!({"model_id": "a"})).await;
    becomes(&server, "a", |state| matches!(state, ModelState::Loading { progress, .. } if *progress > 0.0))
        .await;
    let waiting = server.post("/v1/completions", complete("m"));
    let (answer, ()) = tokio::join!(waiting, async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        loader.let_go();
    });
    assert_eq!(answer.status, 200, "a request waits for the file and the load: {answer:?}");
    assert_eq!((loader.fetches.load(Ordering::Relaxed), loader.loads.load(Ordering::Relaxed)), (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_nobody_has_is_a_failure_with_its_cause_and_a_time_to_ask_again() {
    let loader = Stepped::open();
    let server = server(&loader, 200).await;
    ensure(&server, json!({"model_id": "hf:nobody/nothing"})).await;
    let failed =
        |state: &ModelState| matches!(state, ModelState::Failed { cause } if cause == "nobody has it");
    becomes(&server, "nobody/nothing", failed).await;
    let (reply, again) = ask(&server, json!({"model_id": "hf:nobody/nothing"})).await;
    let Ensured::Failed { cause, retry_after_s: Some(1..=10) } = again else { panic!("{again:?}") };
    assert_eq!(
        (reply.status, cause.as_str(), loader.fetches.load(Ordering::Relaxed)),
        (503, "nobody has it", 1)
    );
    assert!(reply.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_is_told_with_its_cause() {
    let server = server(&Stepped::open(), 200).await;
    ensure(&server, json!({"model_id": "broken"})).await;
    becomes(&server, "broken", |state| matches!(state, ModelState::Failed { .. })).await;
    let failed = ensure(&server, json!({"model_id": "broken"})).await;
    let Ensured::Failed { cause, retry_after_s: Some(_) } = failed else { panic!("{failed:?}") };
    assert_eq!(cause, "the file is broken");
    let missing = ensure(&server, json!({"model_id": "missing"})).await;
    assert_eq!(missing, Ensured::Failed { cause: "missing is not there".into(), retry_after_s: None });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_node_can_not_do_is_refused_by_name() {
    let server = server(&Stepped::open(), 200).await;
    for (body, named) in [
        (json!({"model_id": "a", "devices": [3]}), "device 3"),
        (json!({"model_id": "a", "tensor_parallel": 2}), "tensor_parallel"),
        (json!({"model_id": "a", "quant": "Q4_K"}), "Q4_K"),
        (json!({"model_id": "a", "name": ""}), "name"),
    ] {
        let refused = ensure(&server, body).await;
        let Ensured::Failed { cause, retry_after_s: None } = refused else { panic!("{refused:?}") };
        assert!(cause.contains(named), "{cause}");
    }
    let reply = server.post(routes::LOAD, json!({"model": "a"})).await;
    assert_eq!(reply.status, 400);
    assert!(reply.error()["message"].as_str().unwrap().contains("model_id"), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_fits_and_what_pins_keep_out_is_told_with_numbers_and_names() {
    let server = server(&Stepped::open(), 200).await;
    let (reply, large) = ask(&server, json!({"model_id": "large"})).await;
    assert_eq!((reply.status, large), (413, Ensured::NeverFits { needs_bytes: 300, has_bytes: 200 }));
    ready(&server, json!({"model_id": "a", "pin": true})).await;
    ready(&server, json!({"model_id": "b", "priority": 5})).await;
    let (reply, out) = ask(&server, json!({"model_id": "c", "priority": 1})).await;
    assert_eq!((reply.status, out), (409, Ensured::PinnedOut { by: vec!["a".into(), "b".into()] }));
    ready(&server, json!({"model_id": "c", "priority": 5})).await;
    let state = |name: &'static str| async { status(&server, name).await.unwrap().state };
    assert_eq!((state("a").await, state("b").await), (ModelState::Ready, ModelState::Absent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_model_is_not_evicted_and_who_wants_its_room_is_told_when_to_come_back() {
    let server = server(&Stepped::open(), 100).await;
    ready(&server, json!({"model_id": "endless"})).await;
    let body = json!({"model": "endless", "prompt": "a", "stream": true}).to_string();
    let running = server.open("POST", "/v1/completions", "", &body).await;
    while status(&server, "endless").await.unwrap().in_flight == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (reply, busy) = ask(&server, json!({"model_id": "a", "evict": ["endless"]})).await;
    assert!(matches!(busy, Ensured::Busy { retry_after_s: 1.. }), "{busy:?}");
    assert_eq!((reply.status, reply.header("retry-after").is_some()), (503, true));
    assert_eq!(status(&server, "endless").await.unwrap().state, ModelState::Ready);
    drop(running);
    while status(&server, "endless").await.unwrap().in_flight > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ready(&server, json!({"model_id": "a", "evict": ["endless"]})).await;
    assert_eq!(status(&server, "endless").await.unwrap().state, ModelState::Absent);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unload_waits_for_the_requests_that_run_and_the_model_stays_known() {
    let server = server(&Stepped::open(), 200).await;
    ready(&server, json!({"model_id": "slow"})).await;
    let running = server.post("/v1/completions", complete("slow"));
    let (answer, ()) = tokio::join!(running, async {
        while status(&server, "slow").await.unwrap().in_flight == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let reply = server.post(routes::UNLOAD, json!({"model_id": "slow"})).await;
        let unloading: Unloading = serde_json::from_str(&reply.body).unwrap();
        assert_eq!((reply.status, unloading.in_flight), (202, 1));
        assert_eq!(status(&server, "slow").await.unwrap().state, ModelState::Draining);
        let late = server.post("/v1/completions", complete("slow")).await;
        assert_eq!((late.status, late.header("retry-after").is_some()), (503, true), "{late:?}");
    });
    assert_eq!((answer.status, &answer.json()["choices"][0]["text"]), (200, &json!("ab")));
    becomes(&server, "slow", |state| *state == ModelState::Absent).await;
    assert_eq!(server.post("/v1/completions", complete("slow")).await.status, 200, "it comes back");
    let unknown = server.post(routes::UNLOAD, json!({"model_id": "never heard of"})).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unload_ends_the_wish_for_a_file_that_is_being_fetched() {
    let loader = Arc::new(Stepped::default());
    let server = server(&loader, 200).await;
    ensure(&server, json!({"model_id": "hf:org/m", "name": "m"})).await;
    becomes(&server, "m", |state| matches!(state, ModelState::Staging { .. })).await;
    assert_eq!(server.post(routes::UNLOAD, json!({"model_id": "m"})).await.status, 202);
    loader.let_go();
    while loader.fetched.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((status(&server, "m").await, loader.loads.load(Ordering::Relaxed)), (None, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_endpoint_is_told_of_models_that_are_ready_slashes_in_their_names_or_not() {
    let server = server(&Stepped::open(), 200).await;
    ready(&server, json!({"model_id": "org/a"})).await;
    let reply = server.get(&routes::endpoint("org/a")).await;
    let endpoint: Endpoint = serde_json::from_str(&reply.body).unwrap();
    assert_eq!((endpoint.model_id.as_str(), endpoint.url.as_str()), ("org/a", "http://test"));
    assert_eq!(server.get(&routes::endpoint("b")).await.status, 404);
    assert_eq!(server.get("/models/org/a").await.status, 404);
    server.post(routes::UNLOAD, json!({"model_id": "org/a"})).await;
    becomes(&server, "org/a", |state| *state == ModelState::Absent).await;
    assert_eq!(server.get(&routes::endpoint("org/a")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_grow_in_number_and_tell_memory_queue_and_kv() {
    let stats =
        Stats { running: 2, waiting: 3, pages: 30, cached_pages: 10, page_limit: 40, ..Stats::default() };
    let loader = Arc::new(Stepped { stats, ..Stepped::default() });
    loader.let_go();
    let mut server = server(&loader, 250).await;
    ready(&server, json!({"model_id": "endless"})).await;
    let body = json!({"model": "endless", "prompt": "a", "stream": true}).to_string();
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(server.open("POST", "/v1/completions", "", &body).await);
    }
    let full = |status: &ModelStatus| (status.in_flight, status.queued) == (2, 3);
    while !status(&server, "endless").await.is_some_and(|status| full(&status)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (first, second) = (report(&server).await, report(&server).await);
    assert!(first.sequence < second.sequence && first.boot_id == second.boot_id && !first.boot_id.is_empty());
    assert_eq!((first.memory.budget_bytes, first.memory.free_bytes, first.draining), (250, 150, false));
    assert_eq!(first.models[0].kv_use, 0.5);
    let discovery: Discovery = serde_json::from_str(&server.get(routes::DISCOVERY).await.body).unwrap();
    assert_eq!((discovery.boot_id, discovery.budget_bytes), (first.boot_id, 250));
    server.stop();
    drop(running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_loader_says_so() {
    let server = Server::start(&Scripted::new([])).await;
    assert_eq!(
        ensure(&server, json!({"model_id": "a"})).await,
        Ensured::Failed {
            cause: "this node serves only what it was started with".into(),
            retry_after_s: None,
        }
    );
    assert_eq!(status(&server, "org/toy").await.unwrap().state, ModelState::Ready);
}
