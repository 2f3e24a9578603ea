//! What a constraint costs per token: prints microseconds per mask, accept and fork over a vocabulary of 150
//! 000 tokens. Run with `cargo run --release -p lichen-constraint --example mask_cost`.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]
#![allow(clippy::unwrap_used, reason = "there is nobody to handle an error")]

use lichen_constraint::{Grammar, GrammarCompiler, TokenText, Vocabulary};
use lichen_generate::Constraint;
use serde_json::json;
use std::time::{Duration, Instant};

const TOKENS: usize = 150_000;
const END: u32 = 256;
const ANSWERS: u64 = 20;
const SYLLABLES: [&str; 16] =
    ["a", "en", "th", "er", "in", "qu", "st", "ou", "al", "1", "7", "_", "lo", "mi", "re", "co"];

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// All bytes, an end token, and words of syllables with a space, a quote or a bracket here and there.
fn vocabulary() -> Vocabulary {
    let mut random = Random(1);
    let mut tokens: Vec<TokenText> = (0..=u8::MAX).map(|byte| TokenText::Bytes(vec![byte])).collect();
    tokens.push(TokenText::Control("<end>".to_owned()));
    while tokens.len() < TOKENS {
        let before = ["", " ", "", " ", "\"", "{\"", ", \"", "("][random.below(8)];
        let word: String = (0..1 + random.below(4)).map(|_| SYLLABLES[random.below(16)]).collect();
        let after = ["", "", "", "", "", "", "\"", "\":", "\",", ".", ")", "é"][random.below(12)];
        tokens.push(TokenText::Bytes(format!("{before}{word}{after}").into_bytes()));
    }
    Vocabulary { tokens, end: vec![END] }
}

#[derive(Default)]
struct Costs {
    steps: u32,
    mask: Duration,
    longest: Duration,
    accept: Duration,
    fork: Duration,
}

fn time<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    *total += begin.elapsed();
    result
}

/// Writes one answer by chance; closing characters come first when it gets long.
fn answer(mut constraint: Box<dyn Constraint>, random: &mut Random, costs: &mut Costs) {
    let mut logits = vec![0.0; TOKENS];
    for step in 0..200 {
        logits.fill(0.0);
        let mut mask = Duration::ZERO;
        time(&mut mask, || constraint.mask(&mut logits)).unwrap();
        costs.mask += mask;
        costs.longest = costs.longest.max(mask);
        let closing = [END, u32::from(b'"'), u32::from(b'}'), u32::from(b']')];
        let closing = closing.into_iter().find(|&token| step > 40 && logits[token as usize] == 0.0);
        let token = closing.unwrap_or_else(|| {
            let start = random.below(TOKENS);
            let mut order = (start..TOKENS).chain(0..start);
            order.find(|&token| logits[token] == 0.0).unwrap() as u32
        });
        drop(time(&mut costs.fork, || constraint.fork()));
        time(&mut costs.accept, || constraint.accept(token)).unwrap();
        costs.steps += 1;
        if token == END {
            break;
        }
    }
}

fn main() {
    let mut preparing = Duration::ZERO;
    let compiler = time(&mut preparing, || GrammarCompiler::new(vocabulary())).unwrap();
    println!("vocabulary of {TOKENS} tokens: {preparing:.0?}");
    let person = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"}, "role": {"enum": ["admin", "author", "reader"]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 8},
        "address": {"type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            "required": ["street", "city"], "additionalProperties": false}},
        "required": ["name", "age", "role", "tags"], "additionalProperties": false});
    let gbnf = "root ::= \"[\" ws value (\",\" ws value)* \"]\" ws\nvalue ::= root | string\n\
        string ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]* \"\\\"\" ws\nws ::= [ \\n]*";
    for (name, grammar) in [
        ("schema", Grammar::JsonSchema(person)),
        ("object", Grammar::JsonObject),
        ("GBNF", Grammar::Gbnf(gbnf.to_owned())),
    ] {
        let mut compiling = Duration::ZERO;
        time(&mut compiling, || compiler.compile(&grammar)).unwrap();
        let (mut again, mut costs) = (Duration::ZERO, Costs::default());
        for seed in 0..ANSWERS {
            let constraint = time(&mut again, || compiler.compile(&grammar)).unwrap();
            answer(constraint, &mut Random(seed), &mut costs);
        }
        let each = |total: Duration| total / costs.steps;
        println!(
            "{name}: compile {compiling:.1?}, again {:.1?}; per token over {}:",
            again / ANSWERS as u32,
            costs.steps
        );
        println!(
            "  mask {:.1?} (longest {:.1?}), accept {:.2?}, fork {:.2?}",
            each(costs.mask),
            costs.longest,
            each(costs.accept),
            each(costs.fork)
        );
    }
}
