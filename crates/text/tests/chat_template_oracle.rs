//! Chat templates against the Jinja environment of transformers.

// Helpers of tests may unwrap and say what they skip, as the tests themselves.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use lichen_text::ChatTemplate;
use serde_json::{Map, Value};

mod support;

/// Templates of which some cases are not byte for byte what Jinja2 gives.
const UNSUPPORTED: [&str; 0] = [];

/// 2026-01-02 03:04:05 UTC, the clock of the reference.
const CLOCK: u64 = 1_767_323_045;

/// The cases in which a template gives something else than expected.
fn differences(source: &str, oracle: &Value, cases: &Value) -> Vec<String> {
    let variable = |name: &str| oracle["variables"][name].as_str().unwrap();
    let template = match ChatTemplate::new(source, variable("bos_token"), variable("eos_token")) {
        Ok(template) => template.with_clock(|| CLOCK),
        Err(error) => return vec![format!("{error}")],
    };
    let conversations = support::json(&support::data().join("chat-templates/conversations.json"));
    let mut wrong = Vec::new();
    for (case, variants) in cases.as_object().unwrap() {
        let conversation = &conversations[case];
        for (variant, expected) in variants.as_object().unwrap() {
            let mut variables: Map<String, Value> = oracle["variants"][variant].as_object().unwrap().clone();
            let prompt = variables.remove("add_generation_prompt").is_some_and(|value| value == true);
            for (name, value) in conversation.as_object().unwrap() {
                if name != "messages" && name != "tools" {
                    variables.insert(name.clone(), value.clone());
                }
            }
            let got =
                template.render(&conversation["messages"], conversation.get("tools"), prompt, &variables);
            match (&got, expected["text"].as_str()) {
                (Ok(got), Some(expected)) if got == expected => {}
                (Err(_), None) => {}
                (_, expected) => {
                    wrong.push(format!("{case} / {variant}\n  expected {expected:?}\n  got      {got:?}"))
                }
            }
        }
    }
    wrong
}

#[test]
fn synthetic() {
    let oracle = support::json(&support::data().join("chat-templates/synthetic.json"));
    let mut report = String::new();
    for (name, entry) in oracle["templates"].as_object().unwrap() {
        let wrong = differences(entry["template"].as_str().unwrap(), &oracle, &entry["cases"]);
        if !wrong.is_empty() && !UNSUPPORTED.contains(&name.as_str()) {
            report += &format!("{name}: {} wrong, such as {}\n", wrong.len(), wrong[0]);
        }
    }
    assert!(report.is_empty(), "{report}");
}

fn compare_real(file: &str, oracle: &str) {
    let Some(path) = support::real_model(file) else {
        eprintln!("skipped: LICHEN_TEST_MODELS names no folder with {file}");
        return;
    };
    let metadata = support::metadata(&path);
    let oracle = support::json(&support::data().join("chat-templates").join(oracle));
    let source = metadata["tokenizer.chat_template"].as_str().unwrap();
    let wrong = differences(source, &oracle, &oracle["cases"]);
    assert!(wrong.is_empty(), "{} wrong, such as {}", wrong.len(), wrong[0]);
}

#[test]
fn smollm2_real() {
    compare_real("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1.json");
}

#[test]
fn qwen2_5_coder_real() {
    compare_real("Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.json");
}
