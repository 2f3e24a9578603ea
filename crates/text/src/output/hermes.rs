//! Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Small models forget the marks: an answer that
//! begins with such an object is a call too.

use super::arguments::Progress;
use super::call::CallReader;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;
use super::mark::TextScan;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
/// What a call without marks begins with.
const BARE: &str = "{";

/// Reads text with such calls in it. The closing mark may be missing.
#[derive(Debug)]
pub(super) struct HermesReader {
    tools: Vec<CallableTool>,
    text: TextScan,
    call: Option<CallReader>,
}

impl HermesReader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self { tools, text: TextScan::default(), call: None }
    }

    fn push_to_call(&mut self, c: char, events: &mut Events) -> Progress {
        let Some(call) = &mut self.call else { return Progress::Refused };
        let progress = call.push(c, &self.tools, events);
        if progress != Progress::More {
            self.call = None;
            self.text.resume(progress == Progress::Done);
        }
        progress
    }
}

impl AnswerReader for HermesReader {
    fn push(&mut self, c: char, events: &mut Events) {
        if self.push_to_call(c, events) != Progress::Refused {
            return;
        }
        let marks: &[&str] = if self.text.told_text() { &[OPEN, CLOSE] } else { &[OPEN, CLOSE, BARE] };
        let Some(mut found) = self.text.push(c, marks, &[], events) else { return };
        match found.mark {
            OPEN => self.call = Some(CallReader::new(found.lead)),
            BARE => {
                found.lead.pop();
                self.call = Some(CallReader::new(found.lead));
                self.push_to_call(c, events);
            }
            _ if self.text.follows_call() => {}
            _ => {
                events.text(&found.lead);
                self.text.resume(false);
            }
        }
    }

    fn finish(&mut self, events: &mut Events) {
        match &mut self.call {
            Some(call) => call.finish(events),
            None => self.text.finish(events),
        }
    }

    fn in_text(&self) -> bool {
        self.call.is_none()
    }
}

/// Lets calls through as templates of this family show them.
pub(super) fn grammar(
    tools: &[CallableTool],
    several: bool,
    begun: bool,
    mark: &dyn Fn(&str) -> String,
) -> String {
    let mut grammar = Grammar::default();
    let object = grammar.call_objects(tools, "arguments");
    grammar.rule("body", &format!(r#""\n"? {object} "\n"? {}"#, mark(CLOSE)));
    grammar.start_marked(several, begun, &mark(OPEN))
}
