//! Damaged model files: each is refused in one line that names the file and the fault, at once and in little memory.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/gguf.rs"]
mod gguf;
mod support;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use gguf::Gguf;
use lichen_format::{Array, Strings, Value};
use nix::sys::resource::{UsageWho, getrusage};
use support::{lichen, model};

/// Longest a refusal may take.
const LIMIT: Duration = Duration::from_secs(1);
/// Tries before a slow one counts: the machine may be busy.
const TRIES: usize = 3;
/// When a program counts as hanging.
const HANGS: Duration = Duration::from_secs(30);
/// Most memory that a refusal may take, in KiB.
const MEMORY: i64 = 64 << 10;

/// A damaged file, and part of the message that tells what is wrong.
struct Case(&'static str, Vec<u8>, &'static str);

fn valid() -> Gguf {
    Gguf::read(&model("llama/model-q8_0.gguf"))
}

fn set(key: &str, value: Value) -> Vec<u8> {
    valid().set(key, value).write()
}

fn u32(key: &str, value: u32) -> Vec<u8> {
    set(key, Value::U32(value))
}

fn strings(items: &[&str]) -> Value {
    Value::Array(Array::String(items.iter().collect()))
}

/// Ends in every section of the file, and starts that are none.
fn cut() -> Vec<Case> {
    let whole = valid().write();
    let (metadata, header) = (valid().metadata().len(), valid().header().len());
    let cut = |len: usize| whole[..len].to_vec();
    let mut magic = valid();
    magic.magic = *b"GGML";
    vec![
        Case("empty", vec![], "truncated: magic number"),
        Case("cut in the version", cut(6), "truncated: version"),
        Case("cut in the counts", cut(20), "truncated: number of metadata pairs"),
        Case("cut in the metadata", cut(metadata / 2), "bytes left can't hold them"),
        Case("cut before the tensors", cut(metadata), "bytes left can't hold them"),
        Case("cut in the tensors", cut(header - 3), "truncated: tensor offset"),
        Case("cut before the data", cut(header), "truncated: tensor"),
        Case("cut in the data", cut(whole.len() - 100), "truncated: tensor"),
        Case("wrong magic", magic.write(), "not a GGUF file"),
        Case("a web page", b"<!DOCTYPE html><html></html>".to_vec(), "not a GGUF file"),
    ]
}

/// Numbers near 2^64, and structure that no writer makes.
fn structure() -> Vec<Case> {
    let counts = |tensors, pairs| {
        let mut file = valid();
        (file.tensor_count, file.pair_count) = (tensors, pairs);
        file.write()
    };
    let norm = "output_norm.weight";
    let nested = (0..1000).fold(Array::String(Strings::default()), |inner, _| Array::Array(vec![inner]));
    let mut long_key = valid().metadata()[..24].to_vec();
    long_key.extend(u64::MAX.to_le_bytes());
    long_key.resize(4096, 0);
    let mut twice = valid();
    twice.pairs.push(twice.pairs[0].clone());
    let mut doubled = valid();
    doubled.tensors[1].name = doubled.tensors[0].name.clone();
    let shape = |shape: Vec<u64>| valid().tensor(norm, |tensor| tensor.shape = shape).write();
    let offset = |offset| valid().tensor(norm, |tensor| tensor.offset = Some(offset)).write();
    vec![
        Case("2^64 tensors", counts(Some(u64::MAX), None), "18446744073709551615 tensors"),
        Case("2^64 pairs", counts(None, Some(u64::MAX)), "18446744073709551615 metadata pairs"),
        Case("a key of 2^64 bytes", long_key, "truncated: metadata key"),
        Case("a dimension of 2^64", shape(vec![u64::MAX]), "overflows"),
        Case("dimensions that overflow", shape(vec![1 << 40, 1 << 40]), "overflows"),
        Case("a dimension of 0", shape(vec![0]), "dimension 0 is 0"),
        Case("five dimensions", shape(vec![1; 5]), "5 dimensions"),
        Case("an offset near 2^64", offset(u64::MAX - 31), "truncated: tensor"),
        Case("an overlap", offset(0), "overlap"),
        Case("an unknown type", valid().tensor(norm, |tensor| tensor.dtype = 4).write(), "ggml type 4"),
        Case("a type of other blocks", valid().tensor(norm, |t| t.dtype = 12).write(), "don't fill"),
        Case("deep arrays", set("x.nested", Value::Array(nested)), "nested deeper"),
        Case("a key twice", twice.write(), "occurs twice"),
        Case("a tensor twice", doubled.write(), "occurs twice"),
        Case("an alignment of 3", u32("general.alignment", 3), "general.alignment"),
        Case("an alignment of 2^31", u32("general.alignment", 1 << 31), "truncated: tensor"),
        Case("part of a split file", u32("split.count", 2), "one of 2 parts"),
    ]
}

/// Metadata of the model that makes no sense.
fn hyperparameters() -> Vec<Case> {
    let number = |key: &str, value| set(&format!("llama.{key}"), Value::F32(value));
    let shares = || {
        let file = valid().remove("llama.attention.key_length").remove("llama.attention.value_length");
        file.remove("llama.attention.head_count_kv").set("llama.attention.head_count", Value::U32(3)).write()
    };
    let (blocks, width) = ("llama.block_count", "llama.embedding_length");
    let (heads, kv_heads) = ("llama.attention.head_count", "llama.attention.head_count_kv");
    let rope = "llama.rope.dimension_count";
    vec![
        Case("no architecture", valid().remove("general.architecture").write(), "general.architecture"),
        Case(
            "another architecture",
            set("general.architecture", Value::String("no\nsuch".into())),
            "is not supported",
        ),
        Case("no layers", u32(blocks, 0), blocks),
        Case("too few layers", u32(blocks, 1), "tensor blk.1."),
        Case("too many layers", u32(blocks, 3), "tensor blk.2.attn_norm.weight is missing"),
        Case("2^31 layers", u32(blocks, 1 << 31), blocks),
        Case("2^24 layers", u32(blocks, 1 << 24), blocks),
        Case("2^63 layers", set(blocks, Value::U64(1 << 63)), blocks),
        Case("no width", u32(width, 0), width),
        Case("a width of 2^32 - 1", u32(width, u32::MAX), width),
        Case("a width of 2^24", u32(width, 1 << 24), "has shape"),
        Case("another width", u32(width, 128), "has shape"),
        Case("no context", u32("llama.context_length", 0), "llama.context_length"),
        Case("no heads", u32(heads, 0), heads),
        Case("2^24 heads", u32(heads, 1 << 24), "has shape"),
        Case("heads that do not share", shares(), heads),
        Case("KV heads that do not divide", u32(kv_heads, 3), kv_heads),
        Case("a huge head", u32("llama.attention.key_length", 1 << 30), "key_length"),
        Case("values of another size", u32("llama.attention.value_length", 8), "values of another size"),
        Case("a huge feed-forward block", u32("llama.feed_forward_length", 1 << 24), "has shape"),
        Case("an odd rope", u32(rope, 7), rope),
        Case("a rope beyond the head", u32(rope, 1 << 20), rope),
        Case("a rope of 2^40", set(rope, Value::U64(1 << 40)), rope),
        Case("an eps that is no number", number("attention.layer_norm_rms_epsilon", f32::NAN), "epsilon"),
        Case("a negative eps", number("attention.layer_norm_rms_epsilon", -1.0), "epsilon"),
        Case("an eps that is text", set("llama.attention.layer_norm_rms_epsilon", strings(&[])), "epsilon"),
        Case("a rope base of 0", number("rope.freq_base", 0.0), "rope.freq_base"),
        Case("an infinite rope base", number("rope.freq_base", f32::INFINITY), "rope.freq_base"),
        Case("experts", u32("llama.expert_count", 8), "experts"),
    ]
}

/// Tensors that the model does not have that way.
fn tensors() -> Vec<Case> {
    let mut missing = valid();
    missing.tensors.retain(|tensor| tensor.name != "blk.1.ffn_down.weight");
    let mut left_over = valid();
    let mut extra = left_over.tensors.last().unwrap().clone();
    extra.name = "blk.0.mystery.weight".to_owned();
    left_over.tensors.push(extra);
    let turned = valid().tensor("blk.0.ffn_down.weight", |tensor| tensor.shape.reverse());
    let flat = valid().tensor("token_embd.weight", |tensor| tensor.shape = vec![64 * 384]);
    let none = Gguf { tensors: vec![], ..valid() };
    vec![
        Case("no tensors", none.write(), "llama.block_count"),
        Case("a missing tensor", missing.write(), "tensor blk.1.ffn_down.weight is missing"),
        Case("a tensor left over", left_over.write(), "tensor blk.0.mystery.weight is not used"),
        Case("a transposed tensor", turned.write(), "tensor blk.0.ffn_down.weight has shape"),
        Case("a flat embedding", flat.write(), "tensor token_embd.weight has shape"),
    ]
}

/// Tokenizers that contradict themselves.
fn tokenizer() -> Vec<Case> {
    let with = |name: &str, value| set(&format!("tokenizer.ggml.{name}"), value);
    let id = |name: &str, id| with(name, Value::U32(id));
    let byte_level = |merges: Value| {
        let file = valid().set("tokenizer.ggml.model", Value::String("gpt2".into()));
        file.set("tokenizer.ggml.merges", merges).write()
    };
    let no_merges = valid().set("tokenizer.ggml.model", Value::String("gpt2".into()));
    let more = (0..400).map(|i| format!("token {i}")).collect();
    let more = valid()
        .set("tokenizer.ggml.tokens", Value::Array(Array::String(more)))
        .set("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; 400])))
        .remove("tokenizer.ggml.token_type");
    vec![
        Case("no tokens", with("tokens", strings(&[])), "0 tokens"),
        Case("tokens of another type", with("tokens", Value::U32(1)), "tokenizer.ggml.tokens"),
        Case("one token", with("tokens", strings(&["a"])), "1 tokens but 384 scores"),
        Case("more tokens than rows", more.write(), "400 tokens but the embedding only 384"),
        Case("few scores", with("scores", Value::Array(Array::F32(vec![0.0; 7]))), "7 scores"),
        Case("few kinds", with("token_type", Value::Array(Array::I32(vec![1; 7]))), "7 kinds"),
        Case("kinds of another type", with("token_type", strings(&["a"])), "tokenizer.ggml.token_type"),
        Case("a bos out of range", id("bos_token_id", 384), "bos token is id 384"),
        Case("an eos out of range", id("eos_token_id", u32::MAX), "eos token is id 4294967295"),
        Case("a negative bos", with("bos_token_id", Value::I32(-1)), "tokenizer.ggml.bos_token_id"),
        Case("no merges", no_merges.write(), "tokenizer.ggml.merges is missing"),
        Case("merges of what is no token", byte_level(strings(&["zq xj"])), "merge"),
        Case("a merge of one side", byte_level(strings(&["a"])), "merge"),
        Case("another tokenizer", with("model", Value::String("bert".into())), "\"bert\""),
        Case("a template that is none", set("tokenizer.chat_template", text("{% for %}")), "chat template"),
    ]
}

fn text(source: &str) -> Value {
    Value::String(source.to_owned())
}

/// Templates that are valid and do harm when they run.
fn templates() -> Vec<Case> {
    let template = |source: &str| set("tokenizer.chat_template", text(source));
    let doubling = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    let recursive = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}";
    let cyclic = "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns | tojson }}";
    let parentheses = "{{ ".to_owned() + &"(".repeat(100_000);
    vec![
        Case("a template that doubles its text", template(doubling), "chat template"),
        Case("an endless template", template(endless), "chat template"),
        Case("a template that calls itself", template(recursive), "chat template"),
        Case("a template with a value in itself", template(cyclic), "chat template"),
        Case("a template of parentheses", template(&parentheses), "chat template"),
        Case("a template that refuses", template("{{ raise_exception('no\n\nway') }}"), "no way"),
    ]
}

/// Runs a command on a file that it has to refuse, and gives the time it took.
fn refused(command: &[&str], path: &Path, Case(name, _, fault): &Case) -> Duration {
    let start = Instant::now();
    let mut child = lichen()
        .arg(command[0])
        .arg(path)
        .args(&command[1..])
        .args(["--threads", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > HANGS {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let time = start.elapsed();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (support::stdout(&output), support::stderr(&output));
    let what = format!("{name}, {}: {:?}, stdout {out:?}, stderr {err:?}", command[0], output.status);
    assert_eq!(output.status.code(), Some(1), "{what}");
    assert!(out.is_empty() && err.lines().count() == 1 && err.ends_with('\n'), "{what}");
    assert!(err.contains(path.file_name().unwrap().to_str().unwrap()), "{what}: no file");
    assert!(err.contains(fault), "{what}: no {fault:?}");
    // The most of all programs so far, so the first that takes too much is the one told.
    let peak = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    assert!(peak < MEMORY, "{what}: {peak} KiB");
    time
}

fn check(commands: &[&[&str]], cases: Vec<Case>) {
    let folder = tempfile::tempdir().unwrap();
    for (number, case) in cases.iter().enumerate() {
        let path = folder.path().join(format!("broken-{number}.gguf"));
        std::fs::write(&path, &case.1).unwrap();
        for command in commands {
            let fastest = (0..TRIES).map(|_| refused(command, &path, case)).find(|&time| time < LIMIT);
            assert!(fastest.is_some(), "{}, {}: slower than {LIMIT:?}", case.0, command[0]);
        }
    }
}

const RUN: &[&str] = &["run", "hi"];
const INSPECT: &[&str] = &["inspect"];

#[test]
fn the_undamaged_file_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("valid.gguf");
    std::fs::write(&path, valid().write()).unwrap();
    let output = lichen().arg("run").arg(&path).args(["hi", "-n", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", support::stderr(&output));
}

#[test]
fn damaged_containers_are_refused() {
    check(&[RUN, INSPECT], cut());
    check(&[RUN, INSPECT], structure());
}

#[test]
fn damaged_models_are_refused() {
    check(&[RUN, INSPECT], hyperparameters());
    check(&[RUN, INSPECT], tensors());
}

#[test]
fn damaged_tokenizers_are_refused() {
    check(&[RUN, INSPECT], tokenizer());
}

/// `inspect` does not run templates.
#[test]
fn harmful_templates_are_refused() {
    check(&[RUN], templates());
}
