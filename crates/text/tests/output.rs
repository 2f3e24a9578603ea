//! What models of each family write, taken apart.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/events.rs"]
mod events;

use events::merged;
use lichen_text::OutputEvent::{self, Reasoning, Text, ToolArguments, ToolStart};
use lichen_text::{CallableTool, OutputParser, OutputSetup, ThinkingMarks, ToolDialect};
use serde_json::{Value, json};

const THINK: ThinkingMarks = ThinkingMarks { open: "<think>", close: "</think>" };

fn tools() -> Vec<CallableTool> {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "hourly": {"type": "boolean"},
            "at": {"$ref": "#/$defs/place"},
        },
        "required": ["city"],
        "$defs": {"place": {"type": "object"}},
    });
    let tool = |name: &str, parameters| CallableTool { name: name.to_owned(), parameters };
    vec![tool("weather", weather), tool("time", json!({"type": "object", "properties": {}}))]
}

fn read_with(setup: OutputSetup, answer: &str) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(setup);
    let mut events = parser.push(answer);
    events.extend(parser.finish());
    merged(events)
}

fn read(dialect: ToolDialect, answer: &str) -> Vec<OutputEvent> {
    read_with(OutputSetup { tools: Some((dialect, tools())), ..OutputSetup::default() }, answer)
}

fn think(begun: bool, answer: &str) -> Vec<OutputEvent> {
    let tools = Some((ToolDialect::Hermes, tools()));
    read_with(OutputSetup { thinking: Some((THINK, begun)), tools, ..OutputSetup::default() }, answer)
}

#[test]
fn an_answer_of_calls_or_text_has_no_calls_after_text() {
    let read = |dialect, answer: &str| {
        let tools = Some((dialect, tools()));
        read_with(OutputSetup { thinking: Some((THINK, false)), tools, calls_or_text: true }, answer)
    };
    let quoted = [
        (ToolDialect::Hermes, r#"{"a": "<tool_call>"}<tool_call>{"name": "time", "arguments": {}}"#),
        (ToolDialect::Qwen3Coder, r#"["<tool_call><function=time></function></tool_call>"]"#),
        (ToolDialect::Mistral, r#"["[TOOL_CALLS]time{}"]"#),
    ];
    for (dialect, answer) in quoted {
        assert_eq!(read(dialect, answer), [text(answer)]);
    }
    let called = "<think>x</think>\n<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>";
    assert!(matches!(&read(ToolDialect::Hermes, called)[1], ToolStart { index: 0, name } if name == "time"));
}

fn text(text: &str) -> OutputEvent {
    Text(text.to_owned())
}

fn reasoning(text: &str) -> OutputEvent {
    Reasoning(text.to_owned())
}

fn call(index: usize, name: &str, arguments: &str) -> [OutputEvent; 2] {
    let fragment = arguments.to_owned();
    [ToolStart { index, name: name.to_owned() }, ToolArguments { index, fragment }]
}

fn weather(arguments: &str) -> Vec<OutputEvent> {
    call(0, "weather", arguments).into()
}

mod hermes {
    use super::*;

    fn hermes(answer: &str) -> Vec<OutputEvent> {
        read(ToolDialect::Hermes, answer)
    }

    #[test]
    fn a_call_without_marks_at_the_beginning_is_a_call() {
        let answer = "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n";
        assert_eq!(hermes(answer), weather(r#"{"city": "Rome"}"#));
        let [first, second] = [call(0, "weather", r#"{"city": "Rome"}"#), call(1, "time", "{}")];
        let several = format!("{answer}{{\"name\": \"time\", \"arguments\": {{}}}}");
        assert_eq!(hermes(&several), [first, second].concat());
    }

    #[test]
    fn an_object_that_calls_no_tool_and_one_within_text_are_text() {
        for answer in [
            "{\"name\": \"Rome\", \"arguments\": {}}",
            "{}",
            "{",
            "So: {\"name\": \"time\", \"arguments\": {}}",
        ] {
            assert_eq!(hermes(answer), [text(answer)]);
        }
    }

    #[test]
    fn text_before_a_call_is_text_and_white_space_around_calls_is_nothing() {
        let answer = "I'll look it up.\n\n<tool_call>\n\
            {\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
            </tool_call>\n<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>\n";
        let [first, second] = [call(0, "weather", r#"{"city": "Rome"}"#), call(1, "time", "{}")];
        assert_eq!(hermes(answer), [vec![text("I'll look it up.")], first.into(), second.into()].concat());
    }

    #[test]
    fn arguments_are_told_as_they_were_written() {
        let arguments =
            r#"{"city" : "{\"}</tool_call>é\u00e9\ud83d\ude00","at":{"a":[-1.5e3,{}]}, "x": null}"#;
        let answer = format!("<tool_call>{{\"name\":\"weather\",\"arguments\":{arguments}}}</tool_call>");
        assert_eq!(hermes(&answer), weather(arguments));
    }

    #[test]
    fn arguments_arrive_before_the_call_ends() {
        let tools = Some((ToolDialect::Hermes, tools()));
        let mut parser = OutputParser::new(OutputSetup { tools, ..OutputSetup::default() });
        assert_eq!(parser.push("Let <"), [text("Let")]);
        assert_eq!(parser.push("me <tool_call>{\"name\": \"weather\", "), [text(" <me")]);
        assert!(!parser.in_text());
        assert_eq!(parser.push(r#""arguments": {"city": "Ro"#), call(0, "weather", r#"{"city": "Ro"#));
        assert_eq!(parser.push(r"me \u00"), [ToolArguments { index: 0, fragment: "me ".into() }]);
        assert_eq!(parser.push("e9"), [ToolArguments { index: 0, fragment: r"\u00e9".into() }]);
        assert_eq!(parser.push("\"}"), [ToolArguments { index: 0, fragment: "\"}".into() }]);
        assert_eq!(parser.push("}</tool_call> Done"), [text("Done")]);
        assert!(parser.in_text());
        assert_eq!(parser.finish(), []);
    }

    #[test]
    fn the_keys_may_come_in_any_order_and_by_other_names() {
        let arguments = r#"{"city": "Rome"}"#;
        for object in [
            format!(r#"{{"arguments": {arguments}, "name": "weather"}}"#),
            format!(
                r#"{{"id": 7, "type": "function", "function": "weather", "parameters": {arguments}, "x": 1}}"#
            ),
            r#"{"name": "weather", "arguments": "{\"city\": \"Rome\"}"}"#.to_owned(),
            r#"{"arguments": "{\"city\": \"Rome\"}", "name": "weather"}"#.to_owned(),
        ] {
            assert_eq!(hermes(&format!("<tool_call>{object}</tool_call>")), weather(arguments), "{object}");
        }
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        for rest in ["", r#", "arguments": null"#, r#", "arguments": {}"#, r#", "arguments": "" "#] {
            let answer = format!(r#"<tool_call>{{"name": "time"{rest}}}</tool_call>"#);
            assert_eq!(hermes(&answer), call(0, "time", "{}"), "{rest}");
        }
    }

    #[test]
    fn the_closing_mark_may_be_missing() {
        let object = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
        assert_eq!(hermes(&format!("<tool_call>{object}\n")), weather(r#"{"city": "Rome"}"#));
        assert_eq!(hermes(&format!("<tool_call>{object}<tool_call>{object}")).len(), 4);
    }

    #[test]
    fn what_is_no_call_is_text_with_its_marks() {
        for answer in [
            "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
            " \n<tool_call>\n{\"name\": \"weather\", \"arguments\": [1]}\n</tool_call>",
            "<tool_call>{\"name\": \"weather\" \"arguments\": {}}</tool_call>",
            "<tool_call>{'name': 'weather'}</tool_call>",
            "<tool_call>{\"name\": \"weather\", \"arguments\": \"{\"}",
            "<tool_call>{\"name\": \"weather\", \"argum",
            "<tool_call>weather</tool_call>",
            "a </tool_call> b <tool_c\n",
        ] {
            assert_eq!(hermes(answer), [text(answer)]);
        }
    }

    #[test]
    fn a_call_may_follow_a_mark_that_began_none() {
        let answer = r#"<tool_call><tool_call>{"name": "time"}</tool_call>"#;
        assert_eq!(hermes(answer), [vec![text("<tool_call>")], call(0, "time", "{}").into()].concat());
    }

    #[test]
    fn arguments_that_break_are_closed_and_the_rest_is_text() {
        let begun =
            |rest: &str| hermes(&format!("<tool_call>{{\"name\": \"weather\", \"arguments\": {rest}"));
        let closed = |arguments, rest| [weather(arguments), vec![text(rest)]].concat();
        assert_eq!(begun(r#"{"at": [{"x": "Ro"#), weather(r#"{"at": [{"x": "Ro"}]}"#));
        assert_eq!(begun(r#"{"days": 3, x}}"#), closed(r#"{"days": 3}"#, ", x}}"));
        assert_eq!(begun(r#"{"days": tru}}"#), closed("{}", r#""days": tru}}"#));
        assert_eq!(begun(r#"{"city": "a\x"}}"#), closed(r#"{"city": "a"}"#, r#"\x"}}"#));
        assert_eq!(begun(r#"{"days": 12"#), closed("{}", r#""days": 12"#));
        assert_eq!(begun(r#"{}, 1}"#), closed("{}", ", 1}"));
    }

    #[test]
    fn nesting_without_end_ends() {
        let answer =
            format!(r#"<tool_call>{{"name": "weather", "arguments": {{"at": {}"#, "[".repeat(100_000));
        let events = hermes(&answer);
        let ToolArguments { fragment, .. } = &events[1] else { panic!("{events:?}") };
        assert!(serde_json::from_str::<Value>(fragment).unwrap().is_object());
    }
}

mod llama3 {
    use super::*;

    fn llama3(answer: &str) -> Vec<OutputEvent> {
        read(ToolDialect::Llama3, answer)
    }

    #[test]
    fn a_call_is_the_answer_with_or_without_the_mark() {
        let object = r#"{"name": "weather", "parameters": {"city": "Rome"}}"#;
        for answer in [format!("\n {object}"), format!("<|python_tag|>{object}"), format!("{object};\n")] {
            assert_eq!(llama3(&answer), weather(r#"{"city": "Rome"}"#), "{answer}");
        }
        let typed = r#"{"type": "function", "name": "weather", "parameters": {"city": "Rome"}}"#;
        assert_eq!(llama3(typed), weather(r#"{"city": "Rome"}"#));
    }

    #[test]
    fn calls_are_separated_by_semicolons_line_breaks_or_marks() {
        let object = r#"{"name": "time", "parameters": {}}"#;
        for between in ["; ", "\n", ";\n", "<|python_tag|>"] {
            let two = [call(0, "time", "{}"), call(1, "time", "{}")].concat();
            assert_eq!(llama3(&[object, between, object].concat()), two, "{between}");
        }
    }

    #[test]
    fn an_answer_that_begins_otherwise_is_text() {
        for answer in [
            r#"Sure: {"name": "time", "parameters": {}}"#,
            "Sure <|python_tag|>{\"name\": \"time\"}",
            "<|python_tag|>print({})",
            r#"{"answer": {"city": "Rome"}} {"name": "time"}"#,
            "; {\"name\": \"time\"}",
            " <<|python_",
        ] {
            assert_eq!(llama3(answer), [text(answer)]);
        }
    }

    #[test]
    fn text_after_a_call_is_text() {
        let answer = r#"{"name": "time"} and {"name": "time"}"#;
        let rest = text(r#"and {"name": "time"}"#);
        assert_eq!(llama3(answer), [call(0, "time", "{}").to_vec(), vec![rest]].concat());
    }
}

mod mistral {
    use super::*;

    fn mistral(answer: &str) -> Vec<OutputEvent> {
        read(ToolDialect::Mistral, answer)
    }

    #[test]
    fn an_array_of_calls_follows_the_mark() {
        let answer = concat!(
            r#"Well. [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "]"}}, "#,
            r#"{"name": "time", "arguments": {}}]"#
        );
        let calls = [call(0, "weather", r#"{"city": "]"}"#), call(1, "time", "{}")].concat();
        assert_eq!(mistral(answer), [vec![text("Well.")], calls].concat());
    }

    #[test]
    fn a_name_and_arguments_follow_the_mark() {
        let arguments = r#"{"city": "Rome"}"#;
        for header in ["weather[ARGS]", "weather", "weather[CALL_ID]Ab3dEf9hI[ARGS]", "weather[ARGS] "] {
            let one = format!("[TOOL_CALLS]{header}{arguments}");
            assert_eq!(mistral(&one), weather(arguments), "{one}");
            let two = [call(0, "weather", arguments), call(1, "weather", arguments)].concat();
            assert_eq!(mistral(&format!("{one}{one}\n")), two, "{one}");
        }
    }

    #[test]
    fn what_is_no_call_is_text_with_its_marks() {
        let long = format!("[TOOL_CALLS]weather[CALL_ID]{}[ARGS]{{}}", "x".repeat(1000));
        for answer in [
            r#"[TOOL_CALLS] [{"name": "unknown", "arguments": {}}]"#,
            "[TOOL_CALLS]unknown[ARGS]{\"city\": 1}",
            "[TOOL_CALLS]weather[ARGS]",
            "[TOOL_CALLS] []",
            "[TOOL_CALLS] ",
            "a [TOOL_CALL",
            long.as_str(),
        ] {
            assert_eq!(mistral(answer), [text(answer)]);
        }
    }

    #[test]
    fn a_call_that_broke_off_is_text_after_the_calls_before_it() {
        let events = mistral(r#"[TOOL_CALLS][{"name": "time"}, {"name": "wea"#);
        assert_eq!(events, [call(0, "time", "{}").to_vec(), vec![text(r#", {"name": "wea"#)]].concat());
    }
}

mod qwen3_coder {
    use super::*;

    fn qwen(answer: &str) -> Vec<OutputEvent> {
        read(ToolDialect::Qwen3Coder, answer)
    }

    fn function(name: &str, parameters: &[(&str, &str)]) -> String {
        let write = |(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let parameters: String = parameters.iter().map(|&(key, value)| write((key, value))).collect();
        format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
    }

    #[test]
    fn values_become_json_by_the_schema() {
        for (key, value, json) in [
            ("city", "Rome", r#""Rome""#),
            ("city", "12", r#""12""#),
            ("city", "a \"b\"\n<c>\\\n", r#""a \"b\"\n<c>\\\n""#),
            ("city", "", r#""""#),
            ("days", "3", "3"),
            ("days", "three", r#""three""#),
            ("hourly", "true", "true"),
            ("hourly", "False", "false"),
            ("units", "None", r#""None""#),
            ("units", "null", "null"),
            ("units", "12", r#""12""#),
            ("at", r#"{"x": [1, 2]}"#, r#"{"x": [1, 2]}"#),
            ("unheard", "[1, 2]", "[1, 2]"),
            ("unheard", "[1, 2", r#""[1, 2""#),
            ("unheard", "1e999", r#""1e999""#),
        ] {
            let answer = function("weather", &[(key, value)]);
            assert_eq!(qwen(&answer), weather(&format!(r#"{{"{key}": {json}}}"#)), "{answer}");
        }
    }

    #[test]
    fn calls_have_any_number_of_parameters() {
        let first = function("weather", &[("city", "Rome"), ("days", "3")]);
        let answer = format!("Now:\n{first}\n{}\n", function("time", &[]));
        let calls = [call(0, "weather", r#"{"city": "Rome", "days": 3}"#), call(1, "time", "{}")].concat();
        assert_eq!(qwen(&answer), [vec![text("Now:")], calls].concat());
    }

    #[test]
    fn outer_marks_may_be_missing() {
        let inner = "<function=weather>\n<parameter=city>Rome</parameter>\n";
        for answer in [
            format!("{inner}</function>"),
            format!("<tool_call>{inner}</tool_call>"),
            format!("<tool_call>{inner}</function>"),
            format!("{inner}</function></tool_call>\n"),
            inner.to_owned(),
        ] {
            assert_eq!(qwen(&answer), weather(r#"{"city": "Rome"}"#), "{answer}");
        }
    }

    #[test]
    fn strings_arrive_before_they_end() {
        let tools = Some((ToolDialect::Qwen3Coder, tools()));
        let mut parser = OutputParser::new(OutputSetup { tools, ..OutputSetup::default() });
        let begun = parser.push("<tool_call><function=weather><parameter=city>\nRo\nme\n</par");
        assert_eq!(merged(begun), call(0, "weather", r#"{"city": "Ro\nme"#));
        assert_eq!(parser.push("t"), [ToolArguments { index: 0, fragment: r"\n</part".into() }]);
    }

    #[test]
    fn what_is_no_call_is_text_with_its_marks() {
        for answer in [
            "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
            "<tool_call>\n<function=weath>\n",
            "<tool_call>\n{\"name\": \"weather\"}",
            "<tool_call> <func",
            "a <function=",
            "b\n</tool_call>",
        ] {
            assert_eq!(qwen(answer), [text(answer)]);
        }
    }

    #[test]
    fn parameters_that_break_are_closed_and_the_rest_is_text() {
        let begun = |rest: &str| qwen(&format!("<function=weather>\n{rest}"));
        let closed = |arguments, rest| [weather(arguments), vec![text(rest)]].concat();
        assert_eq!(begun("<parameter=city>\nRome"), weather(r#"{"city": "Rome"}"#));
        assert_eq!(begun("<parameter=days>\n3"), closed("{}", "<parameter=days>3"));
        assert_eq!(begun("oh"), closed("{}", "oh"));
        assert_eq!(begun("<parameter=ci\nty>"), closed("{}", "<parameter=ci\nty>"));
        assert_eq!(begun("</funktion>"), closed("{}", "</funktion>"));
    }
}

mod json {
    use super::*;

    #[test]
    fn calls_are_the_whole_answer() {
        let object = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
        for answer in [
            object.to_owned(),
            format!(" [{object}]\n"),
            format!("```json\n{object}\n```"),
            format!("\n```\n[ {object} ]\n```\n"),
        ] {
            assert_eq!(read(ToolDialect::Json, &answer), weather(r#"{"city": "Rome"}"#), "{answer}");
        }
        let two = [call(0, "weather", r#"{"city": "Rome"}"#), call(1, "time", "{}")].concat();
        assert_eq!(read(ToolDialect::Json, &format!(r#"[{object}, {{"name": "time"}}]"#)), two);
    }

    #[test]
    fn any_other_answer_is_text() {
        for answer in [
            r#"{"city": "Rome"}"#,
            r#"[{"name": "unknown"}]"#,
            "```json\n{\"name\": \"Ann\"}\n```",
            "```json\n[1, 2]\n```",
            "```rust\nfn main() {}\n```",
            "A list: []",
            "[]",
            "``",
        ] {
            assert_eq!(read(ToolDialect::Json, answer), [text(answer)]);
        }
    }
}

mod thinking {
    use super::*;

    #[test]
    fn thinking_begins_with_the_answer_or_with_the_prompt() {
        let expected = [reasoning("\nHm <b>.\n"), text("Hello <think>x</think>")];
        assert_eq!(think(false, "\n <think>\nHm <b>.\n</think>\n\n Hello <think>x</think>"), expected);
        assert_eq!(think(true, "\nHm <b>.\n</think>\n\nHello <think>x</think>"), expected);
    }

    #[test]
    fn an_answer_without_thinking_is_text() {
        for answer in ["Hello", "\n Hello <think>a</think>", "<thing>", " <thi", ""] {
            let expected: Vec<_> = (!answer.is_empty()).then(|| text(answer)).into_iter().collect();
            assert_eq!(think(false, answer), expected);
        }
    }

    #[test]
    fn thinking_that_does_not_end_is_all_there_is() {
        let answer = "Let me see </thin";
        assert_eq!(think(true, answer), [reasoning(answer)]);
    }

    #[test]
    fn a_call_in_thinking_is_none_and_one_after_it_is() {
        let mark = r#"<tool_call>{"name": "time"}</tool_call>"#;
        let events = think(false, &format!("<think>Shall I {mark}?</think>\n{mark}"));
        let thought = reasoning(&format!("Shall I {mark}?"));
        assert_eq!(events, [vec![thought], call(0, "time", "{}").into()].concat());
    }

    #[test]
    fn text_is_read_outside_of_thinking_only() {
        let mut parser =
            OutputParser::new(OutputSetup { thinking: Some((THINK, true)), ..OutputSetup::default() });
        assert!(!parser.in_text());
        assert_eq!(parser.push("Hm</think>"), [reasoning("Hm")]);
        assert!(parser.in_text());
        assert_eq!(parser.push("\nSo <tool_call>"), [text("So <tool_call>")]);
    }
}

mod templates {
    use super::*;

    #[test]
    fn marks_of_a_template_name_the_dialect() {
        for (source, dialect) in [
            ("<tool_call>\n<function=example>", ToolDialect::Qwen3Coder),
            ("<tool_call>\n{\"name\": <function-name>}", ToolDialect::Hermes),
            ("[AVAILABLE_TOOLS]…[TOOL_CALLS]", ToolDialect::Mistral),
            ("<|start_header_id|>…<|python_tag|>", ToolDialect::Llama3),
            ("<|start_header_id|>…'\"parameters\": '", ToolDialect::Llama3),
            ("<|im_start|>", ToolDialect::Json),
        ] {
            assert_eq!(ToolDialect::of_template(source), dialect, "{source}");
        }
    }

    #[test]
    fn marks_of_a_template_name_its_thinking() {
        assert_eq!(ThinkingMarks::of_template("…<think>\\n…"), Some(THINK));
        assert_eq!(ThinkingMarks::of_template("content.split('</think>')[-1]"), Some(THINK));
        assert_eq!(ThinkingMarks::of_template("[THINK]…").unwrap().close, "[/THINK]");
        assert_eq!(ThinkingMarks::of_template("<thought>…").unwrap().close, "</thought>");
        assert_eq!(ThinkingMarks::of_template("<seed:think>").unwrap().close, "</seed:think>");
        assert_eq!(ThinkingMarks::of_template("<|im_start|>"), None);
    }
}
