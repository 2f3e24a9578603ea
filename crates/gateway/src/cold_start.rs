//! Getting a model loaded for requests that wait for it: one job a model, however many ask, and it outlives them. Pure.
//!
//! The caller performs each [`Step`] and says what came of it; that gives the next one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lichen_contract::Ensured;

use crate::placement::Verdict;

/// Between two looks at a load that runs.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks for a node, where there is none.
const LOOK_FOR_NODE: Duration = Duration::from_millis(500);
/// How often a node is looked for in vain: a restart is waited for, an outage is not.
const LOOKS_FOR_NODE: u32 = 4;
/// A load may take this long, and longer by [`LONGEST_LOAD_PER_GIB`].
const LONGEST_LOAD: Duration = Duration::from_secs(300);
/// For each GiB that is loaded.
const LONGEST_LOAD_PER_GIB: Duration = Duration::from_secs(20);
/// Seconds after which a failed model may be asked for again, where the node doesn't say.
const FAILED_RETRY: u32 = 10;

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Decide where to load, without these nodes, and report with [`ColdStart::placed`].
    Place {
        /// Nodes that have refused for good.
        excluded: Vec<Arc<str>>,
    },
    /// Ask this node to have the model, and report with [`ColdStart::answered`].
    Ask {
        /// The node.
        node: Arc<str>,
        /// What may go for it.
        evict: Vec<String>,
    },
    /// Wait, then call [`ColdStart::woke`].
    Wait(Duration),
    /// The job is over.
    End(Outcome),
}

/// How a cold start ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// This node has it ready.
    Ready(Arc<str>),
    /// Larger than every node.
    NeverFits {
        /// Bytes needed.
        needs: u64,
        /// Bytes of the largest node.
        has: u64,
    },
    /// Models that don't give way hold the room.
    PinnedOut {
        /// Their names.
        by: Vec<String>,
    },
    /// It could not be loaded.
    Failed {
        /// What happened.
        cause: String,
        /// Seconds after which asking again makes sense.
        retry_after: u32,
    },
    /// No node that may hold it is up.
    NoNode,
    /// Nobody waits for it any more, and no load has begun.
    Abandoned,
}

/// How far a cold start has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// `queued` until a node has taken it, then `loading`.
    pub state: &'static str,
    /// The share done, 0 to 1.
    pub share: f32,
    /// Seconds until it will be ready, if the node can tell.
    pub eta_s: Option<u32>,
}

impl Progress {
    /// Of a job that has just begun.
    pub const QUEUED: Self = Self { state: "queued", share: 0.0, eta_s: None };
}

/// One job.
#[derive(Debug, Clone)]
pub struct ColdStart {
    bytes: u64,
    excluded: Vec<Arc<str>>,
    /// The node that loads, and since when.
    loading: Option<(Arc<str>, Duration)>,
    failure: Option<Outcome>,
    /// How often in a row no node was up.
    in_vain: u32,
    progress: Progress,
}

impl ColdStart {
    /// A job for a model of so many bytes, and its first step.
    pub fn new(bytes: u64) -> (Self, Step) {
        let job = Self {
            bytes,
            excluded: Vec::new(),
            loading: None,
            failure: None,
            in_vain: 0,
            progress: Progress::QUEUED,
        };
        (job, Step::Place { excluded: Vec::new() })
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// It was decided where to load.
    pub fn placed(&mut self, verdict: Verdict) -> Step {
        self.in_vain = if verdict == Verdict::NoNode { self.in_vain + 1 } else { 0 };
        match verdict {
            Verdict::Load { node, evict } => Step::Ask { node, evict },
            Verdict::Busy { retry_after } => Step::Wait(Duration::from_secs(retry_after.into())),
            // What a node has said about this model weighs more than that no other node is there.
            _ if self.failure.is_some() => self.end(),
            Verdict::NeverFits { needs, has } => Step::End(Outcome::NeverFits { needs, has }),
            Verdict::PinnedOut { by } => Step::End(Outcome::PinnedOut { by }),
            Verdict::NoNode if self.in_vain > LOOKS_FOR_NODE => Step::End(Outcome::NoNode),
            Verdict::NoNode => Step::Wait(LOOK_FOR_NODE),
        }
    }

    fn end(&mut self) -> Step {
        Step::End(self.failure.take().unwrap_or(Outcome::Abandoned))
    }

    /// A node has answered, or could not be reached (`None`).
    pub fn answered(&mut self, now: Duration, node: &Arc<str>, answer: Option<Ensured>) -> Step {
        match answer {
            Some(Ensured::Ready) => return Step::End(Outcome::Ready(node.clone())),
            Some(Ensured::Loading { progress, eta_s }) => return self.loads(now, node, progress, eta_s),
            Some(Ensured::Busy { retry_after_s }) => {
                self.lost();
                return Step::Wait(Duration::from_secs(retry_after_s.max(1).into()));
            }
            Some(Ensured::NeverFits { needs_bytes: needs, has_bytes: has }) => {
                self.refused(node, Outcome::NeverFits { needs, has });
            }
            Some(Ensured::PinnedOut { by }) => self.refused(node, Outcome::PinnedOut { by }),
            Some(Ensured::Failed { cause, retry_after_s }) => {
                let retry_after = retry_after_s.unwrap_or(FAILED_RETRY);
                self.refused(node, Outcome::Failed { cause: format!("{node}: {cause}"), retry_after });
            }
            // It counts as down now; if it comes back it may be asked again.
            None => self.lost(),
        }
        Step::Place { excluded: self.excluded.clone() }
    }

    fn loads(&mut self, now: Duration, node: &Arc<str>, share: f32, eta_s: Option<u32>) -> Step {
        let since = match &self.loading {
            Some((loading, since)) if loading == node => *since,
            _ => now,
        };
        self.loading = Some((node.clone(), since));
        self.progress = Progress { state: "loading", share, eta_s };
        let longest =
            LONGEST_LOAD + LONGEST_LOAD_PER_GIB * u32::try_from(self.bytes >> 30).unwrap_or(u32::MAX);
        if now.saturating_sub(since) < longest {
            return Step::Wait(LOOK);
        }
        let cause = format!("{node}: the load has not ended within {} s", longest.as_secs());
        Step::End(Outcome::Failed { cause, retry_after: FAILED_RETRY })
    }

    fn lost(&mut self) {
        self.loading = None;
        self.progress = Progress::QUEUED;
    }

    /// The node will not load it. A failure is remembered before a lack of room, since it is the rarer news.
    fn refused(&mut self, node: &Arc<str>, why: Outcome) {
        self.lost();
        self.excluded.push(node.clone());
        if !matches!(self.failure, Some(Outcome::Failed { .. })) {
            self.failure = Some(why);
        }
    }

    /// A wait is over. A load that runs is looked after whether or not anybody waits for it.
    pub fn woke(&mut self, waiters: usize) -> Step {
        match &self.loading {
            Some((node, _)) => Step::Ask { node: node.clone(), evict: Vec::new() },
            None if waiters == 0 => self.end(),
            None => Step::Place { excluded: self.excluded.clone() },
        }
    }
}

/// Which models have a job, and how many requests wait for each.
#[derive(Debug, Clone, Default)]
pub struct Waiters {
    jobs: BTreeMap<String, usize>,
}

impl Waiters {
    /// Waits for a model. True if a job has to be started: nobody waited and none runs.
    pub fn join(&mut self, model: &str) -> bool {
        if let Some(waiters) = self.jobs.get_mut(model) {
            *waiters += 1;
            return false;
        }
        self.jobs.insert(model.to_owned(), 1);
        true
    }

    /// Waits no longer. The job goes on.
    pub fn leave(&mut self, model: &str) {
        if let Some(waiters) = self.jobs.get_mut(model) {
            *waiters = waiters.saturating_sub(1);
        }
    }

    /// Requests that wait for a model.
    pub fn count(&self, model: &str) -> usize {
        self.jobs.get(model).copied().unwrap_or(0)
    }

    /// The job is over. Who comes now starts another.
    pub fn over(&mut self, model: &str) {
        self.jobs.remove(model);
    }
}
