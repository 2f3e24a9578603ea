//! Templates and vocabularies that mean harm: refused, or done with at once, on a small stack and in little memory.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::{Duration, Instant};

use lichen_text::{ChatTemplate, EncodeOptions, TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use serde_json::{Map, Value, json};

/// Stack of the threads that a server renders on.
const STACK: usize = 2 << 20;
/// Longest that refusing a template may take; the fuel is for a fraction of it.
const LIMIT: Duration = Duration::from_secs(10);

fn render(source: &str, messages: Value) -> Result<String, String> {
    let source = source.to_owned();
    let work = move || {
        let template = ChatTemplate::new(&source, "<s>", "</s>").map_err(|error| error.to_string())?;
        template.render(&messages, None, true, &Map::new()).map_err(|error| error.to_string())
    };
    let start = Instant::now();
    let result = std::thread::Builder::new().stack_size(STACK).spawn(work).unwrap().join().unwrap();
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    result
}

fn hello() -> Value {
    json!([{"role": "user", "content": "hello"}])
}

#[test]
fn templates_that_do_not_end_run_out_of_fuel() {
    let loops = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    let doubling = "{% set ns = namespace(x='aaaaaaaa') %}\
        {% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let output = "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}";
    let json = "{% set ns = namespace(x=[1]) %}\
        {% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    for source in [loops, doubling, output, json] {
        let error = render(source, hello()).expect_err(source);
        assert!(error.contains("fuel"), "{source}: {error}");
    }
}

#[test]
fn templates_do_not_exhaust_the_stack() {
    let recursive = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}";
    let cyclic = "{% set ns = namespace() %}{% set ns.self = ns %}";
    let filters = ["tojson", "pprint", "string", "list", "items", "length", "tojson(indent=64)"];
    let mut sources: Vec<String> = filters.map(|filter| format!("{cyclic}{{{{ ns | {filter} }}}}")).to_vec();
    sources.push(format!("{cyclic}{{{{ ns }}}}{{{{ ns == ns }}}}"));
    sources.push(recursive.to_owned());
    for (open, close) in [("(", ")"), ("[", "]"), ("not ", ""), ("-", ""), ("1 + ", ""), ("{1:", "}")] {
        sources.push(format!("{{{{ {}1{} }}}}", open.repeat(50_000), close.repeat(50_000)));
    }
    for (open, close) in [("{% if 1 %}", "{% endif %}"), ("{% for i in [1] %}", "{% endfor %}")] {
        sources.push(open.repeat(20_000) + &close.repeat(20_000));
    }
    for (first, part) in [("1", "+1"), ("a", ".a"), ("a", "()"), ("a", "[0]"), ("a", "|e"), ("1", " is odd")]
    {
        sources.push(format!("{{{{ {first}{} }}}}", part.repeat(30_000)));
    }
    sources.push(format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000)));
    let pair = "{% set a = namespace() %}{% set b = namespace() %}{% set a.x = b %}{% set b.x = a %}";
    sources.push(format!("{pair}{{{{ a == b }}}}{{{{ [a, b] | sort }}}}"));
    sources.push(format!("{cyclic}{{% set ns.x | default([ns], true) %}}{{% endset %}}{{{{ ns }}}}"));
    for step in ["[ns.x]", "ns.x * 1", "ns.x[0:]", "ns.x | reverse", "ns.x | batch(1)", "{1: ns.x}"] {
        let deeper = format!("{{% for i in range(90000) %}}{{% set ns.x = {step} %}}{{% endfor %}}");
        sources.push(format!("{{% set ns = namespace(x=[1]) %}}{deeper}{{{{ ns.x }}}}"));
    }
    // Whether it is an error does not matter here; coming back does.
    for source in &sources {
        drop(render(source, hello()));
    }
    let deep = (0..100).fold(json!("x"), |inner, _| json!([inner]));
    assert!(render("{{ messages | tojson }}", deep).is_ok());
}

#[test]
fn long_conversations_have_fuel() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}<u>{% elif m.role == 'assistant' %}<a>{% endif %}\
        {{ m.content | trim }}{{ m | tojson }}{% if loop.last %}<end>{% endif %}{% endfor %}";
    let messages: Vec<Value> =
        (0..20_000).map(|i| json!({"role": "user", "content": format!("{i}")})).collect();
    assert!(render(source, messages.into()).unwrap().ends_with("<end>"));
    let long = json!([{"role": "user", "content": "word ".repeat(1 << 20)}]);
    assert!(render(source, long).unwrap().ends_with("<end>"));
}

fn vocabulary<'v>(model: VocabularyModel, tokens: &[&'v str]) -> Vocabulary<'v> {
    Vocabulary {
        model,
        pre: String::new(),
        tokens: tokens.iter().map(|&token| token.into()).collect(),
        scores: vec![f32::NAN; tokens.len()],
        kinds: vec![TokenKind::Normal; tokens.len()],
        merges: Vec::new(),
        bos: None,
        eos: None,
        eot: None,
        unk: None,
        add_bos: true,
        add_eos: true,
        add_space_prefix: true,
        strip_after_control: true,
    }
}

#[test]
fn odd_vocabularies_encode_in_time() {
    let text = "a".repeat(1 << 20);
    for model in [VocabularyModel::ByteLevelBpe, VocabularyModel::SentencePiece] {
        let odd = ["", "a", "aa", "aa", "aaaa", "<0xZZ>", "a b"];
        let tokenizer = Tokenizer::new(vocabulary(model, &odd)).unwrap();
        let start = Instant::now();
        let ids = tokenizer.encode(&text, EncodeOptions::default());
        assert!(ids.iter().all(|&id| (id as usize) < odd.len()));
        assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    }
}

#[test]
fn merges_of_nothing_are_no_merges() {
    let mut broken = vocabulary(VocabularyModel::ByteLevelBpe, &["", "a"]);
    broken.merges = vec![" ".into(), "a ".into(), " a".into()];
    if let Ok(tokenizer) = Tokenizer::new(broken) {
        assert_eq!(tokenizer.encode("aaa", EncodeOptions::default()), [1, 1, 1]);
    }
}
