//! One team of threads per process and size: hands numbered tasks to threads that stay awake between them.
//!
//! A model step is some hundred short parallel regions, so workers spin for a while before they sleep. Which thread
//! does which task is left to chance; results must not depend on it. A worker takes part only if it comes while there
//! is work: when the system gives its core to somebody else, the others don't wait for it to come back.

#![expect(
    unsafe_code,
    reason = "lends a closure and disjoint parts of a slice to threads that outlive the call"
)]

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{JoinHandle, Thread};

/// How often a worker looks for work before it sleeps: between a tenth of a millisecond and one.
const SPINS: usize = 20_000;

type Work = dyn Fn(usize, usize) + Sync;

/// A lent closure: valid until the region that lent it has ended.
#[derive(Clone, Copy)]
struct Lent(*const Work);

// SAFETY: the closure is `Sync`, and `Team::run` keeps it alive until every worker that joined has left.
unsafe impl Send for Lent {}

#[derive(Default)]
struct Region {
    work: Option<Lent>,
    tasks: usize,
}

struct Shared {
    /// See [`State`].
    state: AtomicU64,
    region: Mutex<Region>,
    next_task: AtomicUsize,
    asleep: Vec<AtomicBool>,
    failed: AtomicBool,
    stop: AtomicBool,
}

/// The region that runs now, in one word: its number in the upper half, whether workers may still join it, and how
/// many have joined and not left.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 31;
    const NUMBER: u64 = 1 << 32;

    fn number(self) -> u64 {
        self.0 / Self::NUMBER
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn joined(self) -> u64 {
        self.0 % Self::OPEN
    }

    /// The next region, open, with nobody in it.
    fn next(self) -> Self {
        Self((self.number() + 1).wrapping_mul(Self::NUMBER) | Self::OPEN)
    }
}

/// A team of threads, the caller being one of them.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<(Thread, JoinHandle<()>)>,
    /// Held during a region: two callers take turns.
    turn: Mutex<()>,
}

impl Team {
    /// The process's team of this many threads (at least one), started if there is none.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn of(threads: usize) -> std::io::Result<Arc<Self>> {
        static TEAMS: OnceLock<Mutex<HashMap<usize, Weak<Team>>>> = OnceLock::new();
        let threads = threads.max(1);
        let mut teams = TEAMS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(team) = teams.get(&threads).and_then(Weak::upgrade) {
            return Ok(team);
        }
        let team = Arc::new(Self::start(threads, Shared::serve)?);
        teams.insert(threads, Arc::downgrade(&team));
        Ok(team)
    }

    fn start(threads: usize, worker: fn(&Shared, usize)) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            region: Mutex::default(),
            next_task: AtomicUsize::new(0),
            asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            failed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut team = Self { shared, workers: Vec::new(), turn: Mutex::default() };
        for index in 1..threads {
            let shared = team.shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("lichen-compute-{index}"))
                .spawn(move || worker(&shared, index))?;
            team.workers.push((handle.thread().clone(), handle));
        }
        Ok(team)
    }

    /// Threads of the team, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work(task, thread)` once for each task, on all threads.
    ///
    /// # Panics
    /// If `work` panics on any thread.
    pub fn run(&self, tasks: usize, work: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| work(task, 0));
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let work: &(dyn Fn(usize, usize) + Sync) = &work;
        // SAFETY: only the lifetime changes; `Finish` keeps this frame until no worker uses the closure any more.
        let lent = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), &'static Work>(work) };
        self.begin(Lent(lent), tasks);
        let finish = Finish(self);
        self.shared.take_tasks(tasks, work, 0);
        drop(finish);
        assert!(!self.shared.failed.swap(false, Ordering::AcqRel), "a compute thread panicked");
    }

    fn begin(&self, work: Lent, tasks: usize) {
        let shared = &self.shared;
        *shared.region.lock().unwrap_or_else(PoisonError::into_inner) = Region { work: Some(work), tasks };
        shared.next_task.store(0, Ordering::Relaxed);
        // Nobody joins a closed region, and the last one is closed and left: no other thread writes this now.
        let state = State(shared.state.load(Ordering::Relaxed));
        shared.state.store(state.next().0, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        for ((thread, _), asleep) in self.workers.iter().zip(&self.shared.asleep) {
            if asleep.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
    }

    /// Calls `work(row, part)` for each part of `width` values of `data`.
    pub fn rows<T: Send>(&self, data: &mut [T], width: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        let rows = data.len() / width.max(1);
        let parts = Parts::new(data);
        self.run(rows, |row, _| {
            // SAFETY: each row is one task, so no two threads have the same part.
            work(row, unsafe { parts.slice(row * width, width) });
        });
    }
}

/// Closes the region and waits for those who joined it, even if the caller's own task panics.
struct Finish<'t>(&'t Team);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        let state = &self.0.shared.state;
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut spins = 0usize;
        while State(state.load(Ordering::Acquire)).joined() > 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for (thread, handle) in self.workers.drain(..) {
            thread.unpark();
            // The panic of a worker has been reported by `run`.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn serve(&self, index: usize) {
        let mut last = 0;
        while let Some(number) = self.join(index, last) {
            last = number;
            let (work, tasks) = {
                let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
                (region.work, region.tasks)
            };
            if let Some(Lent(work)) = work {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    // SAFETY: the lender waits until everybody who joined has left, and this thread leaves below.
                    self.take_tasks(tasks, unsafe { &*work }, index);
                }));
                if outcome.is_err() {
                    self.failed.store(true, Ordering::Release);
                }
            }
            self.state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn take_tasks(&self, tasks: usize, work: &(dyn Fn(usize, usize) + Sync), thread: usize) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            work(task, thread);
        }
    }

    /// Waits for an open region other than `last` and joins it; returns its number, or `None` when the team ends.
    fn join(&self, index: usize, last: u64) -> Option<u64> {
        let mut spins = 0usize;
        loop {
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            let state = State(self.state.load(Ordering::SeqCst));
            if state.is_open() && state.number() != last {
                let joined = state.0 + 1;
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                if self.state.compare_exchange_weak(state.0, joined, success, failure).is_ok() {
                    return Some(state.number());
                }
                continue;
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let asleep = &self.asleep[index - 1];
            asleep.store(true, Ordering::SeqCst);
            // Whoever changed one of these before may not have seen that this thread sleeps.
            if self.state.load(Ordering::SeqCst) == state.0 && !self.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
            spins = 0;
        }
    }
}

/// A slice of which threads write disjoint parts.
pub(crate) struct Parts<'d, T> {
    data: *mut T,
    len: usize,
    owner: PhantomData<&'d mut [T]>,
}

// SAFETY: parts are given out by an unsafe method whose caller vouches that they are disjoint, so that each value is
// seen by one thread at a time.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'d, T> Parts<'d, T> {
    pub(crate) fn new(data: &'d mut [T]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), owner: PhantomData }
    }

    /// `len` values from `start` on.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[expect(clippy::mut_from_ref, reason = "that is what it is for; the caller keeps parts apart")]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: within the slice, which is borrowed mutably for our lifetime; disjoint by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_is_done_once_on_any_number_of_threads() {
        for threads in 1..5 {
            let team = Team::of(threads).unwrap();
            assert_eq!(team.threads(), threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let mut done = vec![0.0; tasks];
                for _ in 0..20 {
                    team.rows(&mut done, 1, |row, part| part[0] += row as f32);
                }
                assert!(done.iter().enumerate().all(|(row, &sum)| sum == 20.0 * row as f32));
            }
        }
    }

    #[test]
    fn a_worker_that_never_comes_is_not_waited_for() {
        let team = Team::start(2, |_, _| {
            loop {
                std::thread::park();
            }
        });
        let team = std::mem::ManuallyDrop::new(team.unwrap());
        let mut done = vec![0.0; 100];
        for _ in 0..20 {
            team.rows(&mut done, 1, |_, part| part[0] += 1.0);
        }
        assert_eq!(done, [20.0; 100]);
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::of(3).unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            team.run(100, |task, _| assert!(task != 50, "scripted"));
        }));
        assert!(outcome.is_err());
        let mut done = vec![0.0; 10];
        team.rows(&mut done, 1, |_, part| part[0] = 1.0);
        assert_eq!(done, [1.0; 10]);
    }
}
