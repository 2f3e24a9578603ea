//! `lichen serve` where memory is short. With the models of `scripts/fetch-models`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod support;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{address, exchange, lichen, status};

/// Enough for SmolLM2-135M and 25 MiB of keys and values, which are 1,100 tokens in half precision.
const BUDGET: &str = "190M";

fn smollm2() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("LICHEN_TEST_MODELS") else {
        eprintln!("skipped: LICHEN_TEST_MODELS is not set");
        return None;
    };
    Some(PathBuf::from(folder).join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(model: &PathBuf, options: &[&str]) -> Result<Self, String> {
        Self::within(BUDGET, model, options)
    }

    fn within(budget: &str, model: &PathBuf, options: &[&str]) -> Result<Self, String> {
        Self::begin(lichen(), budget, model, options)
    }

    /// Starts the program as it was set up.
    fn begin(mut program: Command, budget: &str, model: &PathBuf, options: &[&str]) -> Result<Self, String> {
        let mut child = program
            .args(["serve", "--port", "0", "--threads", "2", "--access-log", "off", "--ram-budget", budget])
            .args(options)
            .arg("--model")
            .arg(model)
            .args(["--name", "small"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        match address(&mut child) {
            Some(address) => Ok(Self { child, address }),
            None => {
                let mut told = String::new();
                child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
                assert!(!child.wait().unwrap().success());
                Err(told)
            }
        }
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let (head, body) = self.exchange(method, path, body);
        (status(&head), serde_json::from_str(&body).unwrap())
    }

    /// Head and body of the response.
    fn exchange(&self, method: &str, path: &str, body: &Value) -> (String, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        exchange(&self.address, method, path, &body).unwrap()
    }

    /// The count of a result of admission.
    fn admissions(&self, reason: &str) -> u64 {
        let (_, text) = self.exchange("GET", "/metrics", &Value::Null);
        let named = |line: &&str| line.starts_with("lichen_admission_total") && line.contains(reason);
        let line = text.lines().find(named).unwrap_or_else(|| panic!("{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn memory(&self) -> Value {
        self.call("GET", "/admin/memory", &Value::Null).1
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// About 900 tokens that no other number shares.
fn prompt(number: usize) -> String {
    let words = ["river", "stone", "cloud", "market", "winter", "letter", "garden", "copper", "evening"];
    let text: Vec<&str> =
        (0..820).map(|i: usize| words[(i * 7 + i * i * number + number) % words.len()]).collect();
    format!("Number {number}. {}", text.join(" "))
}

fn bytes_of(memory: &Value, kind: &str) -> u64 {
    memory["classes"].as_array().unwrap().iter().map(|class| class[kind].as_u64().unwrap()).sum()
}

#[test]
fn prompts_that_fit_only_in_four_bits_are_all_answered_within_the_budget() {
    let Some(model) = smollm2() else { return };
    let server = Server::start(&model, &["--ctx-cap", "2048", "--max-concurrent", "4"]).unwrap();
    let mut reduced = 0;
    std::thread::scope(|scope| {
        let ask = |number: usize| {
            let body =
                json!({"prompt": prompt(number), "max_tokens": 24, "temperature": 0, "ignore_eos": true});
            server.call("POST", "/v1/completions", &body)
        };
        let asked: Vec<_> = (0..4).map(|number| scope.spawn(move || ask(number))).collect();
        while asked.iter().any(|thread| !thread.is_finished()) {
            let memory = server.memory();
            assert!(bytes_of(&memory, "mapped_bytes") <= memory["limit_bytes"].as_u64().unwrap(), "{memory}");
            std::thread::sleep(Duration::from_millis(50));
        }
        for thread in asked {
            let (status, answer) = thread.join().unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(24)), "{answer}");
            reduced += usize::from(answer["usage"]["memory"]["kv_precision"].is_string());
        }
    });
    assert!(reduced > 0, "answers say what their keys and values were reduced to");
    let memory = server.memory();
    let freed = |action: &str| {
        let all = memory["actions"].as_array().unwrap();
        all.iter()
            .find(|done| done["action"] == action)
            .map_or(0, |done| done["freed_bytes"].as_u64().unwrap())
    };
    assert!(freed("requantise_active") + freed("requantise_cached") > 0, "{memory}");
    assert!(!memory["transitions"].as_array().unwrap().is_empty(), "{memory}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_one_that_does() {
    let Some(model) = smollm2() else { return };
    let refused = Server::start(&model, &["--ctx-cap", "8192"]).err().unwrap();
    assert!(refused.contains("model_over_budget"), "{refused}");
    let (_, suggestion) = refused.split_once("a --ctx-cap of ").unwrap();
    let suggestion = suggestion.split_once(' ').unwrap().0;
    Server::start(&model, &["--ctx-cap", suggestion]).unwrap();
}

#[test]
fn a_context_that_nobody_asked_for_gives_way() {
    let Some(model) = smollm2() else { return };
    let server = Server::start(&model, &[]).unwrap();
    let body = json!({"prompt": "x ".repeat(9000), "max_tokens": 1});
    let (status, answer) = server.call("POST", "/v1/completions", &body);
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    let cap = answer["error"]["details"]["ctx_cap"].as_u64().unwrap();
    assert!((512..8192).contains(&cap), "{answer}");
}

#[test]
fn a_plan_says_what_the_server_would_do() {
    let Some(model) = smollm2() else { return };
    let plan = |cap: &str| {
        let model = model.to_str().unwrap();
        support::run(["plan", model, "--ram-budget", BUDGET, "--ctx-cap", cap])
    };
    let refused = plan("8192");
    assert!(!refused.status.success() && support::stderr(&refused).contains("model_over_budget"));
    let table = support::stdout(&refused);
    let longest = table.lines().find(|line| line.starts_with("longest context")).unwrap();
    let longest = longest.split_whitespace().rev().nth(1).unwrap();
    let fits = plan(longest);
    assert!(fits.status.success() && support::stdout(&fits).contains("fits"), "{}", support::stderr(&fits));
    Server::start(&model, &["--ctx-cap", longest]).unwrap();
}

/// A completion of a prompt of so many tokens, taken as they are.
fn completion(prompt_tokens: u64, max_tokens: u64) -> Value {
    let prompt: Vec<u64> = (0..prompt_tokens).map(|at| 300 + (at * at + 7 * at) % 9000).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true})
}

fn number(details: &Value, key: &str) -> u64 {
    details[key].as_u64().unwrap_or_else(|| panic!("{key}: {details}"))
}

/// Enough for SmolLM2-135M and a context of about 1,300 tokens at the smallest precision.
const SMALL_BUDGET: &str = "155M";

/// What the model bears is measured elsewhere; in so little memory it can't be.
const UNGATED: [&str; 2] = ["--kv-gate", "off"];

#[test]
fn a_prompt_over_the_cap_and_one_over_the_memory_are_told_what_would_fit() {
    let Some(model) = smollm2() else { return };
    let server = Server::within(SMALL_BUDGET, &model, &UNGATED).unwrap();
    let ask = |prompt, answer| server.call("POST", "/v1/completions", &completion(prompt, answer));
    let (_, card) = server.call("GET", "/v1/models/small", &Value::Null);
    let cap = card["limit"]["context"].as_u64().unwrap();
    let (status, answer) = ask(cap, 8);
    let error = &answer["error"];
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    assert_eq!(
        number(&error["details"], "max_prompt_tokens_alone"),
        cap - 8,
        "what a load guarantees: {answer}"
    );

    // A cap that memory doesn't hold: the operator may say so, and each request is measured.
    let (status, answer) = server.call("PATCH", "/admin/models/small", &json!({"ctx_cap": 8192}));
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = ask(4000, 8);
    let (error, details) = (&answer["error"], &answer["error"]["details"]);
    assert_eq!((status, &error["type"]), (400, &json!("memory_impossible")), "{answer}");
    assert!(number(details, "need_bytes") > number(details, "limit_bytes"), "{answer}");
    assert_eq!(
        number(details, "need_bytes") - number(details, "limit_bytes"),
        number(details, "kv_bytes_needed") - number(details, "kv_bytes_alone"),
    );
    assert_eq!(details["limit"]["bytes"], details["limit_bytes"]);
    let longest = number(details, "max_prompt_tokens_alone");
    assert_eq!(longest, number(details, "max_prompt_tokens_now"), "nothing else runs: {answer}");
    assert!(
        details["suggestion"].as_str().unwrap().contains(&format!("at most {longest} tokens")),
        "{answer}"
    );
    let (status, _) = ask(longest + 1, 8);
    assert_eq!(status, 400, "one token more is too many");

    let body = json!({
        "model": "small", "max_tokens": 8,
        "messages": [{"role": "user", "content": "one two ".repeat(2000)}],
    });
    let (status, answer) = server.call("POST", "/v1/messages", &body);
    assert_eq!((status, &answer["error"]["type"]), (400, &json!("invalid_request_error")), "{answer}");
    assert_eq!(number(&answer["error"]["details"], "max_prompt_tokens_alone"), longest);

    let (status, answer) = ask(longest, 8);
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(longest)), "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    assert_eq!((server.admissions("context_over_budget"), server.admissions("memory_impossible")), (1, 3));
}

#[test]
fn prompts_that_fit_alone_and_not_together_are_answered_one_after_another() {
    let Some(model) = smollm2() else { return };
    let server = Server::within(SMALL_BUDGET, &model, &[&UNGATED[..], &["--draft", "off"]].concat()).unwrap();
    std::thread::scope(|scope| {
        let ask = || server.call("POST", "/v1/completions", &completion(700, 24));
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for thread in asked {
            let (status, answer) = thread.join().unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(24)), "{answer}");
            assert_eq!(answer["usage"]["prompt_tokens"], 700, "nothing is cut");
        }
    });
    assert!(server.admissions("memory\"") > 0, "some had to wait for memory");
    let promised = |memory: &Value| {
        let mut classes = memory["classes"].as_array().unwrap().iter();
        classes.find(|class| class["class"] == "kv_floor").unwrap()["reserved_bytes"].clone()
    };
    // The engine settles after its last answer has left.
    let until = Instant::now() + Duration::from_secs(10);
    while promised(&server.memory()) != 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let memory = server.memory();
    assert_eq!(promised(&memory), 0, "promises are given back: {memory}");
}

/// In single precision nothing is stored more coarsely, so that an answer doesn't depend on what else runs.
#[test]
fn an_answer_that_had_to_wait_or_pause_is_the_answer_of_one_that_did_not() {
    let Some(model) = smollm2() else { return };
    let server =
        Server::within("168M", &model, &["--draft", "off", "--numerics", "float32", "--ctx-cap", "384"])
            .unwrap();
    let ask = || server.call("POST", "/v1/completions", &completion(200, 24));
    let alone = ask().1;
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        for thread in asked {
            let (status, answer) = thread.join().unwrap();
            assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(24)), "{answer}");
            assert_eq!(answer["choices"][0]["text"], alone["choices"][0]["text"]);
        }
    });
    assert!(server.admissions("memory\"") > 0, "some had to wait for memory");
}

#[test]
fn who_waits_for_memory_too_long_is_told_so_and_a_stream_by_its_status() {
    let Some(model) = smollm2() else { return };
    let server =
        Server::within(SMALL_BUDGET, &model, &[&UNGATED[..], &["--queue-timeout", "1"]].concat()).unwrap();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| server.call("POST", "/v1/completions", &completion(600, 400)));
        while server.memory()["classes"]
            .as_array()
            .unwrap()
            .iter()
            .all(|class| class["class"] != "kv_floor" || class["reserved_bytes"] == 0)
        {
            assert!(!long.is_finished(), "it ended before it was seen to run");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut body = completion(700, 100);
        body["stream"] = json!(true);
        let (head, text) = server.exchange("POST", "/v1/completions", &body);
        assert!(head.starts_with("HTTP/1.1 503"), "{head}\n{text}");
        assert!(head.to_lowercase().contains("retry-after: "), "{head}");
        let error: Value = serde_json::from_str(&text).unwrap();
        let details = &error["error"]["details"];
        assert_eq!(error["error"]["type"], "memory_over_budget", "{error}");
        assert!(number(details, "need_bytes") > number(details, "available_bytes"), "{error}");
        assert_eq!(details["largest_owners"][0]["owner"], "small", "{error}");
        let (status, answer) = long.join().unwrap();
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(400)), "{answer}");
    });
    assert_eq!(server.admissions("memory_over_budget"), 1);
}

#[test]
fn replicas_of_a_file_have_its_weights_once() {
    let Some(model) = smollm2() else { return };
    let path = model.to_str().unwrap();
    let weights = |server: &Server| {
        let memory = server.memory();
        let classes = memory["classes"].as_array().unwrap();
        let of = |class: &&Value| class["class"] == "weights_mapped";
        classes.iter().find(of).unwrap()["reserved_bytes"].as_u64().unwrap()
    };
    let one = Server::within("400M", &model, &["--ctx-cap", "512"]).unwrap();
    let again = ["--ctx-cap", "512", "--model", path, "--name", "other"];
    let two = Server::within("400M", &model, &again).unwrap();
    assert_eq!(weights(&one), weights(&two));
}

#[test]
fn a_plan_measures_which_precisions_a_model_bears_and_a_server_remembers() {
    let folder = tempfile::tempdir().unwrap();
    let model = support::model("llama/model-f16.gguf");
    let program = |arguments: &[&str]| {
        let mut command = lichen();
        command.env("LICHEN_HOME", folder.path()).args(arguments);
        command
    };
    let plan = |options: &[&str]| {
        let output =
            program(&[&["plan", model.to_str().unwrap(), "--json"], options].concat()).output().unwrap();
        let told = support::stderr(&output);
        (serde_json::from_slice::<Value>(&output.stdout).unwrap()["kv_gate"].clone(), told)
    };
    let (unknown, _) = plan(&[]);
    assert_eq!(unknown["q4"]["divergence"], Value::Null, "{unknown}");
    let (measured, told) = plan(&["--probe"]);
    assert!(told.contains("measuring"), "{told}");
    for precision in ["q8", "q5", "q4"] {
        assert_eq!(measured[precision]["allowed"], true, "{measured}");
        assert!(measured[precision]["divergence"].as_f64().unwrap() > 0.0, "{measured}");
    }
    let (remembered, told) = plan(&["--probe"]);
    assert!(remembered == measured && !told.contains("measuring"), "{remembered} {told}");
}

#[test]
fn a_server_is_ready_before_precisions_are_measured_and_uses_coarse_ones_only_after() {
    let folder = tempfile::tempdir().unwrap();
    let model = support::model("llama/model-f16.gguf");
    let start = |options: &[&str]| {
        let mut program = lichen();
        program.env("LICHEN_HOME", folder.path());
        Server::begin(program, "200M", &model, options).unwrap()
    };
    let gate = |server: &Server| server.memory()["kv_gate"]["small"].clone();
    let server = start(&[]);
    let unmeasured = gate(&server);
    let verdicts = ["q8", "q5", "q4"].map(|precision| unmeasured[precision]["allowed"].clone());
    assert_eq!(verdicts, [true, false, false], "{unmeasured}");
    let until = Instant::now() + Duration::from_secs(60);
    while gate(&server)["q4"]["divergence"] == Value::Null && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    let measured = gate(&server);
    assert_eq!(measured["q4"]["allowed"], true, "{measured}");
    drop(server);
    assert_eq!(gate(&start(&[])), measured, "it is remembered");
    assert_eq!(gate(&start(&["--kv-gate", "off"]))["q4"]["allowed"], true, "nobody asks");
}

/// Too little for the weights of SmolLM2-135M, which are 94 MiB.
const LESS_THAN_WEIGHTS: &str = "112M";

#[test]
fn weights_larger_than_memory_are_streamed_and_the_answer_is_the_same() {
    let Some(model) = smollm2() else { return };
    let same = ["--draft", "off", "--numerics", "float32", "--ctx-cap", "128"];
    let ask = |server: &Server| {
        let (status, answer) = server.call("POST", "/v1/completions", &completion(40, 12));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].clone()
    };
    let resident = ask(&Server::start(&model, &same).unwrap());
    let told = Server::within(LESS_THAN_WEIGHTS, &model, &same).err().unwrap();
    assert!(told.contains("--overcommit-weights"), "{told}");

    let streaming = [&same[..], &["--overcommit-weights"]].concat();
    let server = Server::within(LESS_THAN_WEIGHTS, &model, &streaming).unwrap();
    assert_eq!(ask(&server), resident);
    let (_, text) = server.exchange("GET", "/metrics", &Value::Null);
    let value = |name: &str| {
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let passes = value("lichen_streamed_passes_total");
    assert!(passes >= 11.0, "{passes}");
    assert!(value("lichen_planned_stream_bytes_total") > passes * 1e6);
    assert!(value("lichen_weights_hot_bytes") < 98e6);
    assert!(value("lichen_streamed_pass_seconds_total") > 0.0);
    assert!(value("lichen_predicted_passes_per_second") > 0.0);
}

#[test]
fn a_plan_says_how_fast_streamed_weights_will_be() {
    let Some(model) = smollm2() else { return };
    let model = model.to_str().unwrap();
    let options = ["--ctx-cap", "128", "--overcommit-weights"];
    let plan = |budget| support::run([&["plan", model, "--ram-budget", budget], &options[..]].concat());
    let told = support::stdout(&plan(LESS_THAN_WEIGHTS));
    assert!(told.contains("prediction: ") && told.contains("are read for each token"), "{told}");
    let told = support::stdout(&plan("1G"));
    assert!(told.contains("fits") && !told.contains("prediction"), "{told}");
}
