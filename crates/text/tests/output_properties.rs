//! What holds for any answer: marks, pieces of calls and noise in any order, in pieces of any size.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "support/events.rs"]
mod events;

use events::merged;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lichen_text::OutputEvent::{self, Reasoning, Text, ToolArguments, ToolStart};
use lichen_text::{CallableTool, OutputParser, OutputSetup, ThinkingMarks, ToolDialect};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

const DIALECTS: [ToolDialect; 5] = [
    ToolDialect::Hermes,
    ToolDialect::Llama3,
    ToolDialect::Mistral,
    ToolDialect::Qwen3Coder,
    ToolDialect::Json,
];

/// Pieces of calls of all dialects; more of them than of noise, so that calls come about.
const PIECES: [&str; 52] = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "\n",
    " ",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "\\ud83d\\ude00",
    "d800",
    "12",
    "-1e9",
    "1e999",
    "true",
    "nul",
    "name",
    "\"name\": \"f\"",
    "\"name\": \"g\"",
    "\"arguments\": ",
    "\"parameters\": ",
    "null",
    "{\"a\": 1}",
    "\"{}\"",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "f",
    "<|python_tag|>",
    ";",
    "<function=",
    "<function=f>",
    "</function>",
    "<parameter=",
    "<parameter=text>",
    "<parameter=count>",
    "</parameter>",
    "```json\n",
    "```",
    "{\"name\": \"f\", \"arguments\": {\"text\": \"",
    "<tool_call>{\"name\": \"f\", \"arguments\": {",
    "[TOOL_CALLS]f[ARGS]{\"text\": ",
    "\\udc00",
    "<function=f>\n<parameter=count>\n",
    "</parameter>\n<parameter=text>",
    "\n</parameter>\n</function>\n",
];

fn tools() -> Vec<CallableTool> {
    let parameters = json!({"properties": {"text": {"type": "string"}, "count": {"type": "integer"}}});
    vec![
        CallableTool { name: "f".into(), parameters },
        CallableTool { name: "g".into(), parameters: json!({}) },
    ]
}

fn setup(dialect: ToolDialect, thinking: Option<bool>) -> OutputSetup {
    let marks = ThinkingMarks { open: "<think>", close: "</think>" };
    let thinking = thinking.map(|begun| (marks, begun));
    OutputSetup { thinking, tools: Some((dialect, tools())), ..OutputSetup::default() }
}

/// The events of an answer that arrives in these pieces, adjacent ones of a kind as one.
fn read<'a>(setup: OutputSetup, pieces: impl IntoIterator<Item = &'a str>) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(setup);
    let mut events: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    merged(events)
}

fn characters(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()])
}

fn answer() -> impl Strategy<Value = String> {
    let piece = prop_oneof![6 => select(&PIECES[..]).prop_map(str::to_owned), 1 => ".{0,3}"];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn events_do_not_depend_on_how_the_text_is_cut(
        answer in answer(),
        dialect in select(&DIALECTS[..]),
        thinking in any::<Option<bool>>(),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let places: Vec<usize> = (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let whole = read(setup(dialect, thinking), [answer.as_str()]);
        let cut = read(setup(dialect, thinking), cuts.windows(2).map(|pair| &answer[pair[0]..pair[1]]));
        prop_assert_eq!(&cut, &whole);
        prop_assert_eq!(&read(setup(dialect, thinking), characters(&answer)), &whole);
    }

    #[test]
    fn arguments_of_every_call_are_a_json_object(answer in answer(), dialect in select(&DIALECTS[..])) {
        let mut calls: BTreeMap<usize, String> = BTreeMap::new();
        for event in read(setup(dialect, None), [answer.as_str()]) {
            match event {
                ToolStart { index, name } => {
                    prop_assert!(name == "f" || name == "g");
                    prop_assert_eq!(index, calls.len());
                    calls.insert(index, String::new());
                }
                ToolArguments { index, fragment } => calls.get_mut(&index).unwrap().push_str(&fragment),
                Text(_) => {}
                Reasoning(_) => prop_assert!(false, "nothing was to be thinking"),
            }
        }
        for arguments in calls.values() {
            let parsed = serde_json::from_str::<Map<String, Value>>(arguments);
            prop_assert!(parsed.is_ok(), "{}: {:?}", arguments, parsed);
        }
    }

    #[test]
    fn an_answer_without_calls_is_told_to_the_letter(answer in answer(), dialect in select(&DIALECTS[..])) {
        let events = read(setup(dialect, None), [answer.as_str()]);
        if !events.iter().any(|event| matches!(event, ToolStart { .. })) {
            prop_assert_eq!(events, if answer.is_empty() { vec![] } else { vec![Text(answer)] });
        }
    }

    #[test]
    fn text_without_marks_is_told_to_the_letter(
        answer in "[^<\\[{`]{0,40}",
        dialect in select(&DIALECTS[..]),
    ) {
        let events = read(setup(dialect, Some(false)), characters(&answer));
        prop_assert_eq!(events, if answer.is_empty() { vec![] } else { vec![Text(answer)] });
    }

    #[test]
    fn thinking_that_began_loses_nothing(answer in answer()) {
        let events = read(setup(ToolDialect::Hermes, Some(true)), characters(&answer));
        let thought = answer.split("</think>").next().unwrap();
        let first = events.first().cloned();
        prop_assert!(thought.is_empty() || first == Some(Reasoning(thought.to_owned())), "{:?}", first);
    }
}

#[test]
fn the_time_is_linear_in_the_length() {
    const SIZE: usize = 1 << 20;
    let starts = [
        "",
        "<",
        "<tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"",
        "[TOOL_CALLS]f[CALL_ID]",
        "<tool_call>{\"arguments\": {\"text\": \"",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [",
        "```json\n",
        "<function=f><parameter=text>",
        "<function=f><parameter=count>",
        "{\"name\": \"f\"",
        "{\"",
        "<function=",
    ];
    let parts = [
        " ",
        "\n",
        "a",
        "<",
        "<tool_call>",
        "\\",
        "[",
        "1, ",
        "\"\",",
        "</parameter",
        "{\"name\": \"f\"};",
        "é",
    ];
    let start = Instant::now();
    for begin in starts {
        for part in parts {
            let text = begin.to_owned() + &part.repeat((1 << 15) / part.len());
            for dialect in DIALECTS {
                read(setup(dialect, Some(false)), characters(&text));
            }
        }
    }
    for dialect in DIALECTS {
        let text =
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"text\": \"".to_owned() + &"a ".repeat(SIZE / 2);
        read(setup(dialect, Some(true)), characters(&text));
        read(setup(dialect, None), characters(&text));
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
