//! Calls as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

use super::arguments::Progress;
use super::call::CallReader;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;
use super::mark::TextScan;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

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
}

impl AnswerReader for HermesReader {
    fn push(&mut self, c: char, events: &mut Events) {
        if let Some(call) = &mut self.call {
            let progress = call.push(c, &self.tools, events);
            if progress != Progress::More {
                self.call = None;
                self.text.resume(progress == Progress::Done);
            }
            if progress != Progress::Refused {
                return;
            }
        }
        let Some(found) = self.text.push(c, &[OPEN, CLOSE], &[], events) else { return };
        if found.mark == OPEN {
            self.call = Some(CallReader::new(found.lead));
        } else if !self.text.follows_call() {
            events.text(&found.lead);
            self.text.resume(false);
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
