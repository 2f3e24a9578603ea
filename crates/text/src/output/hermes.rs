//! Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Small models forget the marks: an answer that
//! begins with such an object is a call too.

use super::arguments::Progress;
use super::call::CallsInText;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
/// What a call without marks begins with.
const BARE: &str = "{";

/// Reads text with such calls in it. The closing mark may be missing.
#[derive(Debug)]
pub(super) struct HermesReader(CallsInText);

impl HermesReader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self(CallsInText::new(tools))
    }
}

impl AnswerReader for HermesReader {
    fn push(&mut self, c: char, events: &mut Events) {
        let Self(calls) = self;
        if calls.push_to_call(c, events) != Progress::Refused {
            return;
        }
        let marks: &[&str] = if calls.text.told_text() { &[OPEN, CLOSE] } else { &[OPEN, CLOSE, BARE] };
        let Some(found) = calls.text.push(c, marks, &[], events) else { return };
        match found.mark {
            OPEN => calls.begin(found.lead),
            BARE => calls.begin_bare(found.lead, events),
            _ if calls.text.follows_call() => {}
            _ => {
                events.text(&found.lead);
                calls.text.resume(false);
            }
        }
    }

    fn finish(&mut self, events: &mut Events) {
        self.0.finish(events);
    }

    fn in_text(&self) -> bool {
        self.0.in_text()
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
