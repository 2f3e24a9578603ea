//! Grammars that let only well-formed calls through.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_text::{CallableTool, ToolDialect};
use serde_json::{Value, json};

const DIALECTS: [ToolDialect; 5] = [
    ToolDialect::Hermes,
    ToolDialect::Llama3,
    ToolDialect::Mistral,
    ToolDialect::Qwen3Coder,
    ToolDialect::Json,
];

fn weather() -> CallableTool {
    let properties = json!({
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "at": {"$ref": "#/$defs/place"},
    });
    let place = json!({"place": {"type": "object"}});
    let parameters = json!({"properties": properties, "required": ["city"], "$defs": place});
    CallableTool { name: "weather".into(), parameters }
}

fn quoted(mark: &str) -> String {
    Value::from(mark).to_string()
}

fn grammar(dialect: ToolDialect, several: bool, begun: bool) -> String {
    let time = CallableTool { name: "say \"t\"".into(), parameters: Value::Null };
    dialect.grammar(&[weather(), time], several, begun, &quoted)
}

/// The right side of a rule.
fn rule<'a>(grammar: &'a str, name: &str) -> &'a str {
    let mut lines = grammar.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(rule, _)| *rule == name).unwrap_or_else(|| panic!("no {name} in {grammar}")).1
}

#[test]
fn objects_have_a_name_on_offer_and_arguments_by_its_schema() {
    let grammar = grammar(ToolDialect::Hermes, false, false);
    assert_eq!(rule(&grammar, "start"), r#""<tool_call>" body"#);
    assert_eq!(rule(&grammar, "body"), r#""\n"? call "\n"? "</tool_call>""#);
    assert_eq!(rule(&grammar, "call"), "call_0 | call_1");
    assert_eq!(rule(&grammar, "call_0"), r#""{\"name\": \"weather\", \"arguments\": " arguments_0 "}""#);
    assert_eq!(
        rule(&grammar, "call_1"),
        r#""{\"name\": \"say \\\"t\\\"\", \"arguments\": " arguments_1 "}""#
    );
    assert_eq!(rule(&grammar, "arguments_1"), r#""{}""#);
    let schema = rule(&grammar, "arguments_0").strip_prefix("%json ").unwrap();
    let mut expected = weather().parameters;
    expected["type"] = json!("object");
    assert_eq!(serde_json::from_str::<Value>(schema).unwrap(), expected);
}

#[test]
fn only_a_tool_without_parameters_has_none() {
    let arguments = |parameters| {
        let tool = CallableTool { name: "f".into(), parameters };
        let grammar = ToolDialect::Json.grammar(&[tool], false, false, &quoted);
        rule(&grammar, "arguments_0").to_owned()
    };
    for parameters in [
        json!(null),
        json!({}),
        json!(true),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object", "additionalProperties": false}),
    ] {
        assert_eq!(arguments(parameters), r#""{}""#);
    }
    let by_name = json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}});
    for parameters in [json!({"type": "object", "additionalProperties": {"type": "string"}}), by_name] {
        assert_eq!(arguments(parameters.clone()), format!("%json {parameters}"));
    }
}

#[test]
fn calls_follow_the_trigger_that_has_been_written() {
    let start = |dialect, several, begun| rule(&grammar(dialect, several, begun), "start").to_owned();
    assert_eq!(start(ToolDialect::Hermes, false, true), "body");
    assert_eq!(start(ToolDialect::Hermes, true, true), r#"body ("\n"? "<tool_call>" body)*"#);
    assert_eq!(start(ToolDialect::Qwen3Coder, false, false), r#""<tool_call>" body"#);
    assert_eq!(start(ToolDialect::Llama3, true, false), r#""<|python_tag|>"? call ("; " call)*"#);
    assert_eq!(start(ToolDialect::Llama3, false, true), "call");
    assert_eq!(start(ToolDialect::Mistral, false, true), r#"(named | " "? "[" call "]")"#);
    let several = r#""[TOOL_CALLS]" (named ("[TOOL_CALLS]" named)* | " "? "[" call (", " call)* "]")"#;
    assert_eq!(start(ToolDialect::Mistral, true, false), several);
    assert_eq!(start(ToolDialect::Json, false, false), "call");
    assert_eq!(start(ToolDialect::Json, true, false), r#"call | "[" call (", " call)* "]""#);
}

#[test]
fn marks_are_written_as_the_caller_says() {
    let control = |mark: &str| format!("<[{}]>", mark.len());
    let grammar = ToolDialect::Mistral.grammar(&[weather()], false, false, &control);
    assert_eq!(rule(&grammar, "named_0"), r#""weather" identifier? <[6]>? arguments_0"#);
    assert_eq!(rule(&grammar, "identifier"), "<[9]> /[a-zA-Z0-9]{9}/");
    assert!(rule(&grammar, "start").starts_with("<[12]> ("));
    assert!(
        rule(&ToolDialect::Llama3.grammar(&[weather()], false, false, &control), "start").contains("<[14]>?")
    );
}

#[test]
fn llama_has_parameters() {
    let grammar = grammar(ToolDialect::Llama3, false, false);
    assert_eq!(rule(&grammar, "call_0"), r#""{\"name\": \"weather\", \"parameters\": " arguments_0 "}""#);
}

#[test]
fn parameters_as_text_are_checked_by_their_types() {
    let grammar = grammar(ToolDialect::Qwen3Coder, false, false);
    let parameters = "parameter_0_0 parameter_0_1? parameter_0_2? parameter_0_3?";
    assert_eq!(rule(&grammar, "function_0"), format!(r#""<function=weather>\n" {parameters} "</function>""#));
    assert_eq!(rule(&grammar, "function_1"), r#""<function=say \"t\">\n" "</function>""#);
    assert_eq!(rule(&grammar, "parameter_0_0"), r#""<parameter=city>\n" text "\n""#);
    let days = r#""<parameter=days>\n" %json {"type":"integer","#;
    assert!(rule(&grammar, "parameter_0_1").starts_with(days));
    let unit = r#""<parameter=unit>\n" ("C" | "F") "\n</parameter>" "\n""#;
    assert_eq!(rule(&grammar, "parameter_0_2"), unit);
    let at = r##"%json {"$ref":"#/$defs/place","$defs":{"place":{"type":"object"}}} "\n</parameter>" "\n""##;
    assert!(rule(&grammar, "parameter_0_3").ends_with(at));
    assert_eq!(rule(&grammar, "text[suffix=\"</parameter>\"]"), "/(?s:.*)/");
}

#[test]
fn schemas_that_lead_in_circles_end() {
    let many = vec![json!({"$ref": "#/$defs/a"}); 100];
    let parameters = json!({
        "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/properties/y"}},
        "$defs": {"a": {"anyOf": many}},
    });
    let tool = CallableTool { name: "f".into(), parameters };
    let grammar = ToolDialect::Qwen3Coder.grammar(&[tool], true, false, &quoted);
    assert_eq!(rule(&grammar, "parameter_0_0"), r#""<parameter=x>\n" text "\n""#);
    assert_eq!(rule(&grammar, "parameter_0_1"), r#""<parameter=y>\n" text "\n""#);
}

#[test]
fn without_tools_nothing_is_let_through() {
    for dialect in DIALECTS {
        assert_eq!(dialect.grammar(&[], true, false, &quoted), "start: \"\"\n");
    }
}

#[test]
fn a_dialect_that_marks_every_call_requires_the_mark() {
    for dialect in DIALECTS {
        let start = rule(&grammar(dialect, false, false), "start").to_owned();
        let required = dialect.trigger().is_some_and(|mark| start.starts_with(&format!("{} ", quoted(mark))));
        assert_eq!(dialect.marks_every_call(), required, "{start}");
    }
}

#[test]
fn a_trigger_is_a_mark() {
    for dialect in DIALECTS {
        assert_eq!(dialect.trigger().is_some(), dialect != ToolDialect::Json);
        assert_eq!(dialect.trigger(), dialect.marks().first().copied());
    }
}
