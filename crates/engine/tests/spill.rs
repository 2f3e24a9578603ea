//! The cold tier, scripted: whatever it does, answers are those of an engine without one.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use lichen_backend::KvPrecision;
use lichen_engine::{ColdTier, Engine, EngineConfig, LeavingPage, TakePage};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{Answer, PAGE, ask, engine_with, expected, greedy, prompt};

/// How a tier fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Takes nothing.
    Write,
    /// Takes two pages of each text.
    ShortWrite,
    /// Takes its time.
    Slow,
    /// Breaks down.
    Panic,
    /// Says that what it has given is not to be trusted.
    Unsound,
    /// Gives pages of another size.
    Malformed,
}

struct Scripted {
    fault: Fault,
    texts: Mutex<BTreeMap<Vec<u32>, Vec<Vec<u8>>>>,
    reads: Mutex<usize>,
}

impl Scripted {
    fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self { fault, texts: Mutex::default(), reads: Mutex::default() })
    }

    fn longest(&self, tokens: &[u32]) -> (usize, Vec<Vec<u8>>) {
        let texts = self.texts.lock().unwrap();
        let common = |text: &Vec<u32>| {
            let same = text.iter().zip(tokens).take_while(|(a, b)| a == b).count();
            same / PAGE
        };
        let found = texts.iter().map(|(text, pages)| (common(text), pages)).max_by_key(|(pages, _)| *pages);
        found.map_or((0, Vec::new()), |(count, pages)| (count * PAGE, pages[..count].to_vec()))
    }
}

impl ColdTier for Scripted {
    fn find(&self, tokens: &[u32]) -> usize {
        self.longest(tokens).0
    }

    fn write(&self, tokens: &[u32], sizes: &[u64], pages: &mut dyn Iterator<Item = LeavingPage>) {
        assert_eq!(sizes, vec![PAGE as u64; tokens.len() / PAGE]);
        let most = match self.fault {
            Fault::Write => return,
            Fault::ShortWrite => 2,
            Fault::Panic => panic!("a scripted fault"),
            _ => usize::MAX,
        };
        if self.fault == Fault::Slow {
            std::thread::sleep(Duration::from_millis(300));
        }
        let pages: Vec<_> = pages.take(most).map(|page| page.bytes).collect();
        self.texts.lock().unwrap().insert(tokens[..pages.len() * PAGE].to_vec(), pages);
    }

    fn forget(&self, tokens: &[u32]) {
        self.texts.lock().unwrap().retain(|text, _| !tokens.starts_with(text));
    }

    fn read(&self, tokens: &[u32], take: &mut TakePage<'_>) -> bool {
        *self.reads.lock().unwrap() += 1;
        let pages = self.longest(tokens).1;
        for page in &pages {
            let page = if self.fault == Fault::Malformed { &page[1..] } else { page };
            match take(KvPrecision::F16, page) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => return false,
            }
        }
        self.fault != Fault::Unsound
    }
}

/// An engine whose cache holds little more than one text.
fn small(tier: &Arc<Scripted>) -> Engine {
    let config =
        EngineConfig { context_cap: 60, kv_pages: 17, prefill_tokens: 16, ..EngineConfig::default() };
    engine_with(config, None, Some(tier.clone())).0
}

/// The answer to a text that others have driven out of the cache.
fn revisit(engine: &Engine) -> Answer {
    for seed in [1, 2, 3] {
        let text = prompt(seed, 41);
        assert_eq!(ask(engine, greedy(&text, 10)).text, expected(&text, 10, None));
    }
    let again = ask(engine, greedy(&prompt(1, 41), 10));
    assert_eq!(again.text, expected(&prompt(1, 41), 10, None));
    again
}

/// Once the texts that left are written.
fn written(tier: &Scripted, count: usize) {
    let start = Instant::now();
    while tier.texts.lock().unwrap().len() < count {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_the_cache_has_given_up_comes_back() {
    let tier = Scripted::new(Fault::None);
    let engine = small(&tier);
    revisit(&engine);
    written(&tier, 2);
    let again = revisit(&engine);
    assert_eq!(again.usage.cached_tokens, 40, "all but the last token of the prompt");
    assert!(*tier.reads.lock().unwrap() > 0);
}

#[test]
fn an_engine_that_ends_writes_what_it_has_and_the_next_begins_warm() {
    let tier = Scripted::new(Fault::None);
    let text = prompt(1, 41);
    ask(&small(&tier), greedy(&text, 10));
    assert_eq!(tier.texts.lock().unwrap().len(), 1);
    let warm = ask(&small(&tier), greedy(&text, 10));
    assert_eq!((warm.usage.cached_tokens, warm.text), (40, expected(&text, 10, None)));
}

#[test]
fn a_session_that_is_dropped_leaves_the_cold_tier_too() {
    let tier = Scripted::new(Fault::None);
    let mut asked = greedy(&prompt(1, 41), 10);
    asked.session = Some(7);
    {
        ask(&small(&tier), asked.clone());
        ask(&small(&tier), greedy(&prompt(2, 41), 10));
    }
    assert_eq!(tier.texts.lock().unwrap().len(), 2, "both engines have written when they ended");
    let engine = small(&tier);
    ask(&engine, asked);
    assert!(engine.drop_session(7).is_some());
    drop(engine);
    let left: Vec<_> = tier.texts.lock().unwrap().keys().cloned().collect();
    assert_eq!(left.len(), 1);
    assert!(left[0].starts_with(&prompt(2, 41)[..PAGE]), "that of the other is left");
}

#[test]
fn short_texts_are_not_worth_a_write() {
    let tier = Scripted::new(Fault::None);
    ask(&small(&tier), greedy(&prompt(1, PAGE), 2));
    assert!(tier.texts.lock().unwrap().is_empty());
}

#[test]
fn a_tier_that_fails_changes_no_answer() {
    for fault in [Fault::Write, Fault::ShortWrite, Fault::Panic, Fault::Unsound, Fault::Malformed] {
        let tier = Scripted::new(fault);
        {
            let engine = small(&tier);
            revisit(&engine);
            revisit(&engine);
        }
        let warm = revisit(&small(&tier));
        let most = if fault == Fault::ShortWrite { 2 * PAGE } else { 0 };
        assert!(warm.usage.cached_tokens <= most, "{fault:?} {}", warm.usage.cached_tokens);
    }
}

#[test]
fn a_slow_tier_holds_no_step_up() {
    let tier = Scripted::new(Fault::Slow);
    let engine = small(&tier);
    let start = Instant::now();
    revisit(&engine);
    assert!(start.elapsed() < Duration::from_millis(300), "{:?}", start.elapsed());
}
