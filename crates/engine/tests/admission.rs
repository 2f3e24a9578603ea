//! Who begins when memory is short: a model with pages of known sizes under a scripted source of samples.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use lichen_backend::{Executor, ExecutorError, KvPrecision};
use lichen_engine::{Engine, EngineConfig, FINE_PAGES, Governor, GovernorConfig, Placement};
use lichen_generate::{Event, FinishReason, Generate, GenerateError, Request, Ticket};
use lichen_memory::probe::MemorySource;
use lichen_memory::{Class, Group, ModelBytes, Owner, Sample};
use lichen_op::Batch;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::tokenizer;

const VOCAB: usize = 26;
const MIB: u64 = 1 << 20;
const PAGE_TOKENS: usize = 4;
/// Bytes of a page in half precision; in four bits it has a quarter of them.
const PAGE: u64 = 4 * MIB;
/// The margin of so small a limit.
const MARGIN: u64 = 24 * MIB;
const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats the last token; keeps only the number of tokens of each sequence.
#[derive(Default)]
struct Sized {
    lengths: BTreeMap<u64, usize>,
    most_at_once: Arc<Mutex<usize>>,
}

impl Executor for Sized {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        std::thread::sleep(Duration::from_micros(500));
        for span in &batch.sequences {
            let length = self.lengths.entry(span.sequence).or_default();
            assert!(*length >= span.past, "a sequence goes on where it was");
            *length = span.past + span.len;
        }
        let mut most = self.most_at_once.lock().unwrap();
        *most = self.lengths.len().max(*most);
        let row = |&row: &usize| {
            let next = batch.tokens[row] as usize;
            (0..VOCAB).map(move |token| if token == next { 9.0 } else { 0.0 })
        };
        *logits = batch.outputs.iter().flat_map(row).collect();
        Ok(())
    }

    fn drop_sequence(&mut self, sequence: u64) {
        self.lengths.remove(&sequence);
    }

    fn page_tokens(&self) -> usize {
        PAGE_TOKENS
    }

    fn pages(&self) -> usize {
        self.lengths.values().map(|length| length.div_ceil(PAGE_TOKENS)).sum()
    }

    fn page_bytes(&self, precision: KvPrecision) -> u64 {
        match precision {
            KvPrecision::Q4 => PAGE / 4,
            KvPrecision::Q5 => PAGE / 3,
            KvPrecision::Q8 => PAGE / 2,
            KvPrecision::F16 | KvPrecision::F32 => PAGE,
        }
    }

    /// As if everything that may be were in four bits.
    fn kv_bytes(&self) -> u64 {
        self.lengths.values().map(|&length| turn(length)).sum()
    }
}

/// Bytes that a sequence of so many tokens is promised.
fn turn(tokens: usize) -> u64 {
    let pages = tokens.div_ceil(PAGE_TOKENS);
    pages as u64 * PAGE / 4 + FINE_PAGES.min(pages) as u64 * (PAGE - PAGE / 4)
}

/// A control group whose limit can be moved, and in which nobody else is.
struct ControlGroup(Arc<AtomicU64>);

impl MemorySource for ControlGroup {
    fn sample(&mut self) -> Sample {
        let group = Group {
            name: "/box".into(),
            limit: self.0.load(Ordering::Relaxed),
            usage: None,
            file: None,
            limit_hits: None,
            out_of_memory: None,
        };
        Sample { groups: vec![group], ..Sample::default() }
    }
}

struct Bench {
    engine: Engine,
    governor: Governor,
    limit: Arc<AtomicU64>,
    most_at_once: Arc<Mutex<usize>>,
}

/// Prompts are read page by page.
fn small() -> EngineConfig {
    EngineConfig { prefill_tokens: PAGE_TOKENS, ..EngineConfig::default() }
}

/// An engine with so many bytes for keys and values, beside a megabyte of weights.
fn bench(kv: u64, config: EngineConfig) -> Bench {
    let limit = Arc::new(AtomicU64::new(kv + MARGIN + MIB));
    let watched = GovernorConfig { period: Duration::from_millis(5), ..GovernorConfig::default() };
    let governor = Governor::start(Box::new(ControlGroup(limit.clone())), watched).unwrap();
    let owner = Owner::new("toy", 0);
    let weights = governor.ledger().reserve(&owner, Class::WeightsMapped, MIB).unwrap();
    let model = ModelBytes {
        page: [PAGE, PAGE / 2, PAGE / 3, PAGE / 4],
        page_tokens: PAGE_TOKENS as u64,
        fine_pages: FINE_PAGES as u64,
        floor: lichen_memory::KvPrecision::Q4,
        context_cap: config.context_cap as u64,
        scratch: 0,
        weights_mapped: MIB,
        weights_anonymous: 0,
        tokenizer: 0,
    };
    let tokenizer = tokenizer(('a'..='z').map(String::from).collect());
    let executor = Sized::default();
    let most_at_once = executor.most_at_once.clone();
    let placement = Placement { governor: governor.clone(), owner, model, reserved: vec![Arc::new(weights)] };
    let engine = Engine::start_placed(Box::new(executor), tokenizer, config, Some(placement), None).unwrap();
    Bench { engine, governor, limit, most_at_once }
}

fn request(prompt: usize, max_tokens: Option<usize>) -> Request {
    Request { prompt: vec![1; prompt], max_tokens, ..Request::default() }
}

fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<Event>) {
    let (sender, events) = channel();
    (engine.submit(request, Box::new(move |event| drop(sender.send(event)))).unwrap(), events)
}

/// Tokens of the answer, or why there is none.
fn answer(events: &Receiver<Event>) -> Result<usize, GenerateError> {
    loop {
        match events.recv_timeout(PATIENCE).unwrap() {
            Event::Finished { reason, usage } => {
                assert_eq!(reason, FinishReason::Length);
                return Ok(usage.completion_tokens);
            }
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
}

fn until(done: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn turns_that_fit_alone_and_not_together_run_one_after_another() {
    let bench = bench(turn(64) + turn(32), small());
    let asked: Vec<_> = (0..4).map(|_| submit(&bench.engine, request(34, Some(30)))).collect();
    for (_ticket, events) in &asked {
        assert_eq!(answer(events).unwrap(), 30);
    }
    assert_eq!(*bench.most_at_once.lock().unwrap(), 1);
    let admissions = bench.engine.stats().admissions;
    assert_eq!((admissions.admitted + admissions.queued_for_memory, admissions.queued_for_slot), (4, 0));
    assert!(admissions.queued_for_memory >= 1);
    until(|| bench.governor.ledger().totals().kv_promised == 0);
}

#[test]
fn a_turn_that_fits_not_even_alone_is_refused_and_with_the_size_it_is_told_admitted() {
    let bench = bench(turn(64), EngineConfig { context_cap: 200, ..small() });
    let refused = |request| bench.engine.submit(request, Box::new(|_| ())).unwrap_err();
    let GenerateError::MemoryImpossible(size) = refused(request(80, Some(10))) else { panic!() };
    let memory = size.memory.unwrap();
    assert_eq!((memory.kv_bytes_needed, memory.kv_bytes_alone), (turn(90), turn(64)));
    assert_eq!((memory.max_prompt_tokens_alone, memory.max_requested_tokens_alone), (54, 0));
    assert_eq!((memory.limit_bytes, memory.limit_source.as_str()), (turn(64) + MARGIN + MIB, "cgroup:/box"));
    assert!(matches!(refused(request(55, Some(10))), GenerateError::MemoryImpossible(_)));
    let (_ticket, events) = submit(&bench.engine, request(54, Some(10)));
    assert_eq!(answer(&events).unwrap(), 10);
    let GenerateError::ContextOverBudget(size) = refused(request(54, Some(1000))) else { panic!() };
    assert_eq!(size.memory.unwrap().max_requested_tokens_alone, 10);
    let admissions = bench.engine.stats().admissions;
    assert_eq!((admissions.over_memory, admissions.over_context), (2, 1));
}

#[test]
fn who_waits_too_long_for_memory_is_told_what_is_missing_and_who_has_it() {
    let config = EngineConfig { queue_timeout: Duration::from_millis(50), ..small() };
    let bench = bench(turn(1000), config);
    let (_first, long) = submit(&bench.engine, request(4, Some(900)));
    until(|| bench.engine.stats().running == 1);
    let (_second, events) = submit(&bench.engine, request(400, Some(8)));
    let GenerateError::MemoryOverBudget { need_bytes, available_bytes, largest, waited, .. } =
        answer(&events).unwrap_err()
    else {
        panic!()
    };
    assert_eq!((need_bytes, available_bytes), (turn(408), turn(1000) - turn(904)));
    assert_eq!(largest[0], ("toy".to_owned(), MIB + turn(904)));
    assert!(waited >= Duration::from_millis(50));
    assert_eq!(answer(&long).unwrap(), 900, "who runs is not disturbed");
    assert_eq!(bench.engine.stats().admissions.timed_out, 1);
}

#[test]
fn who_waits_for_a_slot_is_told_so_and_waits_on() {
    let timeout = Duration::from_millis(20);
    let config = EngineConfig { max_running: 1, queue_timeout: timeout, ..small() };
    let bench = bench(turn(1000), config);
    let (_first, long) = submit(&bench.engine, request(4, Some(200)));
    let (_second, events) = submit(&bench.engine, request(4, Some(3)));
    assert!(matches!(events.recv_timeout(PATIENCE).unwrap(), Event::Waiting));
    assert_eq!((answer(&long).unwrap(), answer(&events).unwrap()), (200, 3));
}

#[test]
fn an_answer_of_no_given_length_pauses_where_its_reserve_ends_and_is_never_cut() {
    let config = EngineConfig { context_cap: 120, answer_reserve: 16, ..small() };
    // Both begin, and not both can go to the end.
    let bench = bench(turn(120) + turn(40), config);
    let asked: Vec<_> = (0..2).map(|_| submit(&bench.engine, request(20, None))).collect();
    for (_ticket, events) in &asked {
        assert_eq!(answer(events).unwrap(), 100, "to the context cap");
    }
    assert_eq!(*bench.most_at_once.lock().unwrap(), 2);
    let stats = bench.engine.stats();
    assert!(stats.pauses >= 1 && stats.admissions.admitted == 2, "{stats:?}");
}

#[test]
fn the_last_one_is_parked_only_while_it_does_not_fit_and_comes_back() {
    let bench = bench(turn(1000), small());
    let (_ticket, events) = submit(&bench.engine, request(100, Some(800)));
    until(|| bench.engine.stats().generated_tokens > 20);
    let whole = bench.limit.load(Ordering::Relaxed);
    // Less than what its pages take at the smallest precision.
    bench.limit.store(turn(60) + MARGIN, Ordering::Relaxed);
    until(|| bench.engine.stats().paused == 1);
    let rung = |bench: &Bench| bench.governor.report().rungs.get(&lichen_memory::Rung::ParkLast).copied();
    until(|| rung(&bench).is_some_and(|report| report.freed > 0));
    let steps = bench.engine.stats().steps;
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(bench.engine.stats().steps, steps, "it doesn't come back before it fits");
    bench.limit.store(whole, Ordering::Relaxed);
    assert_eq!(answer(&events).unwrap(), 800, "and nothing of it is lost");
}

#[test]
fn who_has_the_right_of_way_goes_on_in_the_margin() {
    let bench = bench(turn(400), EngineConfig { context_cap: 400, ..small() });
    let (_ticket, events) = submit(&bench.engine, request(4, Some(396)));
    until(|| bench.engine.stats().running == 1);
    // What it is promised fits only with half of the margin.
    bench.limit.store(turn(400) + MARGIN * 3 / 4 + MIB, Ordering::Relaxed);
    assert_eq!(answer(&events).unwrap(), 396);
    assert_eq!(bench.engine.stats().pauses, 0);
}
