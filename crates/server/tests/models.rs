//! Models that come and go while the server runs, with a scripted loader.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Act, Bytes, Scripted, Server};
use lichen_generate::FinishReason;
use lichen_server::{Limits, LoadError, LoadOrder, Loader, Model, ModelOptions, Progress, Settings};
use serde_json::{Value, json};

/// Loads scripted models of 100 bytes, slowly.
#[derive(Default)]
struct Slow {
    loads: AtomicUsize,
    /// What else takes memory, so that a load finds too little until so many models have gone.
    squeezed: AtomicUsize,
    limits: Arc<Mutex<Vec<ModelOptions>>>,
}

const LOADING: Duration = Duration::from_millis(300);

impl Loader for Slow {
    fn name(&self, reference: &str) -> String {
        reference.to_owned()
    }

    fn estimate(&self, _order: &LoadOrder) -> Result<u64, String> {
        Ok(100)
    }

    fn load(&self, order: &LoadOrder, room: u64, progress: Progress) -> Result<Model, LoadError> {
        assert!(room >= 100, "{room} bytes of room");
        progress(0.5);
        std::thread::sleep(LOADING);
        let squeezed =
            self.squeezed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if squeezed.is_ok() {
            return Err(LoadError::NoRoom { need: 100, available: 40 });
        }
        if order.reference == "broken" {
            return Err(LoadError::Failed("the file is broken".into()));
        }
        self.loads.fetch_add(1, Ordering::Relaxed);
        let engine = Scripted::new([Act::Say("hi"), Act::Finish(FinishReason::Stop)]);
        let limits = self.limits.clone();
        let change = move |options: &ModelOptions| -> Result<(), String> {
            limits.lock().unwrap().push(options.clone());
            Ok(())
        };
        Ok(Model::new(&order.name, engine, Arc::new(Bytes))
            .with_bytes(100)
            .with_ttl(order.ttl)
            .with_options(order.options.clone())
            .with_change(Box::new(change)))
    }
}

async fn server(loader: &Arc<Slow>, limits: Limits) -> Server {
    let settings = Settings {
        limits,
        loader: Some(loader.clone()),
        load_wait: Duration::from_secs(5),
        ..Settings::default()
    };
    Server::with(&Scripted::new([]), settings, &[]).await
}

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "a"})
}

async fn load(server: &Server, body: Value) {
    let reply = server.post("/admin/models/load", body).await;
    assert_eq!(reply.status, 202, "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_its_model_and_does_so_quietly() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits::default()).await;
    load(&server, json!({"model": "a"})).await;
    let card = server.get("/v1/models/a").await.json();
    assert_eq!(card["state"], "loading", "{card}");
    #[cfg(target_os = "linux")]
    let before = ticks();
    let waiting = (0..8).map(|_| server.post("/v1/completions", ask("a")));
    for reply in futures(waiting.collect()).await {
        assert_eq!((reply.status, &reply.json()["choices"][0]["text"]), (200, &json!("hi")));
    }
    assert_eq!(loader.loads.load(Ordering::Relaxed), 1);
    // Waiting costs nothing: the load takes 30 hundredths of a second.
    #[cfg(target_os = "linux")]
    assert!(ticks() - before < 15, "{} hundredths of a second of work", ticks() - before);
}

/// Hundredths of a second of processor time, from fields 14 and 15 of proc(5) `stat`.
#[cfg(target_os = "linux")]
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Runs requests at once.
async fn futures<F: Future<Output = common::Reply>>(work: Vec<F>) -> Vec<common::Reply> {
    let mut work: Vec<_> = work.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<common::Reply>> = work.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (work, done) in work.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(reply) = work.as_mut().poll(context)
            {
                *done = Some(reply);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_had_to_go_comes_back_when_it_is_asked_for() {
    let loader = Arc::new(Slow::default());
    let limits = Limits { bytes: 100, min_residency: Duration::ZERO, ..Limits::default() };
    let server = server(&loader, limits).await;
    load(&server, json!({"model": "a"})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    // There is room for one: b pushes a out, and a comes back at b's cost.
    load(&server, json!({"model": "b"})).await;
    assert_eq!(server.post("/v1/completions", ask("b")).await.status, 200);
    assert_eq!(server.get("/v1/models/a").await.json()["state"], "absent");
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    assert_eq!(loader.loads.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unloaded_stays_away() {
    let server = server(&Arc::new(Slow::default()), Limits::default()).await;
    load(&server, json!({"model": "a"})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    assert_eq!(server.post("/admin/models/unload", json!({"model": "a"})).await.status, 202);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 404);
    assert_eq!(server.post("/admin/models/unload", json!({"model": "a"})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_is_not_wanted_any_more_leaves_nothing() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits { bytes: 100, ..Limits::default() }).await;
    load(&server, json!({"model": "a"})).await;
    assert_eq!(server.post("/admin/models/unload", json!({"model": "a"})).await.status, 202);
    tokio::time::sleep(LOADING * 2).await;
    assert_eq!(server.get("/admin/models").await.json()["models"], json!([]));
    // Its room is free again.
    load(&server, json!({"model": "b"})).await;
    assert_eq!(server.post("/v1/completions", ask("b")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_load_says_why() {
    let server = server(&Arc::new(Slow::default()), Limits::default()).await;
    load(&server, json!({"model": "broken"})).await;
    let reply = server.post("/v1/completions", ask("broken")).await;
    assert_eq!((reply.status, &reply.error()["type"]), (503, &json!("model_not_ready")));
    assert_eq!(reply.error()["details"]["reason"], "the file is broken");
    assert!(reply.header("retry-after").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_fits_is_refused_with_numbers() {
    let server = server(&Arc::new(Slow::default()), Limits { bytes: 99, ..Limits::default() }).await;
    let reply = server.post("/admin/models/load", json!({"model": "a"})).await;
    assert_eq!((reply.status, &reply.error()["type"]), (400, &json!("memory_impossible")));
    let details = &reply.error()["details"];
    assert_eq!((&details["need_bytes"], &details["limit_bytes"]), (&json!(100), &json!(99)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_one_limit_keeps_the_others_and_loads_nothing() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits::default()).await;
    load(&server, json!({"model": "a", "ctx_cap": 64})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    for body in [json!({"max_concurrent": 2}), json!({"reasoning_budget": 7})] {
        assert_eq!(server.ask("PATCH", "/admin/models/a", "", &body.to_string()).await.status, 200);
    }
    let last = loader.limits.lock().unwrap().last().cloned().unwrap();
    let expected = ModelOptions {
        ctx_cap: Some(64),
        max_concurrent: Some(2),
        reasoning_budget: Some(7),
        ..ModelOptions::default()
    };
    assert_eq!(last, expected);
    assert_eq!(loader.loads.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_model_goes_after_its_time() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits::default()).await;
    load(&server, json!({"model": "a", "ttl": 1})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.get("/v1/models/a").await.json()["state"], "absent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_finds_memory_taken_has_an_idle_model_go_and_is_begun_again() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits::default()).await;
    load(&server, json!({"model": "a"})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    loader.squeezed.store(1, Ordering::Relaxed);
    load(&server, json!({"model": "b"})).await;
    assert_eq!(server.post("/v1/completions", ask("b")).await.status, 200);
    assert_eq!(server.get("/v1/models/a").await.json()["state"], "absent");
    let metrics = server.get("/metrics").await.body;
    for line in
        ["lichen_models_unloaded_total{reason=\"room\"} 1", "lichen_model_loads_total{result=\"loaded\"} 2"]
    {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_finds_memory_taken_by_nobody_who_could_go_is_refused_with_numbers() {
    let loader = Arc::new(Slow::default());
    let server = server(&loader, Limits::default()).await;
    load(&server, json!({"model": "a", "pin": true})).await;
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
    loader.squeezed.store(1, Ordering::Relaxed);
    load(&server, json!({"model": "b"})).await;
    let reply = server.post("/v1/completions", ask("b")).await;
    assert_eq!((reply.status, &reply.error()["type"]), (503, &json!("memory_over_budget")));
    assert!(reply.header("retry-after").is_some());
    let details = &reply.error()["details"];
    assert_eq!((&details["need_bytes"], &details["available_bytes"]), (&json!(100), &json!(40)));
    assert_eq!(server.get("/v1/models/a").await.json()["state"], "ready", "it is pinned");
    assert_eq!(server.get("/v1/models/b").await.json()["state"], "absent", "it is not broken");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_is_unloaded_by_its_number() {
    let server = server(&Arc::new(Slow::default()), Limits::default()).await;
    load(&server, json!({"model": "a"})).await;
    load(&server, json!({"model": "a"})).await;
    tokio::time::sleep(LOADING * 3).await;
    let replicas = async || server.get("/admin/models").await.json()["models"][0]["instances"].take();
    let both = replicas().await;
    assert_eq!((&both[0]["state"], &both[1]["state"]), (&json!("ready"), &json!("ready")), "{both}");
    let unload = |model: &str| json!({"id": both[0]["id"], "model": model});
    let other = server.post("/admin/models/unload", unload("b")).await;
    assert_eq!((other.status, &other.error()["param"]), (400, &json!("id")));
    assert_eq!(server.post("/admin/models/unload", unload("a")).await.status, 202);
    tokio::time::sleep(LOADING).await;
    let left = replicas().await;
    assert_eq!((left.as_array().unwrap().len(), &left[0]["id"]), (1, &both[1]["id"]));
    assert_eq!(server.post("/v1/completions", ask("a")).await.status, 200);
}

/// The lines of a stream that wait for a model, and what came after them.
async fn streamed(server: &Server, path: &str, body: Value) -> (usize, String) {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.header("content-type").unwrap().starts_with("text/event-stream"), "{reply:?}");
    let waits = |line: &&str| *line == ": the model is being loaded";
    let others = reply.body.lines().filter(|line| !waits(line) && !line.is_empty());
    (reply.body.lines().filter(waits).count(), others.collect::<Vec<_>>().join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_for_its_model_hears_comments_and_then_the_answer_or_the_error_in_its_dialect() {
    let loader = Arc::new(Slow::default());
    let settings = Settings {
        keep_alive: LOADING / 6,
        loader: Some(loader.clone()),
        load_wait: Duration::from_secs(5),
        ..Settings::default()
    };
    let server = Server::with(&Scripted::new([]), settings, &[]).await;
    let chat = |model: &str| {
        let messages = json!([{"role": "user", "content": "a"}]);
        json!({"model": model, "messages": messages, "stream": true, "max_tokens": 9})
    };
    load(&server, json!({"model": "a"})).await;
    let (comments, answer) = streamed(&server, "/v1/chat/completions", chat("a")).await;
    assert!((2..=8).contains(&comments), "{comments} comments");
    assert!(answer.contains("\"hi\"") && answer.ends_with("data: [DONE]"), "{answer}");
    let (comments, answer) = streamed(&server, "/v1/chat/completions", chat("a")).await;
    assert!(comments == 0 && answer.contains("\"hi\""), "{answer}");
    load(&server, json!({"model": "broken", "name": "b"})).await;
    let (comments, answer) = streamed(&server, "/v1/chat/completions", chat("b")).await;
    assert!(comments >= 2 && answer.contains("the file is broken"), "{answer}");
    load(&server, json!({"model": "broken", "name": "c"})).await;
    let (_, answer) = streamed(&server, "/v1/messages", chat("c")).await;
    assert!(answer.starts_with("event: error\ndata: ") && answer.contains("the file is broken"), "{answer}");
    assert_eq!(server.post("/v1/chat/completions", chat("c")).await.status, 503, "nothing to wait for");
}
