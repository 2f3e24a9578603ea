//! Grammars that want to exhaust the machine are refused or compiled in bounded time.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod common;

use common::{allowed, compiler};
use lichen_constraint::{Grammar, GrammarCompiler};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Far above what any of them needs on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Compiles it, takes some steps if that worked, and says how long it took.
fn check(compiler: &GrammarCompiler, name: &str, grammar: &Grammar) {
    let begin = Instant::now();
    let outcome = match compiler.compile(grammar) {
        Ok(mut constraint) => {
            let mut steps = 0;
            let mut logits = vec![0.0; common::vocabulary().tokens.len()];
            while steps < 20 && constraint.mask(&mut logits).is_ok() {
                let next = allowed(constraint.as_mut());
                if constraint.accept(next[next.len() / 2]).is_err() {
                    break;
                }
                steps += 1;
            }
            format!("compiled, {steps} steps")
        }
        Err(refused) => refused.to_string().chars().take(100).collect(),
    };
    let took = begin.elapsed();
    eprintln!("{name}: {took:.1?}, {outcome}");
    assert!(took < PATIENCE, "{name} took {took:?}");
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({"type": "integer"}), |inner, _| json!({"items": inner}))
}

fn chain(length: usize) -> Value {
    let mut definitions: serde_json::Map<String, Value> = (0..length)
        .map(|step| (format!("d{step}"), json!({"$ref": format!("#/$defs/d{}", step + 1)})))
        .collect();
    definitions.insert(format!("d{length}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

fn options(count: usize) -> Vec<Value> {
    let option =
        |number: usize| json!({"type": "object", "properties": {format!("p{number}"): {"const": number}}});
    (0..count).map(option).collect()
}

#[test]
fn schemas() {
    let cases = [
        ("deep", nested(60)),
        ("too deep", nested(2_000)),
        ("chain of references", chain(50)),
        ("long chain of references", chain(4_000)),
        (
            "references in a circle",
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        ("itself", json!({"$ref": "#"})),
        ("never ends", json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})),
        ("itself and more", json!({"allOf": [{"$ref": "#"}], "type": "object"})),
        (
            "trees intersected",
            json!({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {
            "a": {"properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/b"}}},
            "b": {"properties": {"x": {"$ref": "#/$defs/b"}, "y": {"$ref": "#/$defs/a"}}}}}),
        ),
        ("many options", json!({"anyOf": options(1_500)})),
        ("many exclusive options", json!({"oneOf": options(1_500)})),
        ("options times options", json!({"allOf": [{"anyOf": options(700)}, {"anyOf": options(700)}]})),
        (
            "options to the third",
            json!({"allOf": [{"anyOf": options(100)}, {"anyOf": options(100)}, {"anyOf": options(100)}]}),
        ),
        (
            "long enum",
            json!({"enum": (0..4_000).map(|number| format!("value {number}")).collect::<Vec<_>>()}),
        ),
        (
            "many properties",
            json!({"properties": (0..4_000).map(|number| (format!("p{number}"), json!({"type": "null"})))
            .collect::<serde_json::Map<_, _>>(), "additionalProperties": false}),
        ),
        (
            "too many properties",
            json!({"properties": (0..9_000).map(|number| (format!("p{number}"), json!(true)))
            .collect::<serde_json::Map<_, _>>()}),
        ),
        ("long array", json!({"items": {"type": "integer"}, "maxItems": 100_000, "minItems": 99_999})),
        (
            "arrays of arrays",
            json!({"maxItems": 90_000, "minItems": 80_000, "items": {"maxItems": 90_000, "minItems": 80_000,
            "items": {"maxItems": 90_000, "minItems": 80_000}}}),
        ),
        ("endless array", json!({"maxItems": 1e12})),
        ("long string", json!({"type": "string", "minLength": 99_000, "maxLength": 100_000})),
        ("nested repetition", json!({"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}b$"})),
        ("exponential automaton", json!({"type": "string", "pattern": "(a|b)*a(a|b){200}c"})),
        (
            "patterns intersected",
            json!({"allOf": [{"type": "string", "pattern": "(a.{50}b|c.{70}d)*e"},
            {"pattern": "(b.{60}a|d.{40}c)+f"}, {"pattern": "^(ab|cd|.{31})*$", "minLength": 1_000}]}),
        ),
        ("Unicode repeated", json!({"type": "string", "pattern": "^(\\p{L}{1,500}\\p{N}{1,500}){1,500}$"})),
        (
            "deep groups",
            json!({"type": "string", "pattern": format!("{}a{}", "(".repeat(2_000), ")".repeat(2_000))}),
        ),
        (
            "many patterns",
            json!({"patternProperties": (0..200).map(|number| (format!("^p{number}(a|b)*$"), json!(true)))
            .collect::<serde_json::Map<_, _>>()}),
        ),
        (
            "wide number",
            json!({"type": "number", "minimum": -9e15, "maximum": 0.000000000000001, "multipleOf": 3}),
        ),
        ("large text", json!({"description": "x".repeat(1 << 20)})),
    ];
    let compiler = compiler();
    for (name, schema) in cases {
        check(&compiler, name, &Grammar::JsonSchema(schema));
    }
}

#[test]
fn lark_grammars() {
    let terminals: String = (0..9_000).map(|number| format!("T{number}: T{} \"a\"\n", number + 1)).collect();
    let rules: String = (0..9_000).map(|number| format!("r{number}: r{}\n", number + 1)).collect();
    let doubled: String = (0..60).map(|number| format!("T{number}: T{0} T{0}\n", number + 1)).collect();
    let cases = [
        ("chain of terminals", format!("start: T0\n{terminals}T9000: \"b\"\n")),
        ("chain of rules", format!("start: r0\n{rules}r9000: \"b\"\n")),
        ("doubled terminals", format!("start: T0\n{doubled}T60: \"b\"\n")),
        ("doubled rules", format!("start: t0\n{}t60: \"b\"\n", doubled.replace('T', "t"))),
        ("terminal in a circle", "start: A\nA: B\nB: A\n".to_owned()),
        ("rule in a circle", "start: a\na: b\nb: a\n".to_owned()),
        ("ambiguous", "start: a\na: a a | \"x\" | \"\"\n".to_owned()),
        ("large repetitions", "start: ((\"a\"{1,9000}){1,9000}){1,9000}\n".to_owned()),
        ("large terminal repetitions", "start: T\nT: ((\"a\" | \"aa\"){1,9000} \"b\"){1,9000}\n".to_owned()),
        ("deep", "(".repeat(200_000)),
        ("deep in disguise", format!("start: /\"/ {}", "(".repeat(200_000))),
        (
            "nested grammars",
            "start: ".to_owned() + &"%lark { start: ".repeat(90) + "\"a\"" + &" }".repeat(90),
        ),
        ("deep expression", format!("start: /{}a{}/", "(".repeat(20_000), ")".repeat(20_000))),
        ("nothing", String::new()),
        ("no start", "a: \"x\"".to_owned()),
        ("binary", "\0\u{1}\u{fffd}".to_owned()),
        (
            "negations",
            "start: T\nT: ".to_owned() + &"~(/[a-z]*b.{20}/ & ".repeat(40) + "/x/" + &")".repeat(40),
        ),
    ];
    let compiler = compiler();
    for (name, source) in cases {
        check(&compiler, name, &Grammar::Lark(source));
    }
}

#[test]
fn gbnf_grammars() {
    let rules: String = (0..3_000).map(|number| format!("r{number} ::= r{}\n", number + 1)).collect();
    let doubled: String = (0..60).map(|number| format!("r{number} ::= r{0} r{0}\n", number + 1)).collect();
    let cases = [
        ("chain", format!("root ::= r0\n{rules}r3000 ::= \"a\"\n")),
        ("recursive chain", format!("root ::= r0\n{rules}r3000 ::= \"a\" | root\n")),
        ("doubled", format!("root ::= r0\n{doubled}r60 ::= \"a\"\n")),
        ("recursive and doubled", format!("root ::= r0\n{doubled}r60 ::= \"a\" | root \"b\"\n")),
        ("deep", format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000))),
        ("repeated", format!("root ::= {}\"a\"{}", "(".repeat(90), "){1,10000}".repeat(90))),
        ("nullable", format!("root ::= {}\"a\"{}", "(".repeat(90), ")*".repeat(90))),
        ("nullable and recursive", format!("root ::= {}root \"a\"{}", "(".repeat(90), ")*".repeat(90))),
        ("long", format!("root ::= \"{}\"", "a".repeat(100_000))),
        ("long literal", format!("root ::= \"{}\"", "a".repeat(60_000))),
        ("circle", "root ::= a\na ::= root".to_owned()),
    ];
    let compiler = compiler();
    for (name, source) in cases {
        check(&compiler, name, &Grammar::Gbnf(source));
    }
}

/// Pieces of both grammar formats, and of broken ones.
const WORDS: [&str; 40] = [
    "root ",
    "start",
    "A",
    "b",
    "::= ",
    ": ",
    "\n",
    "| ",
    "(",
    ")",
    "*",
    "+",
    "?",
    "{2,3}",
    "{",
    "}",
    "[a-c]",
    "[^",
    "]",
    "é",
    "\"x\"",
    "\"",
    "\\",
    "/a/",
    "/",
    "<a>",
    "<[3]>",
    "%json {}",
    "%json",
    "%ignore ",
    "%regex",
    "%lark {",
    "~",
    "&",
    "@a",
    "#",
    "%llguidance {}",
    "..",
    "->",
    "%if ",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_text_is_compiled_or_refused(
        words in prop::collection::vec(prop_oneof![
            prop::sample::select(WORDS.to_vec())
                .prop_map(str::to_owned),
            "\\PC",
        ], 0..25),
    ) {
        for start in ["", "root ::= ", "start: "] {
            // Either outcome is fine; a panic is not.
            let _ = compiler().compile(&Grammar::from_text(&format!("{start}{}", words.concat())));
        }
    }

    #[test]
    fn any_pattern_is_compiled_or_refused(
        pattern in "([a\\\\dwsbpuxc(){}\\[\\]*+?.^$|,0-9:<=!-]|\\PC){0,20}",
    ) {
        let _ = compiler().compile(&Grammar::JsonSchema(json!({"type": "string", "pattern": pattern})));
    }
}
