//! Reuse, pausing and guessing with a scripted model.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use lichen_engine::{Engine, EngineConfig};
use lichen_generate::{
    Constraint, Generate, GenerateError, Pooling, Request, Sampling, Stats, Task, Thinking,
};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{answer, ask, engine, expected, greedy, prompt, submit};

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
