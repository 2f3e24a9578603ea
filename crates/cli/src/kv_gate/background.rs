//! Measuring while a model is idle: on one thread, last in the queue for processors, and only while memory isn't short.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context, Result};
use lichen_engine::{Engine, KvGate};
use lichen_generate::Generate;

use super::Measurement;
use crate::memory::Memory;
use crate::output;

/// Between two looks whether to begin.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks whether to go on.
const PAUSE: Duration = Duration::from_millis(20);

/// Files that are being measured: replicas wait for the first of them.
static BEGUN: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The right to measure a file, until it is dropped.
struct Begun(PathBuf);

impl Begun {
    fn files() -> MutexGuard<'static, BTreeSet<PathBuf>> {
        // Entries are put in and taken out whole.
        BEGUN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new(file: &Path) -> Option<Self> {
        Self::files().insert(file.to_owned()).then(|| Self(file.to_owned()))
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        Self::files().remove(&self.0);
    }
}

/// A model whose measurement waits for a quiet time.
struct Quiet {
    measurement: Measurement,
    name: String,
    memory: Memory,
    /// Nothing is left to do when the model is unloaded.
    engine: Weak<Engine>,
}

impl Measurement {
    /// Measures while the engine has nothing to do, and gives it the outcome.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn run_when_idle(self, name: &str, memory: &Memory, engine: &Arc<Engine>) -> Result<()> {
        let quiet = Quiet {
            measurement: self,
            name: name.to_owned(),
            memory: memory.clone(),
            engine: Arc::downgrade(engine),
        };
        let thread = std::thread::Builder::new().name("lichen-kv-gate".to_owned());
        thread
            .spawn(move || quiet.run())
            .context("the thread that measures precisions could not be started")?;
        Ok(())
    }
}

impl Quiet {
    fn run(mut self) {
        give_way();
        let outcome = loop {
            std::thread::sleep(PATIENCE);
            let Some(quiet) = self.is_quiet() else { return };
            if let Some(known) = self.measurement.recall() {
                break Ok(known);
            }
            if quiet && let Some(outcome) = self.measure().transpose() {
                break outcome;
            }
        };
        match outcome {
            Ok(gate) => self.apply(gate),
            Err(error) => {
                let name = &self.name;
                output::note(format_args!("the precisions that {name} bears can't be measured: {error:#}"));
            }
        }
    }

    /// Whether nothing runs and memory isn't short; `None` if the model is gone.
    fn is_quiet(&self) -> Option<bool> {
        let engine = self.engine.upgrade()?;
        Some(is_idle(&engine) && self.memory.is_ample())
    }

    /// `None` if it can't be now.
    fn measure(&mut self) -> Result<Option<KvGate>> {
        let Self { measurement, memory, engine, .. } = self;
        let (Some(_begun), Ok(_room)) =
            (Begun::new(&measurement.file), memory.reserve_probe(measurement.bytes))
        else {
            return Ok(None);
        };
        // Requests make it wait. Short memory ends it: it begins again another time.
        measurement.run_while(&mut || {
            loop {
                let Some(engine) = engine.upgrade() else { return false };
                if !memory.is_ample() {
                    return false;
                }
                if is_idle(&engine) {
                    return true;
                }
                drop(engine);
                std::thread::sleep(PAUSE);
            }
        })
    }

    /// Promises get cheaper with what the model turns out to bear. Should it not even bear 8 bits, requests that run
    /// may have to pause for one another; they still come to their end.
    fn apply(&self, gate: KvGate) {
        let Some(engine) = self.engine.upgrade() else { return };
        super::warn(&self.name, &gate, engine.config().kv_precision);
        self.memory.note_gate(&self.name, &gate);
        engine.reconfigure(|config| config.kv_gate = gate);
    }
}

/// Whether an engine has nothing to do.
fn is_idle(engine: &Engine) -> bool {
    let stats = engine.stats();
    stats.running + stats.waiting + stats.paused == 0
}

/// Lets every other thread go first.
fn give_way() {
    // On Linux the priority is that of the calling thread. Without it, a measurement takes one processor for a while.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(19);
}
