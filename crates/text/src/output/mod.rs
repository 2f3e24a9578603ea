//! What a model writes, taken apart while it arrives: thinking, text and tool calls.

mod arguments;
mod call;
mod dialect;
mod events;
mod grammar;
mod hermes;
mod json;
mod json_scan;
mod llama3;
mod mark;
mod mistral;
mod parameter;
mod qwen3_coder;
mod thinking;

pub use dialect::{CallableTool, ToolDialect};
pub use events::OutputEvent;
pub use thinking::ThinkingMarks;

use dialect::AnswerReader;
use events::Events;
use thinking::ThinkingReader;

/// What to look for in an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OutputSetup {
    /// The marks around thinking, and whether the prompt ends inside it. Without them nothing is thinking.
    pub thinking: Option<(ThinkingMarks, bool)>,
    /// How calls are written, and the tools on offer. Without them nothing is a call.
    pub tools: Option<(ToolDialect, Vec<CallableTool>)>,
    /// An answer that begins with text is text to its end, whatever marks are in it: for answers that are either
    /// calls or a text of a given form, such as JSON that quotes a call.
    pub calls_or_text: bool,
}

/// Takes an answer apart while it arrives. Only what may still become a mark, or is no valid part of a call
/// yet, is held back. The parts are the same however the text is cut into pieces, and the time is linear in
/// its length.
///
/// Thinking is recognized at the start of an answer only; a mark of a call in it is none. Arguments are told
/// as the model writes them, and always make a JSON object: if they break off, they are closed. What is no
/// call of a tool on offer is text, marks included.
#[derive(Debug)]
pub struct OutputParser {
    thinking: Option<ThinkingReader>,
    answer: Option<Box<dyn AnswerReader>>,
    calls_or_text: bool,
    events: Events,
}

impl OutputParser {
    /// A parser for one answer.
    pub fn new(setup: OutputSetup) -> Self {
        Self {
            thinking: setup.thinking.map(|(marks, begun)| ThinkingReader::new(marks, begun)),
            answer: setup.tools.map(|(dialect, tools)| dialect.reader(tools)),
            calls_or_text: setup.calls_or_text,
            events: Events::default(),
        }
    }

    /// Takes the next piece of text, in which marks that are control tokens are written out.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let mut answer = String::new();
        for c in text.chars() {
            match &mut self.thinking {
                Some(thinking) => {
                    thinking.push(c, &mut self.events, &mut answer);
                    self.read_answer(&answer);
                    answer.clear();
                }
                None => self.read_answer(c.encode_utf8(&mut [0; 4])),
            }
        }
        self.events.take()
    }

    /// Ends the answer, and gives what was held back. A call that broke off before it was told is text.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        if let Some(mut thinking) = self.thinking.take() {
            let mut answer = String::new();
            thinking.finish(&mut self.events, &mut answer);
            self.read_answer(&answer);
        }
        if let Some(mut answer) = self.answer.take() {
            answer.finish(&mut self.events);
        }
        self.events.take()
    }

    /// Whether plain text is what is being read, neither thinking nor a call. Log-probabilities belong to it.
    pub fn in_text(&self) -> bool {
        let thinks = self.thinking.as_ref().is_some_and(ThinkingReader::is_inside);
        !thinks && self.answer.as_ref().is_none_or(|answer| answer.in_text())
    }

    fn read_answer(&mut self, text: &str) {
        for c in text.chars() {
            match &mut self.answer {
                Some(answer) => {
                    answer.push(c, &mut self.events);
                    if self.calls_or_text && self.events.begins_with_text() {
                        answer.finish(&mut self.events);
                        self.answer = None;
                    }
                }
                None => self.events.text(c.encode_utf8(&mut [0; 4])),
            }
        }
    }
}
