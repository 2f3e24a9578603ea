//! The memory of this process: who watches it, what a model is placed with, and what people are told of it.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use lichen_cpu::PAGE_TOKENS;
use lichen_engine::{Governor, GovernorConfig, MemoryReport, Placement};
use lichen_memory::{Class, Level, Owner, Reservation, probe::Linux};
use lichen_server::MemoryView;
use serde_json::{Value, json};

/// What the process takes beside models: code, threads, connections, buffers.
pub(crate) const PROCESS_BYTES: u64 = 40 << 20;
/// Of weights that may exceed memory, the part that is counted: one in so many is in memory at a time.
const STREAMED_PART: u64 = 10;

/// Memory as this process shares it out.
#[derive(Clone)]
pub(crate) struct Memory {
    governor: Governor,
    /// Weights may be larger than what there is.
    pub(crate) overcommit_weights: bool,
}

/// What a model needs before it has taken a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) weights: u64,
    pub(crate) scratch: u64,
    /// Keys and values of one whole context at the smallest precision.
    pub(crate) context: u64,
    /// Tokens of that context.
    pub(crate) tokens: usize,
}

impl Needs {
    pub(crate) fn total(&self) -> u64 {
        self.weights + self.scratch + self.context
    }
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
        Ok((Self { governor, overcommit_weights }, process))
    }

    /// Bytes that models may have.
    pub(crate) fn for_models(&self) -> u64 {
        let report = self.governor.report();
        report.budget.limit.saturating_sub(report.budget.margin).saturating_sub(PROCESS_BYTES)
    }

    /// Bytes of weights that count.
    fn counted(&self, needs: Needs) -> u64 {
        if self.overcommit_weights { needs.weights / STREAMED_PART } else { needs.weights }
    }

    /// Bytes that memory has for this process, and why not more.
    pub(crate) fn limit(&self) -> (u64, String) {
        let limit = self.governor.ledger().snapshot().limit;
        (limit.bytes, limit.source.to_string())
    }

    /// Bytes kept free of everything that can be refused.
    pub(crate) fn margin(&self) -> u64 {
        self.governor.ledger().snapshot().limit.margin
    }

    /// Bytes left for keys and values beside a model.
    pub(crate) fn room(&self, needs: Needs) -> u64 {
        let account = self.governor.ledger().snapshot();
        let available = account.limit.bytes.saturating_sub(account.limit.margin);
        available.saturating_sub(account.promised()).saturating_sub(self.counted(needs) + needs.scratch)
    }

    /// Tokens of the longest context that there is room for now.
    pub(crate) fn longest_context(&self, needs: Needs) -> usize {
        let tokens = u128::from(self.room(needs)) * needs.tokens as u128 / u128::from(needs.context.max(1));
        let tokens = usize::try_from(tokens).unwrap_or(usize::MAX).min(needs.tokens);
        tokens / PAGE_TOKENS * PAGE_TOKENS
    }

    /// Reserves what a model needs, before any of it is touched.
    ///
    /// # Errors
    /// It doesn't fit, with the numbers and the ways out.
    pub(crate) fn place(&self, name: &str, needs: Needs) -> Result<Placement> {
        let owner = Owner::new(name, 0);
        let weights = self.counted(needs);
        let ledger = self.governor.ledger();
        let account = ledger.snapshot();
        let available = account.limit.bytes.saturating_sub(account.limit.margin);
        let free = available.saturating_sub(account.promised());
        let need = weights + needs.scratch + needs.context;
        if need > free {
            let shown = crate::output::bytes;
            let way_out = match self.longest_context(needs) {
                0 => "give a larger --ram-budget, a smaller quantisation, or --overcommit-weights to read weights \
                      from disk again and again"
                    .to_owned(),
                fits => format!("a --ctx-cap of {fits} would fit"),
            };
            bail!(
                "model_over_budget: {name} needs {} ({} of weights, {} of scratch, {} for the keys and values of one \
                 context at 4 bits) and {} are free of {} ({}); {way_out}",
                shown(need),
                shown(weights),
                shown(needs.scratch),
                shown(needs.context),
                shown(free),
                shown(account.limit.bytes),
                account.limit.source,
            );
        }
        let reserve = |class, bytes| ledger.reserve(&owner, class, bytes);
        let reserved = vec![reserve(Class::WeightsMapped, weights)?, reserve(Class::Scratch, needs.scratch)?];
        Ok(Placement { governor: self.governor.clone(), owner, weight_bytes: needs.weights, reserved })
    }
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
        })
    }

    fn metrics(&self) -> String {
        let report = self.governor.report();
        let mut text = String::new();
        gauges(&mut text, &report);
        counters(&mut text, &report);
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
fn metric(text: &mut String, name: &str, kind: &str, help: &str, rows: &[(String, f64)]) {
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
