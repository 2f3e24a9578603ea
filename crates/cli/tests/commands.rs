//! The commands that run to their end, as a user calls them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::{Read, Write};
use std::process::Stdio;

use support::{lichen, model, run, stderr, stdout};

const TINY: &str = "llama/model-f16.gguf";

fn path(name: &str) -> String {
    model(name).to_str().unwrap().to_owned()
}

/// The value that `inspect` shows for a key.
fn value<'t>(text: &'t str, key: &str) -> &'t str {
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix("  "))
        .unwrap_or_else(|| panic!("no {key} in {text}"))
        .trim()
}

#[test]
fn run_answers_on_stdout_and_reports_on_stderr() {
    let call = || run(["run", &path(TINY), "hello", "-n", "8", "--seed", "7", "--threads", "1"]);
    let output = call();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).trim().len() > 1, "{}", stdout(&output));
    let report = stderr(&output);
    for part in ["prompt: ", "answer: ", "tokens/s", "peak memory: "] {
        assert!(report.contains(part), "{report}");
    }
    assert_eq!(report.lines().count(), 1, "{report}");
    assert_eq!(stdout(&call()), stdout(&output), "the same seed gives the same answer");
}

#[test]
fn run_takes_the_prompt_from_any_place() {
    let common = ["-n", "6", "--temperature", "0", "--raw"];
    let model = path(TINY);
    let argument = run([&["run", &model, "a b c"], &common[..]].concat());
    let option = run([&["run", &model, "--prompt", "a b c"], &common[..]].concat());
    let mut child = lichen()
        .args([&["run", &model], &common[..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a b c\n").unwrap();
    let stdin = child.wait_with_output().unwrap();
    assert!(argument.status.success(), "{}", stderr(&argument));
    assert_eq!(stdout(&argument), stdout(&option));
    assert_eq!(stdout(&argument), stdout(&stdin));
    let templated = run(["run", &model, "a b c", "-n", "6", "--temperature", "0"]);
    let tokens = |text: &str| text.split("prompt: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_ne!(tokens(&stderr(&argument)), tokens(&stderr(&templated)), "--raw leaves the template out");
}

#[test]
fn settings_come_from_the_environment_too() {
    let output = lichen().args(["run", &path(TINY), "hi"]).env("LICHEN_MAX_TOKENS", "3").output().unwrap();
    assert!(stderr(&output).contains("answer: 3 tokens"), "{}", stderr(&output));
}

#[test]
fn every_family_answers() {
    for family in ["llama3", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "phi3-longrope"] {
        let output = run(["run", &path(&format!("{family}/model-f16.gguf")), "hello", "-n", "4"]);
        assert!(output.status.success(), "{family}: {}", stderr(&output));
    }
}

#[test]
fn chat_remembers_until_told_to_forget() {
    let mut child = lichen()
        .args(["chat", &path(TINY), "-n", "4", "--temperature", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"/help\none\\\ntwo\nthree\n/clear\nthree\n/nothing\n/quit\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let notes = stderr(&output);
    let counts: Vec<usize> = notes
        .lines()
        .filter_map(|line| line.strip_prefix("prompt: ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(counts.len(), 3, "{notes}");
    assert!(counts[1] > counts[0] && counts[2] < counts[1], "{counts:?}");
    assert!(notes.contains("/clear  forget") && notes.contains("no command /nothing"), "{notes}");
}

/// Needs `LICHEN_TEST_MODELS` (see README), since the answer must take longer than the signal.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_and_not_the_chat() {
    let Ok(models) = std::env::var("LICHEN_TEST_MODELS") else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
        return;
    };
    let mut child = lichen()
        .args(["chat", &format!("{models}/SmolLM2-135M-Instruct.Q4_1.gguf"), "-n", "1500", "--threads", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Write a very long story about a river and all its towns.\n").unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    stdin.write_all(b"/help\n/quit\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let notes = stderr(&output);
    let tokens: usize = notes.split("answer: ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(tokens < 1000, "{notes}");
    assert!(notes.contains("/clear  forget"), "{notes}");
}

#[test]
fn inspect_shows_the_numbers_of_the_model() {
    let output = run(["inspect", &path(TINY), "--ctx-cap", "100"]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(value(&text, "architecture"), "llama");
    assert_eq!(value(&text, "layers"), "2");
    assert_eq!(value(&text, "vocabulary"), "384");
    assert_eq!(value(&text, "context"), "100");
    assert_eq!(value(&text, "attention"), "4 heads, 2 KV heads of 16 (2 layers)");
    assert_eq!(value(&text, "chat template"), "yes");
    // 2 layers, key and value of 2 heads of 16, 2 bytes each.
    assert_eq!(value(&text, "KV per token, f16"), "256 bytes");
    // 110912 parameters, of which the 5 norms of 64 are f32.
    assert_eq!(value(&text, "weights").split(' ').next().unwrap(), (2 * 110_912 + 2 * 5 * 64).to_string());
}

#[test]
fn perplexity_of_a_text_is_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "the quick brown fox jumps over the lazy dog. ".repeat(20)).unwrap();
    let output = run(["perplexity", &path(TINY), file.to_str().unwrap(), "--ctx", "150", "--chunks", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let number: f64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(number > 1.0, "{text}");
    assert!(text.contains("over 148 tokens"), "{text}");
    let missing = run(["perplexity", &path(TINY), "./nothing.txt"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("cannot read ./nothing.txt"), "{}", stderr(&missing));
}

#[test]
fn perplexity_tells_what_a_precision_of_keys_and_values_costs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, "the quick brown fox jumps over the lazy dog. ".repeat(40)).unwrap();
    let with = |kv: &str| {
        let (model, file) = (path(TINY), file.to_str().unwrap());
        let kv = ["--kv", kv, "--kl-against", "f16"];
        run([&["perplexity", &model, file, "--ctx", "256", "--chunks", "1"][..], &kv].concat())
    };
    let mean = |kv: &str| {
        let output = with(kv);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        let line =
            text.lines().find_map(|line| line.strip_prefix(&format!("divergence of {kv} from f16: mean ")));
        line.unwrap_or_else(|| panic!("{text}")).split(',').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(mean("f16"), 0.0);
    assert!(mean("q4") > 0.0 && mean("q4") < 0.05, "{}", mean("q4"));
    let unknown = with("q3");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("give f16, q8, q5 or q4"), "{}", stderr(&unknown));
}

#[test]
fn predictions_are_compared_with_those_that_another_process_has_saved() {
    let folder = tempfile::tempdir().unwrap();
    let text = "the quick brown fox jumps over the lazy dog. ".repeat(40);
    std::fs::write(folder.path().join("text.txt"), &text).unwrap();
    std::fs::write(folder.path().join("other.txt"), text.replace("fox", "cow")).unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let with = |text: &str, options: &[&str]| {
        run([&["perplexity", &path(TINY), &file(text), "--ctx", "256", "--chunks", "2"][..], options]
            .concat())
    };
    let (half, single) = (file("half.logits"), file("single.logits"));
    assert!(with("text.txt", &["--save-logits", &half]).status.success());
    assert!(with("text.txt", &["--save-logits", &single, "--logits-as", "f32"]).status.success());
    let mean = |kv: &str, saved: &str| {
        let output = with("text.txt", &["--kv", kv, "--kl-against", saved]);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        let line = text.lines().find_map(|line| Some(line.split_once(": mean ")?.1.to_owned()));
        line.unwrap_or_else(|| panic!("{text}")).split(',').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(mean("f16", &single), 0.0);
    assert!(mean("f16", &half) < 1e-6);
    let (saved, live) = (mean("q4", &single), mean("q4", "f16"));
    assert!(saved > 0.0 && (saved - live).abs() < 1e-6, "{saved} {live}");
    for (text, options, reason) in [
        ("other.txt", ["--kl-against", &half], "text or tokenizer"),
        ("text.txt", ["--kl-against", &file("text.txt")], "no saved logits"),
        ("text.txt", ["--kl-against", "q3"], "f16, q8, q5, q4 or a file"),
    ] {
        let refused = with(text, &options);
        assert!(!refused.status.success() && stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
}

#[test]
fn a_broken_file_is_one_line_and_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(model(TINY)).unwrap();
    for (name, bytes) in [("cut", &whole[..whole.len() / 2]), ("text", b"hello".as_slice()), ("empty", b"")] {
        let file = folder.path().join(format!("{name}.gguf"));
        std::fs::write(&file, bytes).unwrap();
        for command in ["inspect", "run"] {
            let mut call = lichen();
            call.args([command, file.to_str().unwrap()]);
            if command == "run" {
                call.arg("hello");
            }
            let output = call.output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{name}: {text}");
            assert_eq!(text.lines().count(), 1, "{name}: {text}");
            assert!(text.starts_with("error: ") && text.contains(name), "{name}: {text}");
        }
    }
}

#[test]
fn errors_teach() {
    let unknown = run(["inspect", "smolm2"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("smollm2"), "{}", stderr(&unknown));
    let nothing = run(["run", &path(TINY)]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(stderr(&nothing).contains("--prompt"), "{}", stderr(&nothing));
    let long = run(["run", &path(TINY), "hello", "--ctx-cap", "2"]);
    assert_eq!(long.status.code(), Some(1));
    assert!(stderr(&long).contains("maximum context length is 2 tokens"), "{}", stderr(&long));
    let own = run(["rm", "./mine.gguf"]);
    assert_eq!(own.status.code(), Some(1));
    let form = run(["inspect", "hf:justone"]);
    assert_eq!(form.status.code(), Some(2));
    assert!(stderr(&form).contains("hf:owner/repo"), "{}", stderr(&form));
    assert_eq!(run(["run", &path(TINY), "x", "--top-p", "7"]).status.code(), Some(2));
    assert_eq!(run::<&str>([]).status.code(), Some(2));
}

#[test]
fn what_the_program_and_the_machine_can_do() {
    assert_eq!(stdout(&run(["--backend"])), "cpu\n");
    assert!(stdout(&run(["--version"])).starts_with(concat!(
        "lichen ",
        env!("CARGO_PKG_VERSION"),
        " (cpu, "
    )));
    let kernels = stdout(&run(["kernels"]));
    let scalar = |line: &&str| line.contains("q4_k") && line.contains("scalar") && line.ends_with("yes");
    assert_eq!(kernels.lines().filter(scalar).count(), 1, "{kernels}");
    assert!(stdout(&run(["devices"])).lines().nth(1).unwrap().contains("cpu"));
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(["completions", shell]));
        assert!(script.contains("perplexity"), "{shell}");
    }
    let list = run(["list"]);
    assert!(list.status.success() && stdout(&list).is_empty());
    assert!(stdout(&run(["list", "--catalogue"])).contains("smollm2"));
    let pulled = run(["pull", &path(TINY)]);
    assert_eq!(stdout(&pulled).trim(), path(TINY));
}
