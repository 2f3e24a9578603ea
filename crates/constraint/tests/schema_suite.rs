//! The JSON Schema Test Suite: what is enforced is enforced wholly. `scripts/schema-suite` fetches it; its
//! folder belongs in `LICHEN_SCHEMA_SUITE`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Random, compiler, follows, walk};
use lichen_constraint::{Grammar, GrammarCompiler, GrammarError};
use lichen_generate::Constraint;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Random walks per schema.
const WALKS: u64 = 12;

#[derive(Debug, Default)]
struct Figures {
    schemas: usize,
    compiled: usize,
    refused: BTreeMap<String, usize>,
    invalid: usize,
    valid_allowed: usize,
    valid_not_allowed: usize,
    invalid_not_allowed: usize,
    walks_finished: usize,
    walks_unfinished: usize,
}

fn test_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(test_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn check_instances(figures: &mut Figures, case: &Value, constraint: &dyn Constraint, name: &str) {
    for test in case["tests"].as_array().unwrap() {
        let text = test["data"].to_string();
        match (test["valid"].as_bool().unwrap(), follows(constraint.fork(), &text)) {
            (true, true) => figures.valid_allowed += 1,
            (true, false) => figures.valid_not_allowed += 1,
            (false, false) => figures.invalid_not_allowed += 1,
            (false, true) => panic!("{name}: {} allows {text}, which is not valid", case["schema"]),
        }
    }
}

fn check_walks(figures: &mut Figures, schema: &Value, constraint: &dyn Constraint, name: &str) {
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    for seed in 0..WALKS {
        // A schema that nothing is valid under may leave no token.
        let Some(text) = walk(constraint.fork().as_mut(), &mut Random(seed)) else {
            figures.walks_unfinished += 1;
            continue;
        };
        if let Some(instance) = common::read(&text) {
            assert!(validator.is_valid(&instance), "{name}: {schema} allowed {text}");
        }
        figures.walks_finished += 1;
    }
}

fn check_draft(compiler: &GrammarCompiler, folder: &Path, uri: &str) -> Figures {
    let mut figures = Figures::default();
    for file in test_files(folder) {
        let cases: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        for case in cases.as_array().unwrap() {
            let mut schema = case["schema"].clone();
            if let Some(keywords) = schema.as_object_mut() {
                keywords.entry("$schema").or_insert(json!(uri));
            }
            let name = format!("{}: {}", file.file_name().unwrap().display(), case["description"]);
            figures.schemas += 1;
            match compiler.compile(&Grammar::JsonSchema(schema.clone())) {
                Ok(constraint) => {
                    figures.compiled += 1;
                    check_instances(&mut figures, case, constraint.as_ref(), &name);
                    check_walks(&mut figures, &schema, constraint.as_ref(), &name);
                }
                Err(GrammarError::Unsupported { construct, .. }) => {
                    let construct = construct.split_whitespace().next().unwrap_or_default().to_owned();
                    *figures.refused.entry(construct).or_default() += 1;
                }
                Err(GrammarError::Invalid { reason }) => {
                    eprintln!("{name}: {reason}");
                    figures.invalid += 1;
                }
                Err(other) => panic!("{name}: {other}"),
            }
        }
    }
    figures
}

#[test]
fn what_is_allowed_is_valid_in_the_whole_suite() {
    let Some(suite) = std::env::var_os("LICHEN_SCHEMA_SUITE") else {
        eprintln!("skipped: LICHEN_SCHEMA_SUITE is not set; scripts/schema-suite fetches the suite");
        return;
    };
    let compiler = compiler();
    for (draft, uri) in [
        ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
        ("draft7", "http://json-schema.org/draft-07/schema#"),
    ] {
        let figures = check_draft(&compiler, &Path::new(&suite).join(draft), uri);
        eprintln!("{draft}: {figures:#?}");
        assert!(
            figures.compiled * 5 > figures.schemas * 2,
            "most schemas that are whole in themselves compile"
        );
        assert!(figures.walks_finished > figures.walks_unfinished);
    }
}
