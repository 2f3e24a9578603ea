//! Performs cold starts: one task a model, which goes on whatever becomes of the requests that wait for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lichen_contract::LoadRequest;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::Gateway;
use crate::cold_start::{ColdStart, Outcome, Progress, Step, Waiters};
use crate::gateway::Wanted;
use crate::placement::place;

/// How far a job is.
#[derive(Debug, Clone)]
enum News {
    Running(Progress),
    Over(Outcome),
}

#[derive(Default)]
struct Jobs {
    waiters: Waiters,
    news: BTreeMap<String, watch::Receiver<News>>,
}

/// The jobs that run.
#[derive(Default)]
pub(crate) struct Loads(Mutex<Jobs>);

impl Loads {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiters(&self, model: &str) -> usize {
        self.lock().waiters.count(model)
    }

    /// The progress of every job, by model.
    pub(crate) fn progress(&self) -> BTreeMap<String, Progress> {
        let running = |(model, news): (&String, &watch::Receiver<News>)| match &*news.borrow() {
            News::Running(progress) => Some((model.clone(), *progress)),
            News::Over(_) => None,
        };
        self.lock().news.iter().filter_map(running).collect()
    }
}

/// Why a wait has ended without the model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NotLoaded {
    /// The job has ended so.
    Ended(Outcome),
    /// The time was over; the job goes on.
    WaitedOut(Progress),
}

/// A request that waits. Dropped, it waits no longer.
struct Waiting<'a> {
    gateway: &'a Gateway,
    model: &'a str,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gateway.0.loads.lock().waiters.leave(self.model);
    }
}

/// Waits until a node has the model ready, and starts the load if none runs. `loading` is told once a node has taken the
/// model.
pub(crate) async fn wait_for(
    gateway: &Gateway,
    wanted: &Wanted,
    deadline: Instant,
    loading: &watch::Sender<bool>,
) -> Result<(), NotLoaded> {
    let model = wanted.model.name();
    let mut news = join(gateway, wanted);
    let _waiting = Waiting { gateway, model };
    loop {
        let last = match &*news.borrow_and_update() {
            News::Over(Outcome::Ready(_)) => return Ok(()),
            News::Over(outcome) => return Err(NotLoaded::Ended(outcome.clone())),
            News::Running(progress) => *progress,
        };
        if last.state == "loading" {
            loading.send_if_modified(|told| !std::mem::replace(told, true));
        }
        match timeout_at(deadline, news.changed()).await {
            Ok(Ok(())) => {}
            // The task is gone without a word only if it has panicked.
            Ok(Err(_)) => return Err(NotLoaded::Ended(Outcome::Abandoned)),
            Err(_) => return Err(NotLoaded::WaitedOut(last)),
        }
    }
}

/// Joins the job of a model, or starts it.
fn join(gateway: &Gateway, wanted: &Wanted) -> watch::Receiver<News> {
    let model = wanted.model.name();
    let mut jobs = gateway.0.loads.lock();
    if !jobs.waiters.join(model)
        && let Some(news) = jobs.news.get(model)
    {
        return news.clone();
    }
    let (tell, news) = watch::channel(News::Running(Progress::QUEUED));
    jobs.news.insert(model.to_owned(), news.clone());
    tokio::spawn(run(gateway.clone(), wanted.clone(), tell));
    news
}

/// Performs the steps of one job.
async fn run(gateway: Gateway, wanted: Wanted, tell: watch::Sender<News>) {
    let model = &wanted.model;
    let strategy = gateway.0.config.eviction.strategy;
    let (mut job, mut step) = ColdStart::new(model.bytes());
    let outcome = loop {
        step = match step {
            Step::Place { excluded } => {
                let verdict = gateway.members(|now, members| place(now, members, model, strategy, &excluded));
                job.placed(verdict)
            }
            Step::Ask { node, evict } => {
                let request = request(&wanted, evict);
                let answer = gateway.fleet().ensure(&gateway, &node, &request).await;
                job.answered(gateway.now(), &node, answer)
            }
            Step::Wait(time) => {
                tokio::time::sleep(time).await;
                job.woke(gateway.0.loads.waiters(model.name()))
            }
            Step::End(outcome) => break outcome,
        };
        tell.send_replace(News::Running(job.progress()));
    };
    if let Outcome::Ready(node) = &outcome {
        // So that who waits finds the model where it is.
        gateway.fleet().refresh(&gateway, node).await;
    }
    let mut jobs = gateway.0.loads.lock();
    jobs.waiters.over(model.name());
    jobs.news.remove(model.name());
    drop(jobs);
    tell.send_replace(News::Over(outcome));
}

fn request(wanted: &Wanted, evict: Vec<String>) -> LoadRequest {
    let model = &wanted.model;
    LoadRequest {
        model_id: model.reference.clone().unwrap_or_else(|| model.name().to_owned()),
        name: Some(model.name().to_owned()),
        quant: model.quant.clone(),
        tensor_parallel: (model.min_devices > 1).then_some(model.min_devices),
        ctx_cap: model.ctx_cap,
        pin: wanted.listed && !model.pinned_on.is_empty(),
        priority: model.residency_priority,
        evict,
        ..LoadRequest::default()
    }
}

/// Seconds after which asking for a model that is on its way makes sense.
pub(crate) fn retry_after(progress: Progress) -> u64 {
    const UNKNOWN: u64 = 10;
    progress.eta_s.map_or(UNKNOWN, |eta| u64::from(eta).max(1))
}

/// How long a request may wait, from now.
pub(crate) fn deadline(budget: Duration) -> Instant {
    Instant::now() + budget
}

/// Shared by requests and their streams.
pub(crate) type Loading = Arc<watch::Sender<bool>>;
