//! Calls as `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` before them.

use super::arguments::Progress;
use super::call::CallsInText;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;

pub(super) const TAG: &str = "<|python_tag|>";

/// Reads an answer that begins with a call; calls are separated by semicolons or white space. Any other is
/// text.
#[derive(Debug)]
pub(super) struct Llama3Reader(CallsInText);

impl Llama3Reader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self(CallsInText::new(tools))
    }
}

impl AnswerReader for Llama3Reader {
    fn push(&mut self, c: char, events: &mut Events) {
        let Self(calls) = self;
        if calls.push_to_call(c, events) != Progress::Refused {
            return;
        }
        if calls.text.told_text() {
            return events.text(c.encode_utf8(&mut [0; 4]));
        }
        match calls.text.push(c, &[TAG, "{"], &[';'], events) {
            Some(found) if found.mark == TAG => calls.begin(found.lead),
            Some(found) => calls.begin_bare(found.lead, events),
            None if calls.text.told_text() => calls.text.finish(events),
            None => {}
        }
    }

    fn finish(&mut self, events: &mut Events) {
        self.0.finish(events);
    }

    fn in_text(&self) -> bool {
        self.0.in_text()
    }
}

/// Lets calls through, with the mark before them or without.
pub(super) fn grammar(
    tools: &[CallableTool],
    several: bool,
    begun: bool,
    mark: &dyn Fn(&str) -> String,
) -> String {
    let mut grammar = Grammar::default();
    let call = grammar.call_objects(tools, "parameters");
    let tag = if begun { String::new() } else { format!("{}? ", mark(TAG)) };
    let more = if several { format!(r#" ("; " {call})*"#) } else { String::new() };
    grammar.start(&format!("{tag}{call}{more}"))
}
