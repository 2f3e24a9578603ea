//! Keys and values become coarser while an answer is being written. With a tiny model, and with SmolLM2 where
//! `LICHEN_TEST_MODELS` says that it is there.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use lichen_backend::{Executor, ExecutorError, KvPrecision, PageError, PageId, PageSet};
use lichen_cpu::{CpuConfig, CpuExecutor, Weight};
use lichen_engine::{
    Engine, EngineConfig, FINE_PAGES, Governor, GovernorConfig, KvGate, Placement, divergence,
};
use lichen_format::Checkpoint;
use lichen_generate::{Event, Generate, Request, Sampling};
use lichen_memory::probe::MemorySource;
use lichen_memory::{Edge, Edges, Group, Level, ModelBytes, Origin, Owner, Sample, Stall, Thresholds};
use lichen_op::Batch;
use lichen_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const SESSION: u64 = 7;
const PAGE: usize = lichen_cpu::PAGE_TOKENS;

fn open(path: &Path) -> CpuExecutor {
    let checkpoint = Checkpoint::open(path).unwrap();
    let plan = lichen_model::import(&checkpoint, None).unwrap().lower();
    let weights = plan.weights.iter().map(|decl| {
        let info = checkpoint.tensor(&decl.name).unwrap();
        Weight { dtype: info.dtype, bytes: checkpoint.data(info) }
    });
    let weights = weights.collect();
    CpuExecutor::new(plan, weights, CpuConfig { threads: 2, ..CpuConfig::default() }).unwrap()
}

/// One step of the answer.
struct Recorded {
    past: usize,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    kv_bytes: u64,
}

/// A model that keeps a record of its steps, and lets memory become short after some tokens.
struct Recorder {
    inner: CpuExecutor,
    steps: Arc<Mutex<Vec<Recorded>>>,
    short: Arc<AtomicBool>,
    governor: Arc<OnceLock<Governor>>,
    after: usize,
}

impl Executor for Recorder {
    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.inner.run(batch, logits)?;
        let span = &batch.sequences[0];
        let (tokens, kv_bytes) = (batch.tokens.clone(), self.inner.kv_bytes());
        self.steps.lock().unwrap().push(Recorded {
            past: span.past,
            tokens,
            logits: logits.clone(),
            kv_bytes,
        });
        if span.past == self.after {
            self.short.store(true, Ordering::Relaxed);
            // A tiny model would be done before the governor has seen it.
            let start = Instant::now();
            while self.governor.get().unwrap().level() == Level::Normal {
                assert!(start.elapsed() < Duration::from_secs(20), "memory is not short");
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn drop_sequence(&mut self, sequence: u64) {
        self.inner.drop_sequence(sequence);
    }

    fn page_tokens(&self) -> usize {
        self.inner.page_tokens()
    }

    fn pages(&self) -> usize {
        self.inner.pages()
    }

    fn hold(&mut self, sequence: u64) -> Vec<PageId> {
        self.inner.hold(sequence)
    }

    fn adopt(&mut self, sequence: u64, pages: &[PageId], tokens: usize) {
        self.inner.adopt(sequence, pages, tokens);
    }

    fn release(&mut self, page: PageId) {
        self.inner.release(page);
    }

    fn users(&self, page: PageId) -> usize {
        self.inner.users(page)
    }

    fn sequence_pages(&self, sequence: u64) -> &[PageId] {
        self.inner.sequence_pages(sequence)
    }

    fn page_bytes(&self, precision: KvPrecision) -> u64 {
        self.inner.page_bytes(precision)
    }

    fn kv_bytes(&self) -> u64 {
        self.inner.kv_bytes()
    }

    fn page_size(&self, page: PageId) -> u64 {
        self.inner.page_size(page)
    }

    fn set_kv_precision(&mut self, precision: KvPrecision) {
        self.inner.set_kv_precision(precision);
    }

    fn requantise(&mut self, pages: PageSet, precision: KvPrecision) -> Result<u64, ExecutorError> {
        self.inner.requantise(pages, precision)
    }

    fn export_page(&self, page: PageId) -> Option<(KvPrecision, Vec<u8>)> {
        self.inner.export_page(page)
    }

    fn import_page(&mut self, precision: KvPrecision, bytes: &[u8]) -> Result<PageId, PageError> {
        self.inner.import_page(precision, bytes)
    }
}

/// A group with much room, in which tasks stand still from some time on.
struct Stalling {
    short: Arc<AtomicBool>,
    began: Instant,
}

impl MemorySource for Stalling {
    fn sample(&mut self) -> Sample {
        let (name, limit) = ("/box".to_owned(), 8 << 30);
        let group = Group { name, limit, usage: None, file: None, limit_hits: None, out_of_memory: None };
        let some = if self.short.load(Ordering::Relaxed) { self.began.elapsed() } else { Duration::ZERO };
        let stall = Some(Stall { origin: Origin::Group, some, full: Duration::ZERO });
        Sample { groups: vec![group], stall, ..Sample::default() }
    }
}

/// Standing still leads to the first level and no further; nothing else leads anywhere.
fn only_watch() -> Thresholds {
    let none = Edges::default();
    Thresholds {
        utilization: none,
        commitment: none,
        excess: none,
        headroom: none,
        exhaustion: none,
        stall_some: Edges { watch: Some(Edge { enter: 0.001, leave: 0.0005 }), ..none },
        stall_full: none,
        thrash: none,
        ..Thresholds::default()
    }
}

/// Tokens are never turned into text that matters here.
fn tokenizer(vocab: usize) -> Arc<Tokenizer> {
    let vocabulary = Vocabulary {
        model: VocabularyModel::ByteLevelBpe,
        pre: String::new(),
        scores: Vec::new(),
        merges: Vec::new(),
        bos: None,
        eos: None,
        eot: None,
        unk: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        strip_after_control: false,
        tokens: (0..vocab).map(|token| format!("t{token}").into()).collect(),
        kinds: vec![TokenKind::Normal; vocab],
    };
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

struct Case {
    prompt: usize,
    answer: usize,
    /// Tokens after which memory becomes short.
    after: usize,
    gate: KvGate,
    /// What pages come to.
    target: KvPrecision,
}

/// An engine in whose steps memory becomes short after so many tokens, and the record of them.
fn engine(path: &Path, after: usize, kv_gate: &KvGate) -> (Engine, Arc<Mutex<Vec<Recorded>>>) {
    let (steps, short) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
    let governor = Arc::new(OnceLock::new());
    let executor = Recorder {
        inner: open(path),
        steps: steps.clone(),
        short: short.clone(),
        governor: governor.clone(),
        after,
    };
    let source = Box::new(Stalling { short, began: Instant::now() });
    let period = Duration::from_millis(5);
    let watched = GovernorConfig { period, thresholds: only_watch(), ..GovernorConfig::default() };
    let governor = governor.get_or_init(|| Governor::start(source, watched).unwrap()).clone();
    let config = EngineConfig { speculate: false, kv_gate: kv_gate.clone(), ..EngineConfig::default() };
    let ladder = [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4];
    let model = ModelBytes {
        page: ladder.map(|precision| executor.page_bytes(precision)),
        page_tokens: PAGE as u64,
        fine_pages: FINE_PAGES as u64,
        floor: lichen_memory::KvPrecision::Q4,
        context_cap: config.context_cap as u64,
        scratch: 0,
        weights_mapped: 0,
        weights_anonymous: 0,
        tokenizer: 0,
    };
    let tokenizer = tokenizer(executor.vocab());
    let placement = Placement { governor, owner: Owner::new("model", 0), model, reserved: Vec::new() };
    let engine = Engine::start_placed(Box::new(executor), tokenizer, config, Some(placement), None).unwrap();
    (engine, steps)
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| 10 + at * 7 % 90).collect()
}

/// Writes an answer of so many tokens to its end.
fn write(engine: &Engine, prompt: Vec<u32>, tokens: usize) {
    let request = Request {
        prompt,
        session: Some(SESSION),
        max_tokens: Some(tokens),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    };
    let (sender, events) = channel();
    let _ticket = engine.submit(request, Box::new(move |event| drop(sender.send(event)))).unwrap();
    let usage = loop {
        match events.recv_timeout(Duration::from_secs(120)).unwrap() {
            Event::Finished { usage, .. } => break usage,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    };
    assert_eq!(usage.completion_tokens, tokens, "the answer goes on to its end");
}

/// Pages that are coarse in a step that goes on after so many tokens: full, not the first, not the newest full one.
fn sealed(past: usize) -> usize {
    (past / PAGE).saturating_sub(2)
}

/// The logits of a step by a model that stores everything in half precision.
fn plain_logits(plain: &mut CpuExecutor, step: &Recorded) -> Vec<f32> {
    let mut batch = Batch::default();
    batch.push(0, step.past, &step.tokens, false);
    batch.outputs.truncate(usize::from(!step.logits.is_empty()));
    let mut logits = Vec::new();
    plain.run(&batch, &mut logits).unwrap();
    logits
}

fn within_budget(divergences: &[f64], precision: KvPrecision) {
    let mean = divergences.iter().sum::<f64>() / divergences.len() as f64;
    eprintln!("mean divergence in {precision}: {mean:.2e} over {} steps", divergences.len());
    assert!(mean > 0.0 && mean <= KvGate::budget(precision), "{mean} nats");
}

fn check(path: &Path, case: &Case) {
    let (engine, steps) = engine(path, case.after, &case.gate);
    write(&engine, prompt(case.prompt), case.answer);
    drop(engine);
    let mut plain = open(path);
    let (fine, coarse) = (plain.page_bytes(KvPrecision::F16), plain.page_bytes(case.target));
    let mut reduced = Vec::new();
    for step in &*steps.lock().unwrap() {
        let pages = (step.past + step.tokens.len()).div_ceil(PAGE) as u64;
        let saved = if step.past > case.after { sealed(step.past) as u64 * (fine - coarse) } else { 0 };
        assert_eq!(step.kv_bytes, pages * fine - saved, "after {} tokens", step.past);
        let reference = plain_logits(&mut plain, step);
        if saved > 0 {
            reduced.push(divergence(&reference, &step.logits));
        } else {
            assert_eq!(reference, step.logits, "before, nothing differs");
        }
    }
    assert!(reduced.len() > 100, "{} steps", reduced.len());
    within_budget(&reduced, case.target);
}

/// Writes half a conversation with one engine and the rest with another, which takes its state at a precision.
fn moved(path: &Path, precision: KvPrecision) {
    let (here, _) = engine(path, usize::MAX, &KvGate::default());
    write(&here, prompt(400), 40);
    let state = here.export_session(SESSION).unwrap();
    let (tokens, pages) = (state.tokens.clone(), state.pages.len());
    let (there, steps) = engine(path, usize::MAX, &KvGate::default());
    let imported = there.import_session(SESSION, state, Some(precision)).unwrap();
    assert_eq!(imported.tokens, tokens.len());
    let coarse = sealed(tokens.len());
    let expected = BTreeMap::from([(precision, coarse), (KvPrecision::F16, pages - coarse)]);
    assert_eq!(imported.pages, expected);
    write(&there, [&tokens[..], &[11, 12, 13]].concat(), 100);
    let mut plain = open(path);
    let whole = Recorded { past: 0, tokens: tokens.clone(), logits: Vec::new(), kv_bytes: 0 };
    plain_logits(&mut plain, &whole);
    let steps = steps.lock().unwrap();
    assert_eq!((steps[0].past, steps[0].tokens.len()), (tokens.len(), 3), "nothing is computed again");
    let compared: Vec<f64> =
        steps.iter().map(|step| divergence(&plain_logits(&mut plain, step), &step.logits)).collect();
    within_budget(&compared, precision);
    // What is coarse stays so.
    let again = there.export_session(SESSION).unwrap();
    let back = here.import_session(SESSION, again, Some(KvPrecision::F16)).unwrap();
    assert_eq!(back.pages[&precision], coarse);
}

fn tiny() -> PathBuf {
    support::model("llama/model-f16.gguf")
}

fn published() -> Option<PathBuf> {
    let folder = std::env::var_os("LICHEN_TEST_MODELS");
    if folder.is_none() {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
    }
    Some(PathBuf::from(folder?).join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

#[test]
fn pages_shrink_by_the_predicted_bytes_in_the_middle_of_an_answer_that_goes_on() {
    let (gate, target) = (KvGate::default(), KvPrecision::Q5);
    check(&tiny(), &Case { prompt: 20, answer: 500, after: 330, gate, target });
}

#[test]
fn a_model_that_does_not_bear_five_bits_stays_at_eight() {
    let gate = KvGate::new(vec![(KvPrecision::Q8, 1e-5), (KvPrecision::Q5, 1.0), (KvPrecision::Q4, 2.0)]);
    check(&tiny(), &Case { prompt: 20, answer: 500, after: 330, gate, target: KvPrecision::Q8 });
}

#[test]
fn a_conversation_that_moves_is_taken_at_the_precision_that_is_asked_for() {
    for precision in [KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4] {
        moved(&tiny(), precision);
    }
}

#[test]
fn a_published_model_stays_within_the_budget() {
    let Some(path) = published() else { return };
    let (gate, target) = (KvGate::default(), KvPrecision::Q5);
    check(&path, &Case { prompt: 150, answer: 220, after: 260, gate, target });
    moved(&path, KvPrecision::Q4);
}
