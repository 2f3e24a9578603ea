//! The memory of this process: who watches it, what a model is placed with, and what people are told of it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use anyhow::{Context, Result, bail};
use lichen_engine::{Enlisted, Governor, GovernorConfig, KvGate, MemoryReport, Placement, Reliever};
use lichen_memory::{
    Class, Level, LoadVerdict, ModelBytes, OverBudget, Owner, Reservation, Residency, Rung, Standing,
    admit_load, load_room, longest_context, probe::Linux, weight_room,
};
use lichen_server::{IdleModels, MemoryView};
use serde_json::{Map, Value, json};

use crate::kv_gate;
use crate::spill::SpillFolder;
use crate::streaming::Streams;

/// What the process takes beside models: code that has run, threads, connections, buffers (`bench/estimate.py`).
pub(crate) const PROCESS_BYTES: u64 = 14 << 20;

/// A model for which there is no room now, though there could be.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct NoRoom {
    /// Bytes that it needs.
    pub(crate) need: u64,
    /// Bytes that it could have.
    pub(crate) available: u64,
    message: String,
}

/// Memory as this process shares it out.
#[derive(Clone)]
pub(crate) struct Memory {
    governor: Governor,
    budget: Option<u64>,
    /// Weights may be larger than what there is.
    pub(crate) overcommit_weights: bool,
    /// Weights by file: replicas map the same pages.
    mapped: Arc<Mutex<BTreeMap<PathBuf, Weak<Reservation>>>>,
    /// The precisions that models bear, by name.
    gates: Arc<Mutex<BTreeMap<String, KvGate>>>,
    /// Where state goes that there is no room for.
    spill: Option<Arc<SpillFolder>>,
    /// Models whose weights are read again and again.
    pub(crate) streams: Streams,
}

impl Memory {
    /// Begins to watch.
    ///
    /// # Errors
    /// Nobody knows how much memory there is, or it isn't enough for the process itself.
    pub(crate) fn watch(budget: Option<u64>, overcommit_weights: bool) -> Result<(Self, Reservation)> {
        let config = GovernorConfig { budget, ..GovernorConfig::default() };
        let governor = Governor::start(Box::new(Linux::new("/")), config)
            .context("memory can't be watched; give --ram-budget")?;
        let process = governor.ledger().reserve(&Owner::new("process", 0), Class::Fixed, PROCESS_BYTES)?;
        let memory = Self {
            governor,
            budget,
            overcommit_weights,
            mapped: Arc::default(),
            gates: Arc::default(),
            streams: Streams::default(),
            spill: None,
        };
        Ok((memory, process))
    }

    /// Puts state that there is no room for into this folder.
    pub(crate) fn with_spill(self, spill: Option<Arc<SpillFolder>>) -> Self {
        Self { spill, ..self }
    }

    /// Where state goes that there is no room for.
    pub(crate) fn spill(&self) -> Option<&Arc<SpillFolder>> {
        self.spill.as_ref()
    }

    /// Has idle models go when memory is short, until what is returned is dropped.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn relieve_with(&self, models: IdleModels) -> Result<Enlisted> {
        let enlisted = self.governor.enlist(Rung::UnloadIdle, Arc::new(Unloader(models)));
        enlisted.context("the thread that unloads idle models could not be started")
    }

    /// Bytes that models may have.
    pub(crate) fn for_models(&self) -> u64 {
        let report = self.governor.report();
        report.budget.limit.saturating_sub(report.budget.margin).saturating_sub(PROCESS_BYTES)
    }

    /// Reserves bytes for a measurement.
    ///
    /// # Errors
    /// There is no room.
    pub(crate) fn reserve_probe(&self, bytes: u64) -> Result<Reservation, OverBudget> {
        self.governor.ledger().reserve(&Owner::new("probe", 0), Class::Scratch, bytes)
    }

    /// Whether memory is not short.
    pub(crate) fn is_ample(&self) -> bool {
        self.governor.level() == Level::Normal
    }

    /// Tells people which precisions a model bears.
    pub(crate) fn note_gate(&self, name: &str, gate: &KvGate) {
        self.gates().insert(name.to_owned(), gate.clone());
    }

    fn gates(&self) -> MutexGuard<'_, BTreeMap<String, KvGate>> {
        // Entries are put in whole.
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that memory has for this process, and why not more.
    pub(crate) fn limit(&self) -> (u64, String) {
        let limit = self.governor.ledger().snapshot().limit;
        (limit.bytes, limit.source.to_string())
    }

    /// The least limit of the control groups that this process is in.
    pub(crate) fn group_limit(&self) -> Option<u64> {
        self.governor.report().sample.groups.iter().map(|group| group.limit).min()
    }

    /// Bytes kept free of everything that can be refused.
    pub(crate) fn margin(&self) -> u64 {
        self.governor.ledger().snapshot().limit.margin
    }

    /// Whether the weights of loaded models are all in memory.
    pub(crate) fn residency(&self) -> Residency {
        if self.overcommit_weights { Residency::Streamed } else { Residency::Resident }
    }

    /// What admission of a load needs to know, and what the loaded models need beside their contexts.
    fn standing(&self) -> (Standing, u64) {
        let MemoryReport { budget, account, level, .. } = self.governor.report();
        let permanent = account.class(Class::Fixed).reserved + account.class(Class::Emergency).reserved;
        let loaded = account.stationary() - permanent;
        let (limit, ceiling, margin) = (budget.limit, budget.ceiling, budget.margin);
        let committed = account.promised();
        (Standing { limit, ceiling, margin, committed, permanent, level }, loaded)
    }

    /// Bytes that a model may have now. Contexts of several models aren't in memory at the same time unless there is
    /// room: each of them fits alone.
    pub(crate) fn room(&self) -> u64 {
        let (standing, loaded) = self.standing();
        load_room(loaded, &standing)
    }

    /// Whether a model is only taken because its weights may be larger than memory.
    pub(crate) fn must_stream(&self, model: &ModelBytes) -> bool {
        self.overcommit_weights && model.with_context(Residency::Resident, model.context_cap) > self.room()
    }

    /// Bytes that memory has for the weights of a model now, whether they are in it or not: of several models each has
    /// a share by its weights. `None` if nobody knows.
    pub(crate) fn weight_room(&self, model: &ModelBytes) -> Option<u64> {
        let MemoryReport { sample, account, .. } = self.governor.report();
        let room = weight_room(&sample, self.budget, &account).ok()?;
        let own = ModelBytes { weights_anonymous: 0, ..*model }.weights(self.residency());
        let all = account.class(Class::WeightsMapped).reserved.max(own).max(1);
        u64::try_from(u128::from(room) * u128::from(own) / u128::from(all)).ok()
    }

    /// Tokens of the longest context that a model in this file could have now.
    pub(crate) fn longest_context(&self, file: &Path, model: &ModelBytes) -> usize {
        let (model, room) = (self.beside(file, model), self.room());
        let others = model.stationary(self.residency()).saturating_add(self.governor.largest_context());
        let tokens = if others > room { 0 } else { longest_context(&model, self.residency(), room) };
        usize::try_from(tokens).unwrap_or(usize::MAX)
    }

    fn mapped(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Weak<Reservation>>> {
        // Entries are put in whole.
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weights of a file that a loaded model has mapped already.
    fn shared(&self, file: &Path) -> Option<Arc<Reservation>> {
        self.mapped().get(&identity(file)).and_then(Weak::upgrade)
    }

    /// What a model needs beside what is mapped already.
    fn beside(&self, file: &Path, model: &ModelBytes) -> ModelBytes {
        match self.shared(file) {
            Some(_) => ModelBytes { weights_mapped: 0, ..*model },
            None => *model,
        }
    }

    /// Reserves what a model needs, before any of it is touched. Replicas of one file share its weights.
    ///
    /// # Errors
    /// It doesn't fit, with the numbers and the ways out.
    pub(crate) fn place(&self, name: &str, file: &Path, model: &ModelBytes) -> Result<Placement> {
        let (asked, residency) = (self.beside(file, model), self.residency());
        let (standing, loaded) = self.standing();
        let context = asked.turn_bytes(asked.context_cap, 0, 0);
        let floors = loaded + self.governor.largest_context().saturating_sub(context);
        match admit_load(&asked, residency, asked.context_cap, (floors, 0), &standing) {
            LoadVerdict::Admit { .. } => {}
            LoadVerdict::Queue { need, available, .. } => {
                let message = self.over_budget(name, file, &asked, (need, available));
                return Err(NoRoom { need, available, message }.into());
            }
            LoadVerdict::Refuse(refusal) => {
                let numbers = (refusal.need_bytes, refusal.available_bytes.min(self.room()));
                bail!(self.over_budget(name, file, &asked, numbers))
            }
        }
        let owner = Owner::new(name, 0);
        let reserve = |class, bytes| {
            let reserved = self.governor.ledger().reserve(&owner, class, bytes).map(Arc::new);
            // Somebody else was quicker.
            reserved.map_err(|over| {
                let OverBudget { need, available, .. } = over;
                NoRoom { need, available, message: over.to_string() }
            })
        };
        let weights = match self.shared(file) {
            Some(weights) => weights,
            None => {
                let resident = ModelBytes { weights_anonymous: 0, ..asked }.weights(residency);
                let weights = reserve(Class::WeightsMapped, resident)?;
                self.mapped().insert(identity(file), Arc::downgrade(&weights));
                weights
            }
        };
        let anonymous = asked.weights_anonymous + asked.tokenizer;
        let anonymous = reserve(Class::WeightsAnonymous, anonymous)?;
        let reserved = vec![weights, anonymous, reserve(Class::Scratch, asked.scratch)?];
        Ok(Placement { governor: self.governor.clone(), owner, model: *model, reserved })
    }

    fn over_budget(
        &self,
        name: &str,
        file: &Path,
        model: &ModelBytes,
        (need, available): (u64, u64),
    ) -> String {
        let shown = crate::output::bytes;
        let (limit, source) = self.limit();
        let way_out = match self.longest_context(file, model) {
            0 => "give a larger --ram-budget, a smaller quantisation, or --overcommit-weights to read weights from \
                  disk again and again"
                .to_owned(),
            fits => format!("a --ctx-cap of {fits} would fit"),
        };
        format!(
            "model_over_budget: {name} needs {} ({} of weights, {} of tokenizer, {} of scratch, {} for the keys \
             and values of one context at the coarsest precision) and {} are free of {} ({source}); {way_out}",
            shown(need),
            shown(model.weights(self.residency())),
            shown(model.tokenizer),
            shown(model.scratch),
            shown(model.turn_bytes(model.context_cap, 0, 0)),
            shown(available),
            shown(limit),
        )
    }
}

/// Unloads idle models for the governor.
struct Unloader(IdleModels);

impl Reliever for Unloader {
    fn yields(&self) -> u64 {
        self.0.bytes()
    }

    fn relieve(&self, bytes: u64) -> u64 {
        self.0.unload(bytes)
    }
}

/// By what name a file is known, whatever links lead to it.
fn identity(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

impl MemoryView for Memory {
    fn level(&self) -> &'static str {
        self.governor.level().name()
    }

    fn report(&self) -> Value {
        let report = self.governor.report();
        let classes: Vec<Value> = report.account.classes.iter().map(class).collect();
        let owners = report.account.largest.iter();
        let owners: Vec<Value> =
            owners.map(|(owner, bytes)| json!({"owner": owner.to_string(), "bytes": bytes})).collect();
        let transitions = report.transitions.iter().map(|transition| {
            json!({
                "seconds_ago": report.now.saturating_sub(transition.at).as_secs_f64(),
                "from": transition.from.name(),
                "to": transition.to.name(),
                "cause": format!("{:?}", transition.cause),
            })
        });
        let rungs = report.rungs.iter().map(
            |(rung, done)| json!({"action": rung.name(), "asked": done.asked, "freed_bytes": done.freed}),
        );
        json!({
            "level": report.level.name(),
            "limit_bytes": report.budget.limit,
            "limit_source": report.budget.source.to_string(),
            "ceiling_bytes": report.budget.ceiling,
            "margin_bytes": report.budget.margin,
            "headroom_bytes": report.budget.headroom(),
            "utilization": finite(report.budget.utilization()),
            "classes": classes,
            "largest_owners": owners,
            "anonymous_bytes": report.sample.anonymous,
            "file_bytes": report.sample.file,
            "transitions": transitions.collect::<Vec<_>>(),
            "actions": rungs.collect::<Vec<_>>(),
            "spill": self.spill.as_ref().map(|folder| folder.report()),
            "kv_gate": self.gates().iter().map(|(name, gate)| (name.clone(), kv_gate::shown(gate))).collect::<Map<_, _>>(),
        })
    }

    fn metrics(&self) -> String {
        let report = self.governor.report();
        let mut text = String::new();
        gauges(&mut text, &report);
        counters(&mut text, &report);
        if let Some(folder) = &self.spill {
            folder.metrics(&mut text);
        }
        for (name, kind, help, rows) in self.streams.metrics() {
            metric(&mut text, name, kind, help, &rows);
        }
        text
    }
}

fn class((class, bytes): (&Class, &lichen_memory::Bytes)) -> Value {
    json!({"class": class.name(), "reserved_bytes": bytes.reserved, "mapped_bytes": bytes.mapped})
}

/// JSON has no infinity.
fn finite(value: f64) -> Value {
    if value.is_finite() { json!(value) } else { Value::Null }
}

/// One metric with its rows: labels and value.
pub(crate) fn metric(text: &mut String, name: &str, kind: &str, help: &str, rows: &[(String, f64)]) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

fn gauges(text: &mut String, report: &MemoryReport) {
    let one = |value: f64| vec![(String::new(), value)];
    let level = Level::ALL.iter().position(|level| *level == report.level).unwrap_or(0);
    let help = "How short memory is: 0 normal, 1 watch, 2 tight, 3 critical.";
    metric(text, "lichen_memory_level", "gauge", help, &one(level as f64));
    let budget = &report.budget;
    for (name, help, value) in [
        ("lichen_memory_limit_bytes", "Bytes that are ours at best.", budget.limit),
        ("lichen_memory_ceiling_bytes", "Bytes that are ours now.", budget.ceiling),
        ("lichen_memory_headroom_bytes", "Bytes free below the ceiling.", budget.headroom()),
    ] {
        metric(text, name, "gauge", help, &one(value as f64));
    }
    let classes = report.account.classes.iter();
    let rows: Vec<_> = classes
        .map(|(class, bytes)| (format!("{{class=\"{}\"}}", class.name()), bytes.reserved as f64))
        .collect();
    metric(text, "lichen_memory_ledger_bytes", "gauge", "Bytes reserved, by what they are for.", &rows);
    let resident = [("anonymous", report.sample.anonymous), ("file", report.sample.file)];
    let rows: Vec<_> = resident
        .iter()
        .filter_map(|(kind, bytes)| Some((format!("{{kind=\"{kind}\"}}"), (*bytes)? as f64)))
        .collect();
    metric(text, "lichen_memory_resident_bytes", "gauge", "Resident bytes of the process.", &rows);
    if let Some(anonymous) = report.sample.anonymous {
        let drift = anonymous as f64 - anonymous_of(report) as f64;
        let help = "Resident anonymous bytes less those that the ledger knows.";
        metric(text, "lichen_memory_ledger_drift_bytes", "gauge", help, &one(drift));
    }
}

/// Anonymous bytes that the ledger has memory behind.
fn anonymous_of(report: &MemoryReport) -> u64 {
    let mapped = report.account.mapped();
    mapped.saturating_sub(report.account.class(Class::WeightsMapped).mapped)
}

fn counters(text: &mut String, report: &MemoryReport) {
    let by_level = Level::ALL.iter().map(|level| {
        let spent = report.residency.get(level).copied().unwrap_or_default();
        (format!("{{level=\"{}\"}}", level.name()), spent.as_secs_f64())
    });
    let help = "Time spent in each level.";
    metric(text, "lichen_memory_level_seconds_total", "counter", help, &by_level.collect::<Vec<_>>());
    let changes = [(String::new(), report.changes as f64)];
    metric(text, "lichen_memory_level_changes_total", "counter", "Changes of level.", &changes);
    let rows = |value: fn(&lichen_engine::RungReport) -> u64| -> Vec<(String, f64)> {
        let rungs = report.rungs.iter();
        rungs.map(|(rung, done)| (format!("{{action=\"{}\"}}", rung.name()), value(done) as f64)).collect()
    };
    let help = "Times that an action was asked for.";
    metric(text, "lichen_memory_actions_total", "counter", help, &rows(|done| done.asked));
    let help = "Bytes that an action freed.";
    metric(text, "lichen_memory_freed_bytes_total", "counter", help, &rows(|done| done.freed));
}
