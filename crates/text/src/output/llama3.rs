//! Calls as `{"name": …, "parameters": {…}}`, with or without `<|python_tag|>` before them.

use super::arguments::Progress;
use super::call::CallReader;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::Grammar;
use super::mark::TextScan;

pub(super) const TAG: &str = "<|python_tag|>";

/// Reads an answer that begins with a call; calls are separated by semicolons or white space. Any other is
/// text.
#[derive(Debug)]
pub(super) struct Llama3Reader {
    tools: Vec<CallableTool>,
    text: TextScan,
    call: Option<CallReader>,
}

impl Llama3Reader {
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

impl AnswerReader for Llama3Reader {
    fn push(&mut self, c: char, events: &mut Events) {
        if self.push_to_call(c, events) != Progress::Refused {
            return;
        }
        if self.text.told_text() {
            return events.text(c.encode_utf8(&mut [0; 4]));
        }
        match self.text.push(c, &[TAG, "{"], &[';'], events) {
            Some(found) if found.mark == TAG => self.call = Some(CallReader::new(found.lead)),
            Some(mut found) => {
                found.lead.pop();
                self.call = Some(CallReader::new(found.lead));
                self.push_to_call(c, events);
            }
            None if self.text.told_text() => self.text.finish(events),
            None => {}
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
