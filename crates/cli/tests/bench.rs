//! `lichen bench`, as a user of llama-bench calls it.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod support;

use serde_json::{Value, json};
use support::{model, run, stderr, stdout};

/// Runs it on a tiny model.
fn bench(args: &[&str]) -> std::process::Output {
    let model = model("llama/model-f16.gguf");
    run([&["bench", model.to_str().unwrap()], args].concat())
}

fn json_of(args: &[&str]) -> Vec<Value> {
    let output = bench(&[args, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn json_has_the_keys_of_llama_bench_in_its_order_and_the_number_of_sequences() {
    let output = bench(&["-p", "8", "-n", "0", "-r", "3", "-t", "1", "-o", "json"]);
    let text = stdout(&output);
    let keys: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix('"')?.split('"').next()).collect();
    let expected = "build_commit build_number cpu_info gpu_info backends model_filename model_type model_size \
        model_n_params n_batch n_ubatch n_threads type_k type_v n_prompt n_gen n_depth n_parallel test_time avg_ns stddev_ns \
        avg_ts stddev_ts read_bandwidth read_share samples_ns samples_ts";
    assert_eq!(keys.join(" "), expected, "{}", stderr(&output));
    let tests: Vec<Value> = serde_json::from_str(&text).unwrap();
    let test = &tests[0];
    let samples: Vec<f64> =
        test["samples_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    assert_eq!(samples.len(), 3);
    let average = samples.iter().sum::<f64>() / 3.0;
    assert!((test["avg_ns"].as_f64().unwrap() - average).abs() <= 1.0, "{test}");
    for (sample, speed) in samples.iter().zip(test["samples_ts"].as_array().unwrap()) {
        assert!((speed.as_f64().unwrap() - 8e9 / sample).abs() < 1e-3, "{test}");
    }
    assert_eq!(test["type_k"], "f16");
    assert!(test["model_type"].as_str().unwrap().starts_with("llama"), "{test}");
    assert!(test["model_n_params"].as_u64().unwrap() * 2 <= test["model_size"].as_u64().unwrap(), "{test}");
}

#[test]
fn decoding_tells_its_share_of_the_read_bandwidth() {
    let tests = json_of(&["-p", "4", "-n", "8", "-r", "3", "-t", "1"]);
    let (prompt, generate) = (&tests[0], &tests[1]);
    assert_eq!(json!([prompt["read_bandwidth"], prompt["read_share"]]), json!([null, null]));
    let number = |key: &str| generate[key].as_f64().unwrap();
    // Most of the tensors: of an embedding that isn't the output too only a row is read.
    let mut samples: Vec<f64> =
        generate["samples_ns"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    samples.sort_by(f64::total_cmp);
    let bytes = number("read_share") * number("read_bandwidth") * samples[1] / 1e9 / 8.0;
    let size = number("model_size");
    assert!(size / 2.0 < bytes && bytes < 1.001 * size, "{generate}");
}

#[test]
fn lists_make_all_combinations() {
    let args =
        ["-p", "4-8*2", "-p", "3", "-n", "2", "-d", "0,5", "-t", "1,2", "-ub", "4", "-b", "16", "-r", "1"];
    let all: Vec<Value> = json_of(&args)
        .iter()
        .map(|test| json!([test["n_threads"], test["n_depth"], test["n_prompt"], test["n_gen"]]))
        .collect();
    let mut expected = Vec::new();
    for threads in [1, 2] {
        for depth in [0, 5] {
            expected.extend([4, 8, 3].map(|prompt| json!([threads, depth, prompt, 0])));
            expected.push(json!([threads, depth, 0, 2]));
        }
    }
    assert_eq!(all, expected);
}

#[test]
fn sequences_at_once_share_the_steps() {
    // Steps of 8 tokens cut the prompts of 5 anywhere.
    let tests = json_of(&["-p", "5", "-n", "2", "-d", "3", "-npl", "1,3,9", "-ub", "8", "-r", "2"]);
    let all: Vec<Value> =
        tests.iter().map(|test| json!([test["n_parallel"], test["n_prompt"], test["n_gen"]])).collect();
    let expected = [[1, 5, 0], [3, 5, 0], [9, 5, 0], [1, 0, 2], [3, 0, 2], [9, 0, 2]];
    assert_eq!(all, expected.map(|test| json!(test)));
    for test in &tests {
        let count = |key: &str| test[key].as_f64().unwrap();
        let tokens = count("n_parallel") * (count("n_prompt") + count("n_gen"));
        let speed = tokens * 1e9 / test["samples_ns"][1].as_f64().unwrap();
        assert!((test["samples_ts"][1].as_f64().unwrap() / speed - 1.0).abs() < 1e-6, "{test}");
    }
}

#[test]
fn long_and_short_flags_are_the_same() {
    let short =
        json_of(&["-p", "4", "-n", "0", "-b", "64", "-ub", "32", "-ctk", "f16", "-ctv", "f16", "-r", "1"]);
    let long = ["--n-prompt", "4", "--n-gen", "0", "--batch-size", "64", "--ubatch-size", "32"];
    let long = json_of(
        &[&long[..], &["--cache-type-k", "f16", "--cache-type-v", "f16", "--repetitions", "1"]].concat(),
    );
    for test in [&short[0], &long[0]] {
        assert_eq!(json!([test["n_batch"], test["n_ubatch"], test["n_prompt"]]), json!([64, 32, 4]));
    }
}

#[test]
fn types_of_keys_and_values_are_those_of_llama_cpp() {
    for kv in ["f16", "q8_0", "q5_0", "q4_0"] {
        let tests = json_of(&["-p", "0", "-n", "2", "-d", "200", "-ctk", kv, "-ctv", kv, "-r", "1"]);
        assert_eq!(json!([tests[0]["type_k"], tests[0]["type_v"]]), json!([kv, kv]));
    }
}

#[test]
fn tables_name_the_tests() {
    let output = bench(&["-p", "4", "-n", "2", "-d", "3", "-r", "1"]);
    let text = stdout(&output);
    assert!(text.contains(" pp4 @ d3 |") && text.contains(" tg2 @ d3 |"), "{text}{}", stderr(&output));
    let csv = stdout(&bench(&["-p", "4", "-n", "2", "-r", "1", "-o", "csv"]));
    assert_eq!(csv.lines().count(), 3, "{csv}");
}

#[test]
fn what_it_cannot_measure_it_says() {
    let cases: [(&[&str], &str); 10] = [
        (&["-ctk", "q8_0"], "the same type"),
        (&["-ctk", "q6_0", "-ctv", "q6_0"], "f16, q8_0, q5_0 or q4_0"),
        (&["-ctv", "f32"], "give f16"),
        (&["-p", "0", "-n", "0"], "nothing to measure"),
        (&["-p", "1000000000", "-n", "0"], "context"),
        (&["-ub", "0"], "--ubatch-size 0"),
        (&["-t", "0"], "--threads 0"),
        (&["-npl", "0"], "--n-parallel 0"),
        (&["-npl", "257"], "--n-parallel 257"),
        (&["-p", "9-1"], "empty range"),
    ];
    for (args, text) in cases {
        let output = bench(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(stderr(&output).contains(text), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}
