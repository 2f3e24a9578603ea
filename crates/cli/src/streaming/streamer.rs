//! Reads weights ahead of the forward pass, and lets go of them behind it.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lichen_cpu::ReadObserver;
use lichen_format::Mapping;
use lichen_memory::{ReadAhead, ResidencyPlan, Step};

use super::Forecast;
use crate::output;

/// After so many passes the log says how fast they are.
const TOLD_PASSES: u64 = 32;

/// Bytes that memory has for the weights of one model now; `None` if nobody knows.
pub(crate) type Room = Box<dyn Fn() -> Option<u64> + Send>;

/// Keeps the weights of one model moving while it is computed. Its thread ends with it.
pub(crate) struct Streamer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the computing thread, the reading thread and metrics see.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) forecast: Option<Forecast>,
    mapping: Mapping,
    /// Each chunk with its place in the pass, in the order of the file.
    places: Vec<(Range<usize>, usize)>,
    state: Mutex<State>,
    moved: Condvar,
    pub(super) hot: AtomicU64,
    pub(super) read: AtomicU64,
}

struct State {
    ahead: ReadAhead,
    passes: Passes,
    /// A pass has begun, and what stays was not fitted into the room since.
    begun: bool,
    stopped: bool,
}

/// Passes that have ended, and how long they took without the time between them.
#[derive(Clone, Copy, Default)]
pub(super) struct Passes {
    pub(super) count: u64,
    pub(super) took: Duration,
    /// When the present one began and was last seen.
    current: Option<(Instant, Instant)>,
}

impl Passes {
    fn seen(&mut self, begins: bool) {
        let now = Instant::now();
        match self.current {
            Some((began, last)) if begins => {
                self.count += 1;
                self.took += last - began;
                self.current = Some((now, now));
            }
            Some((began, _)) => self.current = Some((began, now)),
            None => self.current = Some((now, now)),
        }
    }

    pub(super) fn per_second(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

impl Streamer {
    /// Starts to read for a model.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        name: &str,
        mapping: Mapping,
        plan: ResidencyPlan,
        forecast: Option<Forecast>,
        room: Room,
    ) -> io::Result<Self> {
        let chunks = plan.chunks().iter().enumerate();
        let mut places: Vec<_> = chunks.map(|(place, chunk)| (in_file(chunk), place)).collect();
        places.sort_by_key(|(bytes, _)| bytes.start);
        let hot = AtomicU64::new(plan.hot_bytes());
        let (ahead, passes) = (ReadAhead::new(plan), Passes::default());
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            forecast,
            mapping,
            places,
            state: Mutex::new(State { ahead, passes, begun: true, stopped: false }),
            moved: Condvar::new(),
            hot,
            read: AtomicU64::new(0),
        });
        let reading = shared.clone();
        let thread = std::thread::Builder::new().name("lichen-weights".to_owned()).spawn(move || {
            let _stop = StopOnDrop(&reading);
            reading.work(&room);
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Streamer {
    fn drop(&mut self) {
        drop(StopOnDrop(&self.shared));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Nobody waits for a thread that has ended.
struct StopOnDrop<'s>(&'s Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.moved.notify_all();
    }
}

impl ReadObserver for Streamer {
    fn scan(&self, bytes: &[u8]) {
        self.shared.scan(bytes);
    }

    fn row(&self, bytes: &[u8]) {
        if let Some(range) = self.shared.mapping.range_of(bytes) {
            // Otherwise the system reads much more around the row. If it can't, the row is still read.
            let _ = self.shared.mapping.prefetch(range);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn passes(&self) -> Passes {
        self.lock().passes
    }

    /// The place in the pass of the chunk that has this byte.
    fn place_of(&self, byte: usize) -> Option<usize> {
        let after = self.places.partition_point(|(bytes, _)| bytes.start <= byte);
        let (bytes, place) = self.places.get(after.checked_sub(1)?)?;
        bytes.contains(&byte).then_some(*place)
    }

    /// Moves on to these bytes, and waits for them.
    fn scan(&self, bytes: &[u8]) {
        let Some(range) = self.mapping.range_of(bytes).filter(|range| !range.is_empty()) else { return };
        let (Some(first), Some(last)) = (self.place_of(range.start), self.place_of(range.end - 1)) else {
            return;
        };
        let mut state = self.lock();
        let begins = state.ahead.turn_to(first..last + 1);
        state.begun |= begins;
        state.passes.seen(begins);
        if !begins && state.ahead.plan().streamed_bytes() == 0 && state.ahead.ready() {
            // All weights have room and are here: there is nothing for the reading thread to do.
            return;
        }
        self.moved.notify_all();
        drop(self.moved.wait_while(state, |state| !state.ahead.ready() && !state.stopped));
    }

    /// The reading thread.
    fn work(&self, room: &Room) {
        let mut told = false;
        let mut state = self.lock();
        while !state.stopped {
            if std::mem::take(&mut state.begun) {
                told = told || self.tell(state.passes);
                drop(state);
                let room = room();
                state = self.lock();
                if let Some(room) = room {
                    state.ahead.resize(room);
                    self.hot.store(state.ahead.plan().hot_bytes(), Ordering::Relaxed);
                }
            }
            let Some(step) = state.ahead.step() else {
                state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (Step::Release(chunk) | Step::Ask(chunk) | Step::Await(chunk)) = step;
            let (bytes, stays) =
                (in_file(&state.ahead.plan().chunks()[chunk]), state.ahead.plan().stays(chunk));
            drop(state);
            if matches!(step, Step::Ask(_)) && !stays {
                self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            // What can't be read ahead is read when it is touched, and what can't be let go of is left to the system.
            let _ = match step {
                Step::Release(_) => self.mapping.release(bytes),
                Step::Ask(_) => self.mapping.prefetch(bytes),
                Step::Await(_) => self.mapping.populate(bytes),
            };
            state = self.lock();
            if matches!(step, Step::Await(_)) {
                state.ahead.arrived(chunk);
                self.moved.notify_all();
            }
        }
    }

    /// Says once how fast it is, after some passes. Whether it has.
    fn tell(&self, passes: Passes) -> bool {
        if passes.count < TOLD_PASSES {
            return false;
        }
        let predicted = self.forecast.map(|forecast| forecast.tokens_per_second());
        output::note(format!(
            "{}: {:.1} passes a second with {} read for each{}",
            self.name,
            passes.per_second(),
            output::bytes(self.read.load(Ordering::Relaxed) / passes.count),
            predicted.map_or_else(String::new, |predicted| format!("; predicted were {predicted:.1}")),
        ));
        true
    }
}

fn in_file(chunk: &Range<u64>) -> Range<usize> {
    chunk.start as usize..chunk.end as usize
}
