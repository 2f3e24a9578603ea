//! Which precisions of keys and values a model bears: measured once for a file, then remembered beside the models.

mod background;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lichen_backend::{Executor, KvPrecision};
use lichen_cpu::PAGE_TOKENS;
use lichen_engine::KvGate;
use lichen_hub::HubConfig;
use lichen_server::Language;
use lichen_session::digest;
use serde_json::{Map, Value, json};

use crate::language::ModelLanguage;
use crate::load::{ComputeArgs, NumericsArg, Opened};
use crate::output;
use crate::sessions::PAGE_FORMAT;

/// What precisions are measured on: prose, numbers, code and a list, since none of them stands for all.
const TEXT: &str = include_str!("kv_gate.txt");
/// Part of the name of what is remembered; it changes with the way to measure.
const REVISION: &str = "kv gate, revision 1";
/// More than any file of divergences has.
const MOST_BYTES: u64 = 4096;

/// What is remembered of a model.
pub(crate) fn known(opened: &Opened) -> Option<KvGate> {
    recall(&file(opened))
}

/// What it takes to measure a model, which has not begun. Nothing large is allocated before it begins.
pub(crate) struct Measurement {
    executor: Box<dyn Executor>,
    text: Vec<u32>,
    /// Bytes of its keys and values, scratch and logits.
    bytes: u64,
    /// Where the outcome is remembered.
    file: PathBuf,
}

impl Measurement {
    /// # Errors
    /// The backend refuses the model.
    pub(crate) fn new(opened: &Opened, compute: &ComputeArgs, language: &ModelLanguage) -> Result<Self> {
        let plan = opened.spec.lower();
        let page = lichen_cpu::page_bytes(&plan.kv, KvPrecision::F32);
        let pages = KvGate::TOKENS.div_ceil(PAGE_TOKENS) as u64 * page;
        let bytes =
            pages + lichen_cpu::scratch_bytes(&plan, PAGE_TOKENS, 0) + KvGate::logit_bytes(plan.vocab);
        let compute = ComputeArgs { numerics: NumericsArg::Float32, ..compute.clone() };
        Ok(Self {
            executor: opened.executor(&compute, None)?,
            text: language.encode(TEXT, true, false),
            bytes,
            file: file(opened),
        })
    }

    /// What an earlier measurement of this file has found.
    pub(crate) fn recall(&self) -> Option<KvGate> {
        recall(&self.file)
    }

    /// Measures now, and remembers.
    ///
    /// # Errors
    /// The backend fails.
    pub(crate) fn run(mut self) -> Result<KvGate> {
        output::note("measuring which precisions of keys and values the model bears, once for this file");
        let measured = self.run_while(&mut || true)?;
        Ok(measured.expect("nobody calls it off"))
    }

    /// Measures as long as it is told to go on, and remembers; `None` if it was called off.
    fn run_while(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<KvGate>> {
        let measured = KvGate::measure(&mut *self.executor, &self.text, go_on)?;
        if let Some(gate) = &measured {
            remember(&self.file, gate);
        }
        Ok(measured)
    }
}

/// Says so if keys and values are stored in a precision that the model turned out not to bear.
pub(crate) fn warn(name: &str, gate: &KvGate, stored: KvPrecision) {
    if gate.divergence(stored).is_some() && !gate.allows(stored) {
        output::note(format_args!("{name} doesn't bear keys and values in {stored}, which --kv asks for"));
    }
}

/// Divergences and verdicts, for people and scripts.
pub(crate) fn shown(gate: &KvGate) -> Value {
    let one = |precision| {
        let told = json!({
            "allowed": gate.allows(precision),
            "divergence": gate.divergence(precision),
            "budget": KvGate::budget(precision),
        });
        (precision.name().to_owned(), told)
    };
    Value::Object(KvGate::MEASURED.into_iter().map(one).collect::<Map<_, _>>())
}

fn recall(file: &Path) -> Option<KvGate> {
    if fs::metadata(file).ok()?.len() > MOST_BYTES {
        return None;
    }
    let told: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    let divergence = |precision: KvPrecision| Some((precision, told[precision.name()].as_f64()?));
    KvGate::MEASURED.into_iter().map(divergence).collect::<Option<_>>().map(KvGate::new)
}

/// Keeps what was measured. Without a place for it, it is measured again the next time.
fn remember(file: &Path, gate: &KvGate) {
    // What is no number in JSON is far over every budget.
    let divergence = |precision| gate.divergence(precision).filter(|divergence| divergence.is_finite());
    let told: Map<_, _> = KvGate::MEASURED
        .into_iter()
        .map(|precision| (precision.name().to_owned(), json!(divergence(precision).unwrap_or(f64::MAX))))
        .collect();
    let part = file.with_extension(format!("part{}", std::process::id()));
    let written = file
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&part, Value::Object(told).to_string()))
        .and_then(|()| fs::rename(&part, file));
    if let Err(error) = written {
        output::note(format_args!("the precisions that the model bears can't be remembered: {error}"));
    }
}

/// Where it is remembered what a model bears.
fn file(opened: &Opened) -> PathBuf {
    let tag = opened.tag();
    let name =
        digest([tag.as_bytes().as_slice(), PAGE_FORMAT.as_bytes(), REVISION.as_bytes(), TEXT.as_bytes()]);
    let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    HubConfig::from_env().home.join("kv-gate").join(name).with_extension("json")
}
