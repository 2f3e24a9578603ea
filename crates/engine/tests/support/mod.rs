//! A scripted model that stores its tokens in shared pages: what it says next depends on every token before, so state
//! that is mixed up changes the text.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "shared by several test programs")]

use lichen_backend::{Executor, ExecutorError, KvPrecision, PageError, PageId};
use lichen_engine::{ColdTier, Engine, EngineConfig};
use lichen_generate::{Event, Generate, GenerateError, Request, Sampling, Ticket, TokenLogprob, Usage};
use lichen_op::Batch;
use lichen_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const VOCAB: usize = 26;
pub const PAGE: usize = 4;

#[derive(Debug, Clone)]
pub struct Page {
    name: Arc<u64>,
    tokens: Vec<u32>,
}

#[derive(Default)]
pub struct Seen {
    pub computed: usize,
    pub steps: usize,
    pub most_pages: usize,
}

/// The next token is a hash of all before; with `period` the text repeats itself.
pub struct Paged {
    period: Option<usize>,
    sequences: BTreeMap<u64, Vec<Page>>,
    held: BTreeMap<u64, (Page, usize)>,
    next: u64,
    seen: Arc<Mutex<Seen>>,
}

pub fn model(tokens: &[u32], period: Option<usize>) -> u32 {
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

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        logits.clear();
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
        Ok(())
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

    fn page_size(&self, page: PageId) -> u64 {
        self.held[&page.0].0.tokens.len() as u64
    }

    fn export_page(&self, page: PageId) -> Option<(KvPrecision, Vec<u8>)> {
        let tokens = &self.held.get(&page.0)?.0.tokens;
        Some((KvPrecision::F16, tokens.iter().map(|&token| token as u8).collect()))
    }

    fn import_page(&mut self, precision: KvPrecision, bytes: &[u8]) -> Result<PageId, PageError> {
        if bytes.len() != PAGE {
            return Err(PageError::Length { precision, got: bytes.len(), needed: PAGE as u64 });
        }
        let page = Page { tokens: bytes.iter().map(|&byte| byte.into()).collect(), ..self.fresh() };
        let name = *page.name;
        self.held.insert(name, (page, 1));
        Ok(PageId(name))
    }
}

/// Every token is visible text, and none ends an answer.
pub fn tokenizer(tokens: Vec<String>) -> Arc<Tokenizer> {
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
        kinds: vec![TokenKind::Normal; tokens.len()],
        tokens: tokens.into_iter().map(Into::into).collect(),
    };
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

pub fn engine(config: EngineConfig, period: Option<usize>) -> (Engine, Arc<Mutex<Seen>>) {
    engine_with(config, period, None)
}

pub fn engine_with(
    config: EngineConfig,
    period: Option<usize>,
    tier: Option<Arc<dyn ColdTier>>,
) -> (Engine, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (sequences, held) = (BTreeMap::new(), BTreeMap::new());
    let executor = Paged { period, sequences, held, next: 0, seen: seen.clone() };
    let tokenizer = tokenizer(('a'..='z').map(String::from).collect());
    (Engine::start_placed(Box::new(executor), tokenizer, config, None, tier).unwrap(), seen)
}

pub fn greedy(prompt: &[u32], max_tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    }
}

/// What the model says after a prompt.
pub fn expected(prompt: &[u32], count: usize, period: Option<usize>) -> String {
    let mut tokens = prompt.to_vec();
    (0..count).for_each(|_| tokens.push(model(&tokens, period)));
    tokens[prompt.len()..].iter().map(|&token| char::from(b'a' + token as u8)).collect()
}

pub fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<Event>) {
    let (sender, events) = channel();
    (engine.submit(request, Box::new(move |event| drop(sender.send(event)))).unwrap(), events)
}

#[derive(Default)]
pub struct Answer {
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
    pub embedding: Vec<f32>,
    pub usage: Usage,
}

pub fn answer(events: &Receiver<Event>) -> Result<Answer, GenerateError> {
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

pub fn ask(engine: &Engine, request: Request) -> Answer {
    let (_ticket, events) = submit(engine, request);
    answer(&events).unwrap()
}

pub fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| (at * at + 3 * at + seed) % VOCAB as u32).collect()
}
