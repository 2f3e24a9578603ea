//! Reuse, pausing and guessing with a scripted model that stores its tokens in shared pages: what it says next depends
//! on every token before, so state that is mixed up changes the text.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, ExecutorError, PageId};
use lichen_engine::{Engine, EngineConfig};
use lichen_generate::{
    Constraint, Event, Generate, GenerateError, Pooling, Request, Sampling, Stats, Task, Thinking, Ticket,
    TokenLogprob, Usage,
};
use lichen_op::Batch;
use lichen_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const VOCAB: usize = 26;
const PAGE: usize = 4;

#[derive(Debug, Clone)]
struct Page {
    name: Arc<u64>,
    tokens: Vec<u32>,
}

#[derive(Default)]
struct Seen {
    computed: usize,
    steps: usize,
    most_pages: usize,
}

/// The next token is a hash of all before; with `period` the text repeats itself.
struct Paged {
    period: Option<usize>,
    sequences: BTreeMap<u64, Vec<Page>>,
    held: BTreeMap<u64, (Page, usize)>,
    next: u64,
    seen: Arc<Mutex<Seen>>,
}

fn model(tokens: &[u32], period: Option<usize>) -> u32 {
    match period {
        Some(period) if tokens.len() >= period => tokens[tokens.len() - period],
        _ => tokens.iter().fold(7u32, |hash, &token| (hash ^ token).wrapping_mul(0x0100_0193)) % VOCAB as u32,
    }
}

impl Paged {
    fn fresh(&mut self) -> Page {
        self.next += 1;
        Page { name: Arc::new(self.next), tokens: Vec::new() }
    }

    fn write(&mut self, sequence: u64, past: usize, tokens: &[u32]) -> Vec<u32> {
        let mut pages = self.sequences.remove(&sequence).unwrap_or_default();
        pages.truncate(past.div_ceil(PAGE));
        for (at, &token) in (past..).zip(tokens) {
            if at / PAGE == pages.len() {
                pages.push(self.fresh());
            } else if Arc::strong_count(&pages[at / PAGE].name) > 1 {
                let copy = Page { tokens: pages[at / PAGE].tokens.clone(), ..self.fresh() };
                pages[at / PAGE] = copy;
            }
            let page = &mut pages[at / PAGE].tokens;
            page.truncate(at % PAGE);
            page.push(token);
        }
        let all: Vec<u32> = pages.iter().flat_map(|page| page.tokens.iter().copied()).collect();
        assert_eq!(all.len(), past + tokens.len(), "a sequence goes on where it was");
        self.sequences.insert(sequence, pages);
        all
    }
}

impl Executor for Paged {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, batch: &Batch) -> Result<Vec<f32>, ExecutorError> {
        let mut logits = Vec::new();
        for span in &batch.sequences {
            let rows = span.first..span.first + span.len;
            let all = self.write(span.sequence, span.past, &batch.tokens[rows.clone()]);
            for row in rows.filter(|row| batch.outputs.contains(row)) {
                let next = model(&all[..=span.past + row - span.first], self.period);
                logits.extend((0..VOCAB as u32).map(|token| if token == next { 9.0 } else { 0.0 }));
            }
        }
        let pages = self.pages();
        let mut seen = self.seen.lock().unwrap();
        seen.computed += batch.tokens.len();
        seen.steps += 1;
        seen.most_pages = seen.most_pages.max(pages);
        Ok(logits)
    }

    fn hidden(&mut self, batch: &Batch) -> Result<Vec<f32>, ExecutorError> {
        for span in &batch.sequences {
            self.write(span.sequence, span.past, &batch.tokens[span.first..span.first + span.len]);
        }
        Ok(batch.outputs.iter().flat_map(|&row| [batch.tokens[row] as f32, 4.0]).collect())
    }

    fn drop_sequence(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
    }

    fn page_tokens(&self) -> usize {
        PAGE
    }

    fn pages(&self) -> usize {
        let mut names: Vec<u64> = self.held.keys().copied().collect();
        names.extend(self.sequences.values().flatten().map(|page| *page.name));
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    fn hold(&mut self, sequence: u64) -> Vec<PageId> {
        let pages = self.sequences.get(&sequence).cloned().unwrap_or_default();
        let hold = |page: Page| {
            let name = *page.name;
            self.held.entry(name).or_insert((page, 0)).1 += 1;
            PageId(name)
        };
        pages.into_iter().map(hold).collect()
    }

    fn adopt(&mut self, sequence: u64, pages: &[PageId], tokens: usize) {
        let mut pages: Vec<Page> = pages.iter().map(|page| self.held[&page.0].0.clone()).collect();
        let last = tokens - (pages.len() - 1) * PAGE;
        pages.last_mut().unwrap().tokens.truncate(last);
        self.sequences.insert(sequence, pages);
    }

    fn release(&mut self, page: PageId) {
        let held = self.held.get_mut(&page.0).unwrap();
        held.1 -= 1;
        if held.1 == 0 {
            self.held.remove(&page.0);
        }
    }

    fn users(&self, page: PageId) -> usize {
        Arc::strong_count(&self.held[&page.0].0.name) - 1
    }
}

fn engine(config: EngineConfig, period: Option<usize>) -> (Engine, Arc<Mutex<Seen>>) {
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
        tokens: ('a'..='z').map(String::from).collect(),
        kinds: vec![TokenKind::Normal; VOCAB],
    };
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (sequences, held) = (BTreeMap::new(), BTreeMap::new());
    let executor = Paged { period, sequences, held, next: 0, seen: seen.clone() };
    let tokenizer = Arc::new(Tokenizer::new(vocabulary).unwrap());
    (Engine::start(Box::new(executor), tokenizer, config).unwrap(), seen)
}

fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    }
}

/// What the model says after a prompt.
fn expected(prompt: &[u32], count: usize, period: Option<usize>) -> String {
    let mut tokens = prompt.to_vec();
    (0..count).for_each(|_| tokens.push(model(&tokens, period)));
    tokens[prompt.len()..].iter().map(|&token| char::from(b'a' + token as u8)).collect()
}

fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<Event>) {
    let (sender, events) = channel();
    (engine.submit(request, Box::new(move |event| drop(sender.send(event)))).unwrap(), events)
}

#[derive(Default)]
struct Answer {
    text: String,
    logprobs: Vec<TokenLogprob>,
    embedding: Vec<f32>,
    usage: Usage,
}

fn answer(events: &Receiver<Event>) -> Result<Answer, GenerateError> {
    let mut answer = Answer::default();
    loop {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            Event::Waiting | Event::Prefill { .. } => {}
            Event::Text { text, logprobs } => {
                answer.text.push_str(&text);
                answer.logprobs.extend(logprobs);
            }
            Event::Embedding(vector) => answer.embedding = vector,
            Event::Finished { usage, .. } => return Ok(Answer { usage, ..answer }),
            Event::Failed(error) => return Err(error),
        }
    }
}

fn ask(engine: &Engine, request: Request) -> Answer {
    let (_ticket, events) = submit(engine, request);
    answer(&events).unwrap()
}

/// What goes on once nothing runs any more; it is published after the last event.
fn settled(engine: &Engine) -> Stats {
    let start = Instant::now();
    loop {
        let stats = engine.stats();
        if stats.running + stats.waiting + stats.paused == 0 {
            return stats;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| (at * at + 3 * at + seed) % VOCAB as u32).collect()
}

#[test]
fn a_second_turn_computes_only_what_is_new_whoever_asks() {
    let (engine, seen) = engine(EngineConfig::default(), None);
    let first = prompt(1, 41);
    let answer = ask(&engine, greedy(&first, 10));
    assert_eq!(answer.text, expected(&first, 10, None));
    assert_eq!(answer.usage.cached_tokens, 0);
    let mut second = first.clone();
    second.extend(answer.text.bytes().map(|byte| u32::from(byte - b'a')));
    second.extend([3, 1, 4]);
    let before = seen.lock().unwrap().computed;
    let answer = ask(&engine, Request { key: 9, ..greedy(&second, 5) });
    assert_eq!(answer.text, expected(&second, 5, None));
    // The last token of the first answer was never computed.
    assert_eq!(answer.usage.cached_tokens, 50);
    assert_eq!(seen.lock().unwrap().computed - before, 4 + 4);
    let again = ask(&engine, greedy(&first, 10));
    assert_eq!(again.usage.cached_tokens, 40, "the last token of a prompt is always computed");
    assert_eq!(again.text, expected(&first, 10, None));
}

#[test]
fn requests_that_do_not_fit_together_take_turns_and_all_finish() {
    let config =
        EngineConfig { context_cap: 100, kv_pages: 30, prefill_tokens: 16, ..EngineConfig::default() };
    let (engine, seen) = engine(config, None);
    let asked: Vec<_> = (0..8).map(|seed| (seed, submit(&engine, greedy(&prompt(seed, 40), 50)))).collect();
    for (seed, (_ticket, events)) in &asked {
        assert_eq!(answer(events).unwrap().text, expected(&prompt(*seed, 40), 50, None));
    }
    assert!(seen.lock().unwrap().most_pages <= 30, "{} pages", seen.lock().unwrap().most_pages);
    let stats = settled(&engine);
    assert!(stats.pauses > 0, "the load is hard enough");
    assert_eq!(stats.pages, stats.cached_pages, "only the cache holds pages");
}

#[test]
fn guessing_changes_the_steps_and_not_the_text() {
    let run = |speculate| {
        let (engine, seen) = engine(EngineConfig { speculate, ..EngineConfig::default() }, Some(11));
        let answer = ask(&engine, greedy(&prompt(5, 30), 200));
        drop(engine);
        let steps = seen.lock().unwrap().steps;
        (answer, steps)
    };
    let (plain, plain_steps) = run(false);
    let (guessed, guessed_steps) = run(true);
    assert_eq!(plain.text, expected(&prompt(5, 30), 200, Some(11)));
    assert_eq!(plain.text, guessed.text);
    assert_eq!((plain.usage.accepted_tokens, guessed.usage.completion_tokens), (0, 200));
    assert!(guessed.usage.accepted_tokens > 20, "{:?}", guessed.usage);
    assert!(guessed_steps < plain_steps, "{guessed_steps} {plain_steps}");
}

#[test]
fn logprobs_come_with_the_text() {
    let (engine, _) = engine(EngineConfig::default(), None);
    let answer = ask(&engine, Request { logprobs: Some(2), ..greedy(&[1, 2], 3) });
    assert_eq!(answer.logprobs.len(), 3);
    let sum: f32 = 9f32.exp() + 25.0;
    for entry in &answer.logprobs {
        assert!((entry.logprob - (9.0 - sum.ln())).abs() < 1e-4);
        assert_eq!((entry.top[0].0, entry.top.len()), (entry.token, 2));
    }
}

#[test]
fn an_embedding_is_the_pooled_states_at_length_1() {
    let (engine, _) = engine(EngineConfig { prefill_tokens: 2, ..EngineConfig::default() }, None);
    for (pooling, want) in [(Pooling::Mean, 3.0), (Pooling::First, 1.0), (Pooling::Last, 5.0)] {
        let request =
            Request { task: Task::Embed(pooling), prompt: vec![1, 2, 3, 4, 5], ..Request::default() };
        let answer = ask(&engine, request);
        let length = (want * want + 16.0f32).sqrt();
        assert!((answer.embedding[0] - want / length).abs() < 1e-6, "{pooling:?} {:?}", answer.embedding);
        assert_eq!((answer.usage.prompt_tokens, answer.usage.completion_tokens), (5, 0));
    }
    assert_eq!(settled(&engine).pages, 0);
}

/// Allows one letter after another.
#[derive(Debug, Clone)]
struct Alphabet(u32);

impl Constraint for Alphabet {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        for (token, logit) in logits.iter_mut().enumerate() {
            if token as u32 != self.0 {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.0 += 1;
        if token + 1 == self.0 { Ok(()) } else { Err("another letter was due".to_owned()) }
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_has_the_last_word_once_thinking_is_over() {
    let (engine, _) = engine(EngineConfig::default(), None);
    let constraint = || Some(Box::new(Alphabet(0)) as Box<dyn Constraint>);
    let sampling = Sampling {
        temperature: 0.0,
        logit_bias: vec![(25, 100.0)],
        repetition_penalty: 1.3,
        ..Sampling::default()
    };
    let plain = Request { constraint: constraint(), sampling, ..greedy(&[9], 5) };
    assert_eq!(ask(&engine, plain).text, "abcde");
    // After three tokens of thinking the closing tokens are forced, and then the constraint holds.
    let thinking = Thinking {
        open: "<".to_owned(),
        close: "zz".to_owned(),
        begun: true,
        budget: Some(3),
        closing: vec![25, 25],
    };
    let request = Request { constraint: constraint(), thinking: Some(thinking), ..greedy(&[9], 8) };
    let answer = ask(&engine, request);
    assert_eq!(answer.text, format!("{}zzabc", expected(&[9], 3, None)));
    assert_eq!(answer.usage.thinking_tokens, 5);
}

#[test]
fn a_deadline_ends_what_waits() {
    let (engine, _) = engine(EngineConfig { max_running: 1, ..EngineConfig::default() }, None);
    let (_busy, _events) = submit(&engine, greedy(&[1], 4000));
    let late = Request { deadline: Some(Duration::ZERO), ..greedy(&[2], 3) };
    let (_ticket, events) = submit(&engine, late);
    assert_eq!(answer(&events).err(), Some(GenerateError::DeadlineExceeded(Duration::ZERO)));
}

#[test]
fn a_burst_beyond_the_queue_is_told_how_long_to_wait() {
    let config = EngineConfig { max_running: 2, queue_limit: 3, ..EngineConfig::default() };
    let (engine, _) = engine(config, None);
    let mut taken = Vec::new();
    let mut refused = 0;
    for seed in 0..200 {
        let (sender, events) = channel();
        let sink = Box::new(move |event| drop(sender.send(event)));
        match engine.submit(greedy(&prompt(seed, 10), 20), sink) {
            Ok(ticket) => taken.push((seed, ticket, events)),
            Err(GenerateError::QueueFull { queued, limit: 3, .. }) if queued >= 3 => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(taken.len() + refused, 200);
    assert!(taken.len() >= 5);
    for (seed, _ticket, events) in taken {
        assert_eq!(answer(&events).unwrap().text, expected(&prompt(seed, 10), 20, None));
    }
}
