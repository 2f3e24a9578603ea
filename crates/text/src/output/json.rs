//! Calls of models without a form of their own: an object with a name and arguments as the whole answer, or
//! an array of such, fenced as code or not.

use super::arguments::Progress;
use super::call::CallList;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;
use super::mark::TextScan;

const FENCE: &str = "```";

/// Reads an answer that is calls and nothing else. Any other is text.
#[derive(Debug)]
pub(super) struct JsonReader {
    tools: Vec<CallableTool>,
    text: TextScan,
    calls: Option<CallList>,
    fenced: bool,
}

impl JsonReader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self { tools, text: TextScan::default(), calls: None, fenced: false }
    }

    fn push_to_calls(&mut self, c: char, events: &mut Events) -> Progress {
        let Some(calls) = &mut self.calls else { return Progress::Refused };
        let progress = calls.push(c, &self.tools, events);
        if progress != Progress::More {
            self.calls = None;
            self.text.resume(progress == Progress::Done);
        }
        progress
    }

    /// What may come next besides white space.
    fn marks(&self) -> &'static [&'static str] {
        match (self.text.follows_call(), self.fenced) {
            (true, true) => &[FENCE],
            (true, false) => &[],
            (false, true) => &["{", "["],
            (false, false) => &["```json\n", "```\n", "{", "["],
        }
    }
}

impl AnswerReader for JsonReader {
    fn push(&mut self, c: char, events: &mut Events) {
        if self.push_to_calls(c, events) != Progress::Refused {
            return;
        }
        if self.text.told_text() {
            return events.text(c.encode_utf8(&mut [0; 4]));
        }
        match self.text.push(c, self.marks(), &[], events) {
            Some(found) if found.mark == FENCE => self.fenced = false,
            Some(mut found) if matches!(found.mark, "{" | "[") => {
                found.lead.pop();
                self.calls = Some(CallList::new(found.lead));
                self.push_to_calls(c, events);
            }
            Some(found) => {
                self.fenced = true;
                self.text.hold(found.lead);
            }
            None if self.text.told_text() => self.text.finish(events),
            None => {}
        }
    }

    fn finish(&mut self, events: &mut Events) {
        match &mut self.calls {
            Some(calls) => calls.finish(events),
            None => self.text.finish(events),
        }
    }

    fn in_text(&self) -> bool {
        self.calls.is_none()
    }
}

/// Lets one call through, or an array of calls.
pub(super) fn grammar(tools: &[CallableTool], several: bool) -> String {
    let mut grammar = Grammar::default();
    let call = grammar.call_objects(tools, "arguments");
    let array = if several { format!(r#" | "[" {call} (", " {call})* "]""#) } else { String::new() };
    grammar.start(&format!("{call}{array}"))
}
