//! JSON under a schema: what is finished is valid, what can't be enforced is refused.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Random, accepts, compiler, walk};
use lichen_constraint::{Grammar, GrammarError};
use proptest::prelude::*;
use serde_json::{Value, json};

fn schema(schema: Value) -> Grammar {
    Grammar::JsonSchema(schema)
}

/// Cases per property.
const CASES: u32 = 100;

/// Every walk that ends gives an instance that an independent validator accepts; how many there were.
fn check_walks(source: &Value, walks: u64) -> usize {
    let validator = jsonschema::options().should_validate_formats(true).build(source).unwrap();
    let compiler = compiler();
    let finished = (0..walks).filter_map(|seed| {
        let mut constraint = compiler.compile(&schema(source.clone())).unwrap();
        let text = walk(constraint.as_mut(), &mut Random(seed))?;
        if let Some(instance) = common::read(&text) {
            assert!(validator.is_valid(&instance), "{source} allowed {text}");
        }
        Some(())
    });
    finished.count()
}

#[test]
fn an_object_of_any_kind_is_json_on_one_line() {
    let compiler = compiler();
    let mut finished = 0;
    for seed in 0..60 {
        let mut constraint = compiler.compile(&Grammar::JsonObject).unwrap();
        let Some(text) = walk(constraint.as_mut(), &mut Random(seed)) else { continue };
        assert!(!text.contains('\n') && text.starts_with('{'), "{text}");
        assert!(common::read(&text).is_none_or(|value| value.is_object()), "{text}");
        finished += 1;
    }
    assert!(finished > 30);
    assert!(accepts(&Grammar::JsonObject, r#"{"a": [1, {"b": null}],"c":"é\n"}"#));
    assert!(!accepts(&Grammar::JsonObject, r#"{"a":  1}"#), "two spaces");
    assert!(!accepts(&Grammar::JsonObject, "[1]"));
}

#[test]
fn finished_instances_are_valid() {
    let schemas = [
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
            "minimum": 0,
            "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "array", "items": {"enum": ["red", "green", 3, null, {"a": [1]}]}, "minItems": 1,
            "maxItems": 3}),
        json!({"anyOf": [{"type": "string", "pattern": "^[a-f]+\\d$"},
            {"type": "number", "multipleOf": 0.25}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
                "required": ["kind", "radius"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
                "required": ["kind", "side"], "additionalProperties": false}]}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            "required": ["value"], "additionalProperties": false}}}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "boolean"}},
            "additionalProperties": {"type":
            "integer"}, "properties": {"a": {"type": "null"}}, "maxProperties": 5, "minProperties": 1,
            "required": ["a"]}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"format": "date"}], "items": false}),
        json!({"type": ["string", "null"], "minLength": 2, "maxLength": 3}),
        json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"minimum": 3}}}],
            "type": "object", "required": ["a"]}),
        json!({"properties": {"a\"b": {"type": "integer"}}, "type": "object", "additionalProperties": true}),
    ];
    for source in &schemas {
        assert!(check_walks(source, 40) >= 10, "{source} is rarely finished");
    }
}

#[test]
fn formats_are_enforced_exactly() {
    for format in [
        "date",
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "json-pointer",
    ] {
        check_walks(&json!({"type": "string", "format": format}), 60);
    }
    let date = schema(json!({"format": "date"}));
    assert!(accepts(&date, r#""2024-02-29""#) && accepts(&date, r#""2000-02-29""#) && accepts(&date, "17"));
    assert!(!accepts(&date, r#""2023-02-29""#) && !accepts(&date, r#""1900-02-29""#));
    let address = schema(json!({"type": "string", "format": "ipv6"}));
    assert!(accepts(&address, r#""::1""#) && accepts(&address, r#""2001:db8::ff00:42:8329""#));
    assert!(!accepts(&address, r#""1::2::3""#) && !accepts(&address, r#""1:2:3:4:5:6:7:8:9""#));
}

#[test]
fn a_taken_name_can_not_come_again_in_disguise() {
    let grammar = schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    assert!(accepts(&grammar, r#"{"a":1,"b":"x"}"#));
    assert!(!accepts(&grammar, r#"{"a":1,"\u0061":"x"}"#));
    assert!(!accepts(&grammar, r#"{"\u0061":"x"}"#));
}

#[test]
fn what_can_not_be_enforced_is_refused_by_name() {
    let cases = [
        ("not", json!({"not": {"type": "string"}})),
        ("if", json!({"if": {"type": "string"}, "then": {"minLength": 2}})),
        ("uniqueItems", json!({"type": "array", "uniqueItems": true})),
        ("contains", json!({"properties": {"a": {"contains": {"const": 1}}}})),
        ("dependentRequired", json!({"dependentRequired": {"a": ["b"]}})),
        ("unevaluatedProperties", json!({"unevaluatedProperties": false})),
        ("propertyNames", json!({"$ref": "#/$defs/a", "$defs": {"a": {"propertyNames": {"maxLength": 3}}}})),
        ("format regex", json!({"format": "regex"})),
        ("minProperties", json!({"type": "object", "minProperties": 2})),
        ("oneOf", json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]})),
        ("$ref", json!({"$ref": "https://example.com/schema"})),
        (
            "$ref",
            json!({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]},
                "b": {"anyOf": [{"$ref": "#/$defs/a"}, true]}}}),
        ),
        ("$id", json!({"properties": {"a": {"$id": "other", "$ref": "#/$defs/b"}}})),
        ("$schema", json!({"$schema": "https://example.com/meta"})),
        ("minimum", json!({"minimum": 1e20})),
        ("const", json!({"const": 9_007_199_254_740_993_u64})),
        ("const", json!({"enum": ["a\u{1}"]})),
        ("multipleOf", json!({"multipleOf": 0.123_456_789_012})),
        ("multipleOf", json!({"allOf": [{"multipleOf": 70_001}, {"multipleOf": 3}]})),
        ("exclusiveMinimum/exclusiveMaximum", json!({"exclusiveMinimum": 0, "maximum": 0.5})),
        (
            "patternProperties",
            json!({"type": "object", "patternProperties": {"a": true, "b": {"type": "null"}}}),
        ),
    ];
    for (name, source) in cases {
        match compiler().compile(&schema(source.clone())) {
            Err(GrammarError::Unsupported { construct, .. }) => assert_eq!(construct, name, "{source}"),
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn patterns_that_are_not_regular_are_refused() {
    for pattern in
        ["(?=a)b", "(a)\\1", "\\bword\\b", "(?<!a)b", "(?i:a)", "a{x}", "a\\x01", "[\\x7f]", "[]", "\\ud800"]
    {
        let refused = compiler().compile(&schema(json!({"type": "string", "pattern": pattern}))).unwrap_err();
        assert!(matches!(refused, GrammarError::Unsupported { .. }), "{pattern}: {refused}");
    }
    for pattern in ["(a", "a)", "*a", "a**", "[b-a]", "a{3,2}", "[a", "\\"] {
        let refused = compiler().compile(&schema(json!({"type": "string", "pattern": pattern}))).unwrap_err();
        assert!(matches!(refused, GrammarError::Invalid { .. }), "{pattern}: {refused}");
    }
}

#[test]
fn schemas_that_are_not_valid_are_refused() {
    for source in [
        json!(3),
        json!(false),
        json!({"type": "text"}),
        json!({"properties": []}),
        json!({"required": "a"}),
        json!({"minLength": -1}),
        json!({"anyOf": []}),
        json!({"$ref": "#/$defs/missing"}),
        json!({"minimum": "3"}),
        json!({"multipleOf": 0}),
        json!({"type": "integer", "minimum": 3, "maximum": 2}),
    ] {
        let refused = compiler().compile(&schema(source.clone())).unwrap_err();
        assert!(matches!(refused, GrammarError::Invalid { .. }), "{source}: {refused}");
    }
}

#[test]
fn annotations_and_unknown_keywords_do_no_harm() {
    let grammar = schema(json!({
        "title": "T", "description": "d", "default": 3, "examples": [1], "$comment": "c", "deprecated": true,
        "readOnly": true, "contentMediaType": "text/plain", "x-vendor": {"not": {}}, "format": "int32",
        "uniqueItems": false, "type": "integer"
    }));
    assert!(accepts(&grammar, "12") && !accepts(&grammar, "\"a\""));
}

#[test]
fn references_follow_pointers_and_anchors() {
    let grammar = schema(json!({
        "$id": "https://example.com/root", "type": "object", "additionalProperties": false,
        "properties": {
            "a": {"$ref": "#/$defs/slash~1tilde~0percent%25"},
            "b": {"$ref": "https://example.com/root#named"},
            "c": {"$ref": "#/$defs/list/prefixItems/1"},
        },
        "$defs": {
            "slash/tilde~percent%": {"const": 1},
            "other": {"$anchor": "named", "const": 2},
            "list": {"prefixItems": [true, {"const": 3}]},
        },
    }));
    assert!(accepts(&grammar, r#"{"a": 1, "b": 2, "c": 3}"#));
    assert!(
        !accepts(&grammar, r#"{"a": 2}"#)
            && !accepts(&grammar, r#"{"b": 1}"#)
            && !accepts(&grammar, r#"{"c": 1}"#)
    );
}

#[test]
fn drafts_differ_in_tuples_references_and_exclusive_bounds() {
    let old = "http://json-schema.org/draft-07/schema#";
    let tuple = schema(json!({"$schema": old, "items": [{"const": 1}], "additionalItems": {"const": 2}}));
    assert!(accepts(&tuple, "[1, 2, 2]") && !accepts(&tuple, "[2]") && !accepts(&tuple, "[1, 3]"));
    let siblings = schema(json!({"$schema": old, "definitions": {"a": {"type": "string"}},
        "properties": {"a": {"$ref": "#/definitions/a", "maxLength": 1}}}));
    assert!(accepts(&siblings, r#"{"a": "long"}"#));
    let bound = schema(json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer",
        "minimum": 3, "exclusiveMinimum": true}));
    assert!(accepts(&bound, "4") && !accepts(&bound, "3"));
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        (-50_i32..50).prop_map(f64::from),
        (-2000_i32..2000).prop_map(|number| f64::from(number) / 100.0),
        (-9_000_000_i64..9_000_000).prop_map(|number| number as f64 / 1000.0),
    ]
}

/// Literals, classes, groups and anchors, repeated and as alternatives.
const PATTERNS: &str =
    r"(\^)?([ab.]|\\d|\[\^a\]|\((a|b|ab)\|b?\)|\(\^a\|b\$\)){1,4}([*+?]|\{1,2\})?(\||\|b)?(\$)?";

/// Schemas of keywords that meet in all ways, to some depth.
fn combined() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        prop::sample::select(vec!["null", "boolean", "integer", "number", "string", "array", "object"])
            .prop_map(|name| json!({"type": name})),
        prop::sample::select(vec![
            json!(1),
            json!("a"),
            json!(null),
            json!([1, "a"]),
            json!({"a": 1}),
            json!(0.5)
        ])
        .prop_map(|value| json!({"const": value})),
        Just(json!({"enum": ["a", "b", 1, 2, true, {"a": "b"}]})),
        (0..4_u64, 0..4_u64).prop_map(|(least, more)| json!({"minLength": least, "maxLength": least + more})),
        prop::sample::select(vec!["^a", "b$", "^[ab]*$", "a.b", "\\\\d{2}"])
            .prop_map(|text| json!({"pattern": text})),
        (-3..3, 0..5).prop_map(|(least, more)| json!({"minimum": least, "exclusiveMaximum": least + more})),
        prop::sample::select(vec![json!(2), json!(0.5), json!(3)])
            .prop_map(|number| json!({"multipleOf": number})),
        (0..3_u64, 0..3_u64).prop_map(|(least, more)| json!({"minItems": least, "maxItems": least + more})),
        (0..2_u64, 0..3_u64)
            .prop_map(|(least, more)| json!({"minProperties": least, "maxProperties": least + more})),
        prop::sample::subsequence(vec!["a", "b", "c"], 1..3).prop_map(|names| json!({"required": names})),
        any::<bool>().prop_map(Value::from),
        Just(json!({"$ref": "#/$defs/shared"})),
    ];
    leaf.prop_recursive(3, 24, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 1..3);
        let name = prop::sample::select(vec!["a", "b", "c"]);
        let map = prop::collection::btree_map(name, inner.clone(), 1..3);
        prop_oneof![
            list.clone().prop_map(|all| json!({"allOf": all})),
            list.clone().prop_map(|any| json!({"anyOf": any})),
            list.clone().prop_map(|one| json!({"oneOf": one})),
            list.prop_map(|first| json!({"prefixItems": first})),
            inner.clone().prop_map(|items| json!({"items": items})),
            map.clone().prop_map(|named| json!({"properties": named})),
            map.prop_map(|named| json!({"patternProperties": named})),
            inner.clone().prop_map(|other| json!({"additionalProperties": other})),
            // Keywords of two schemas side by side.
            (inner.clone(), inner).prop_map(|(one, other)| match (one, other) {
                (Value::Object(mut one), Value::Object(other)) => {
                    one.extend(other);
                    Value::Object(one)
                }
                (one, _) => one,
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn combined_schemas_allow_valid_instances_only(source in combined(), shared in combined()) {
        let source = json!({"allOf": [source], "$defs": {"shared": shared}});
        if compiler().compile(&schema(source.clone())).is_ok() {
            check_walks(&source, 8);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn numbers_stay_within_bounds(
        bounds in prop::collection::vec((0_usize..4, number()), 0..3),
        integer in any::<bool>(),
        candidates in prop::collection::vec(number(), 20),
    ) {
        let mut source = json!({"type": if integer { "integer" } else { "number" }});
        for (keyword, bound) in bounds {
            source[["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"][keyword]] = json!(bound);
        }
        let validator = jsonschema::validator_for(&source).unwrap();
        let Ok(constraint) = compiler().compile(&schema(source.clone())) else { return Ok(()) };
        for candidate in candidates {
            for text in [candidate.to_string(), format!("{candidate:.3}"), format!("{candidate:.0}")] {
                let instance: Value = serde_json::from_str(&text).unwrap();
                if common::follows(constraint.fork(), &text) {
                    prop_assert!(validator.is_valid(&instance), "{source} allowed {text}");
                }
            }
        }
        check_walks(&source, 5);
    }

    #[test]
    fn a_pattern_means_what_ecma_262_says(
        pattern in PATTERNS,
        texts in prop::collection::vec("[ab1\u{2028}]{0,5}", 12),
    ) {
        let source = json!({"type": "string", "pattern": pattern});
        let Ok(constraint) = compiler().compile(&schema(source)) else { return Ok(()) };
        let independent = pattern.replace("\\d", "[0-9]").replace('.', "[^\\n\\r\\u2028\\u2029]");
        let independent = regex::Regex::new(&independent).unwrap();
        for text in texts {
            let quoted = Value::from(text.as_str()).to_string();
            let is_allowed = common::follows(constraint.fork(), &quoted);
            prop_assert_eq!(is_allowed, independent.is_match(&text), "{} and {:?}", pattern, text);
        }
    }
}
