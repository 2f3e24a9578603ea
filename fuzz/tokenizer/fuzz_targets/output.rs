//! Takes any answer apart, as a whole and in pieces, in every dialect.
#![no_main]

use arbitrary::Arbitrary;
use lichen_text::OutputEvent::{self, Reasoning, Text, ToolArguments, ToolStart};
use lichen_text::{CallableTool, OutputParser, OutputSetup, ThinkingMarks, ToolDialect};
use serde_json::{Map, Value, json};

const DIALECTS: [ToolDialect; 5] = [
    ToolDialect::Hermes,
    ToolDialect::Llama3,
    ToolDialect::Mistral,
    ToolDialect::Qwen3Coder,
    ToolDialect::Json,
];

/// Marks that a fuzzer finds slowly by itself.
const MARKS: [&str; 12] = [
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<function=f>",
    "<parameter=text>",
    "</parameter>",
    "</function>",
    "{\"name\": \"f\", \"arguments\": ",
    "<think>",
    "</think>",
];

#[derive(Arbitrary, Debug)]
struct Input {
    dialect: u8,
    thinking: Option<bool>,
    /// Texts that arrive one by one, with a mark before each.
    pieces: Vec<(u8, String)>,
}

fn setup(input: &Input) -> OutputSetup {
    let marks = ThinkingMarks { open: "<think>", close: "</think>" };
    let parameters = json!({"properties": {"text": {"type": "string"}}});
    let tools = vec![CallableTool { name: "f".to_owned(), parameters }];
    let dialect = DIALECTS[usize::from(input.dialect) % DIALECTS.len()];
    OutputSetup { thinking: input.thinking.map(|begun| (marks, begun)), tools: Some((dialect, tools)) }
}

/// Thinking, text, and name and arguments of each call.
fn read(setup: OutputSetup, pieces: &[String]) -> (String, String, Vec<(String, String)>) {
    let mut parser = OutputParser::new(setup);
    let mut events: Vec<OutputEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut thinking, mut text, mut calls) = (String::new(), String::new(), Vec::new());
    for event in events {
        match event {
            Reasoning(part) => thinking += &part,
            Text(part) => text += &part,
            ToolStart { index, name } => {
                assert_eq!(index, calls.len());
                calls.push((name, String::new()));
            }
            ToolArguments { index, fragment } => calls[index].1 += &fragment,
        }
    }
    (thinking, text, calls)
}

libfuzzer_sys::fuzz_target!(|input: Input| {
    let mark = |number: u8| MARKS.get(usize::from(number)).copied().unwrap_or_default();
    let pieces: Vec<String> =
        input.pieces.iter().map(|(number, text)| mark(*number).to_owned() + text).collect();
    let (thinking, text, calls) = read(setup(&input), &pieces);
    let whole = pieces.concat();
    for (name, arguments) in &calls {
        assert_eq!(name, "f");
        assert!(serde_json::from_str::<Map<String, Value>>(arguments).is_ok(), "{arguments:?}");
    }
    assert!(
        !calls.is_empty() || !thinking.is_empty() || input.thinking.is_some() || text == whole,
        "{text:?}"
    );
    assert_eq!(read(setup(&input), &[whole]), (thinking, text, calls));
});
