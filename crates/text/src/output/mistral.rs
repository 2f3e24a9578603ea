//! Calls after `[TOOL_CALLS]`: an array of objects, or a name, an identifier perhaps, and the arguments.

use super::arguments::{ArgumentStream, Progress};
use super::call::CallList;
use super::dialect::{AnswerReader, CallableTool, is_on_offer};
use super::events::Events;
use super::grammar::{Grammar, literal};
use super::json_scan::is_space;
use super::mark::TextScan;

pub(super) const CALLS: &str = "[TOOL_CALLS]";
pub(super) const ARGUMENTS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
/// Longest name with identifier and marks, in bytes. What is longer is no call.
const MAX_HEADER: usize = 512;

/// Reads text with such calls in it.
#[derive(Debug)]
pub(super) struct MistralReader {
    tools: Vec<CallableTool>,
    text: TextScan,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// After the mark, in `lead`; the form is not known yet.
    Marked {
        lead: String,
    },
    Objects(CallList),
    /// What follows the mark, in `header`, up to the arguments.
    Named {
        lead: String,
        header: String,
    },
    Arguments(ArgumentStream),
}

impl MistralReader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self { tools, text: TextScan::default(), state: State::Text }
    }

    fn step(&mut self, c: char, events: &mut Events) -> Progress {
        match &mut self.state {
            State::Text => {
                if let Some(found) = self.text.push(c, &[CALLS], &[], events) {
                    self.state = State::Marked { lead: found.lead };
                }
            }
            State::Marked { lead } if is_space(c) => lead.push(c),
            State::Marked { lead } => {
                let lead = std::mem::take(lead);
                self.state = match c {
                    '[' | '{' => State::Objects(CallList::new(lead)),
                    _ => State::Named { lead, header: String::new() },
                };
                return self.step(c, events);
            }
            State::Objects(calls) => return calls.push(c, &self.tools, events),
            State::Named { header, .. } if c != '{' && header.len() < MAX_HEADER => header.push(c),
            State::Named { lead, header } => {
                let Some(name) = called(header).filter(|name| c == '{' && is_on_offer(&self.tools, name))
                else {
                    events.text(lead);
                    events.text(header);
                    return Progress::Refused;
                };
                events.start_call(name);
                self.state = State::Arguments(ArgumentStream::begin(events));
            }
            State::Arguments(stream) => return stream.push(c, events),
        }
        Progress::More
    }
}

/// The name in what stands between the mark and the arguments.
fn called(header: &str) -> Option<&str> {
    let header = header.trim_end();
    let header = header.strip_suffix(ARGUMENTS).unwrap_or(header);
    let (name, id) = header.split_once(CALL_ID).unwrap_or((header, ""));
    let plain = !id.contains(['[', ']']);
    plain.then(|| name.trim_end())
}

impl AnswerReader for MistralReader {
    fn push(&mut self, c: char, events: &mut Events) {
        let progress = self.step(c, events);
        if progress != Progress::More {
            self.state = State::Text;
            self.text.resume(progress == Progress::Done);
        }
        if progress == Progress::Refused {
            self.step(c, events);
        }
    }

    fn finish(&mut self, events: &mut Events) {
        match &mut self.state {
            State::Text => self.text.finish(events),
            State::Marked { lead } => events.text(lead),
            State::Objects(calls) => calls.finish(events),
            State::Named { lead, header } => {
                events.text(lead);
                events.text(header);
            }
            State::Arguments(stream) => stream.finish(events),
        }
        self.state = State::Text;
    }

    fn in_text(&self) -> bool {
        matches!(self.state, State::Text)
    }
}

/// Lets both forms through; a model writes the one that it has learnt.
pub(super) fn grammar(
    tools: &[CallableTool],
    several: bool,
    begun: bool,
    mark: &dyn Fn(&str) -> String,
) -> String {
    let mut grammar = Grammar::default();
    let call = grammar.call_objects(tools, "arguments");
    for (number, tool) in tools.iter().enumerate() {
        let header = format!("{} identifier? {}?", literal(&tool.name), mark(ARGUMENTS));
        grammar.rule(&format!("named_{number}"), &format!("{header} arguments_{number}"));
    }
    let named = grammar.choice("named", tools.len());
    grammar.rule("identifier", &format!("{} /[a-zA-Z0-9]{{9}}/", mark(CALL_ID)));
    let (open, first) = (mark(CALLS), if begun { String::new() } else { mark(CALLS) + " " });
    let (more_named, more_calls) = match several {
        true => (format!(" ({open} {named})*"), format!(r#" (", " {call})*"#)),
        false => (String::new(), String::new()),
    };
    grammar.start(&format!(r#"{first}({named}{more_named} | " "? "[" {call}{more_calls} "]")"#))
}
