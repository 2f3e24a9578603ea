//! The step loop with a scripted model: the next token is always the last one plus one.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_backend::{Executor, ExecutorError};
use lichen_engine::{Engine, EngineConfig};
use lichen_generate::{Event, FinishReason, Generate, GenerateError, Request, Sampling, Ticket, TurnSize};
use lichen_op::Batch;
use lichen_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const VOCAB: usize = 27;
const END: u32 = 26;

/// What the model was asked, and what it holds.
#[derive(Default)]
struct Seen {
    steps: Vec<Vec<usize>>,
    held: HashMap<u64, usize>,
}

struct Counting {
    seen: Arc<Mutex<Seen>>,
    fails: bool,
}

impl Executor for Counting {
    fn vocab(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        if self.fails {
            return Err(ExecutorError("scripted".to_owned()));
        }
        let mut seen = self.seen.lock().unwrap();
        seen.steps.push(batch.sequences.iter().map(|span| span.len).collect());
        for span in &batch.sequences {
            let held = seen.held.entry(span.sequence).or_default();
            assert!(*held >= span.past, "a sequence goes on where it was");
            *held = span.past + span.len;
        }
        let next = |row: &usize| (batch.tokens[*row] as usize + 1) % VOCAB;
        let row = |token: usize| (0..VOCAB).map(move |i| if i == token { 9.0 } else { 0.0 });
        *logits = batch.outputs.iter().map(next).flat_map(row).collect();
        Ok(())
    }

    fn drop_sequence(&mut self, sequence: u64) {
        self.seen.lock().unwrap().held.remove(&sequence);
    }
}

fn engine(config: EngineConfig, fails: bool) -> (Engine, Arc<Mutex<Seen>>) {
    let mut tokens: Vec<_> = ('a'..='z').map(|letter| letter.to_string().into()).collect();
    tokens.push("<end>".into());
    let mut kinds = vec![TokenKind::Normal; 26];
    kinds.push(TokenKind::Control);
    let vocabulary = Vocabulary {
        model: VocabularyModel::ByteLevelBpe,
        pre: String::new(),
        scores: Vec::new(),
        merges: Vec::new(),
        bos: None,
        eos: Some(END),
        eot: None,
        unk: None,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        strip_after_control: false,
        tokens,
        kinds,
    };
    let seen = Arc::new(Mutex::new(Seen::default()));
    let executor = Counting { seen: seen.clone(), fails };
    let tokenizer = Arc::new(Tokenizer::new(vocabulary).unwrap());
    (Engine::start(Box::new(executor), tokenizer, config).unwrap(), seen)
}

fn greedy(prompt: &[u32], max_tokens: Option<usize>, stop: &[&str]) -> Request {
    Request {
        prompt: prompt.to_vec(),
        max_tokens,
        stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        ..Request::default()
    }
}

fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<Event>) {
    let (sender, events) = channel();
    let sink = Box::new(move |event| drop(sender.send(event)));
    (engine.submit(request, sink).unwrap(), events)
}

/// The text and how it ended.
fn answer(events: &Receiver<Event>) -> (String, Result<(FinishReason, usize), GenerateError>) {
    let mut text = String::new();
    loop {
        match events.recv_timeout(Duration::from_secs(20)).unwrap() {
            Event::Waiting | Event::Prefill { .. } | Event::Embedding(_) => {}
            Event::Text { text: more, .. } => text.push_str(&more),
            Event::Finished { reason, usage } => return (text, Ok((reason, usage.completion_tokens))),
            Event::Failed(error) => return (text, Err(error)),
        }
    }
}

#[test]
fn an_answer_ends_at_the_end_token_at_its_length_or_at_a_stop_text() {
    let (engine, seen) = engine(EngineConfig::default(), false);
    for (request, text, end) in [
        (greedy(&[22], None, &[]), "xyz", (FinishReason::Stop, 4)),
        (greedy(&[0], Some(3), &[]), "bcd", (FinishReason::Length, 3)),
        (greedy(&[0], None, &["ef", "zz"]), "bcd", (FinishReason::StopText(0), 5)),
        (greedy(&[0], Some(3), &["de"]), "bcd", (FinishReason::Length, 3)),
        (greedy(&[0], Some(0), &[]), "", (FinishReason::Length, 0)),
    ] {
        let (_ticket, events) = submit(&engine, request);
        assert_eq!(answer(&events), (text.to_owned(), Ok(end)));
    }
    drop(engine);
    assert!(seen.lock().unwrap().held.is_empty(), "the state of every sequence was dropped");
}

#[test]
fn a_prompt_is_worked_on_in_pieces_and_logits_are_wanted_only_at_its_end() {
    let (engine, seen) = engine(EngineConfig { prefill_tokens: 4, ..EngineConfig::default() }, false);
    let (_ticket, events) = submit(&engine, greedy(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 4], Some(2), &[]));
    assert_eq!(answer(&events).0, "fg");
    drop(engine);
    assert_eq!(seen.lock().unwrap().steps, [[4], [4], [2], [1]]);
}

#[test]
fn many_requests_share_steps_and_get_their_own_answers() {
    let (engine, seen) = engine(EngineConfig::default(), false);
    let requests: Vec<_> = (0..20).map(|i| submit(&engine, greedy(&[i % 5, i % 7], Some(8), &[]))).collect();
    for (i, (_ticket, events)) in requests.iter().enumerate() {
        let want: String = (1..=8u8).map(|step| char::from(b'a' + i as u8 % 7 + step)).collect();
        assert_eq!(answer(events), (want, Ok((FinishReason::Length, 8))));
    }
    drop(engine);
    assert!(seen.lock().unwrap().steps.iter().all(|step| step.len() <= 8), "no more run than allowed");
}

#[test]
fn dropping_the_ticket_ends_the_request() {
    let (engine, _) = engine(EngineConfig { context_cap: usize::MAX, ..EngineConfig::default() }, false);
    let endless = Request { ignore_end: true, ..greedy(&[0], None, &[]) };
    let (ticket, events) = submit(&engine, endless);
    events.recv_timeout(Duration::from_secs(20)).unwrap();
    drop(ticket);
    let (_, end) = answer(&events);
    assert_eq!(end.unwrap().0, FinishReason::Cancelled);
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let config = EngineConfig { context_cap: 8, ..EngineConfig::default() };
    let (engine, _) = engine(config, false);
    let refused = |request| engine.submit(request, Box::new(|_| ())).unwrap_err();
    assert!(refused(greedy(&[], None, &[])).to_string().starts_with("prompt: it has no tokens"));
    assert!(refused(greedy(&[99], None, &[])).to_string().contains("token 99"));
    let size = TurnSize { prompt_tokens: 2, requested_tokens: 7, context_cap: 8, ..TurnSize::default() };
    assert_eq!(refused(greedy(&[1, 2], Some(7), &[])), GenerateError::ContextOverBudget(Box::new(size)));
}

#[test]
fn a_failing_model_fails_the_request_and_not_the_engine() {
    let (engine, _) = engine(EngineConfig::default(), true);
    for _ in 0..2 {
        let (_ticket, events) = submit(&engine, greedy(&[0], Some(3), &[]));
        assert!(matches!(answer(&events).1, Err(GenerateError::Engine(text)) if text.contains("scripted")));
    }
}
