//! Calls as `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>`.

use serde_json::Value;

use super::arguments::Progress;
use super::dialect::{AnswerReader, CallableTool};
use super::events::Events;
use super::grammar::{Grammar, literal};
use super::hermes::{CLOSE, OPEN};
use super::mark::TextScan;
use super::parameter::{ParameterReader, ParameterTypes, own_schema};

pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// Longest name of a parameter, in bytes.
const MAX_KEY: usize = 512;

/// Reads text with such calls in it. The outer marks may be missing.
#[derive(Debug)]
pub(super) struct Qwen3CoderReader {
    tools: Vec<CallableTool>,
    text: TextScan,
    state: State,
    /// The tool that is being called, as an index.
    tool: usize,
    /// Whether the call has had no parameter yet.
    first: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Text,
    /// After the mark of a call, in `lead`: `partial` is the start of the mark of the function.
    Marked {
        lead: String,
        partial: String,
    },
    Name {
        lead: String,
        name: String,
    },
    /// Inside the function: `partial` is the start of the next mark.
    Function {
        partial: String,
    },
    Key(String),
    Value(ParameterReader),
}

impl Qwen3CoderReader {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self { tools, text: TextScan::default(), state: State::Text, tool: 0, first: true }
    }

    fn step(&mut self, c: char, events: &mut Events) -> Progress {
        match &mut self.state {
            State::Text => self.in_text(c, events),
            State::Marked { .. } => self.in_mark(c, events),
            State::Name { .. } => self.in_name(c, events),
            State::Function { .. } => self.in_function(c, events),
            State::Key(key) if c == '>' => {
                let key = std::mem::take(key);
                let types = ParameterTypes::of(&self.tools[self.tool].parameters, &key);
                let reader = ParameterReader::begin(key, types, self.first, PARAMETER_END, events);
                self.first = false;
                self.go(State::Value(reader))
            }
            State::Key(key) if key.len() < MAX_KEY && !matches!(c, '<' | '\n') => {
                key.push(c);
                Progress::More
            }
            State::Key(_) => self.refuse(events),
            State::Value(value) => match value.push(c, events) {
                true => self.go(State::Function { partial: String::new() }),
                false => Progress::More,
            },
        }
    }

    fn go(&mut self, state: State) -> Progress {
        self.state = state;
        Progress::More
    }

    /// Tells what was held back.
    fn refuse(&mut self, events: &mut Events) -> Progress {
        match std::mem::take(&mut self.state) {
            State::Text => self.text.finish(events),
            State::Marked { lead, partial } => events.text(&(lead + &partial)),
            State::Name { lead, name } => events.text(&(lead + &name)),
            State::Function { partial } => {
                events.arguments("}");
                events.text(&partial);
            }
            State::Key(key) => {
                events.arguments("}");
                events.text(&format!("{PARAMETER}{key}"));
            }
            State::Value(mut value) => value.finish(PARAMETER, events),
        }
        Progress::Refused
    }

    fn in_text(&mut self, c: char, events: &mut Events) -> Progress {
        match self.text.push(c, &[OPEN, CLOSE, FUNCTION], &[], events) {
            None => Progress::More,
            Some(found) if found.mark == OPEN => {
                self.go(State::Marked { lead: found.lead, partial: String::new() })
            }
            Some(found) if found.mark == FUNCTION => {
                self.go(State::Name { lead: found.lead, name: String::new() })
            }
            Some(_) if self.text.follows_call() => Progress::More,
            Some(found) => {
                events.text(&found.lead);
                self.text.resume(false);
                Progress::More
            }
        }
    }

    fn in_mark(&mut self, c: char, events: &mut Events) -> Progress {
        let State::Marked { lead, partial } = &mut self.state else { return Progress::More };
        if partial.is_empty() && c.is_whitespace() {
            lead.push(c);
            return Progress::More;
        }
        partial.push(c);
        if partial == FUNCTION {
            let lead = std::mem::take(lead) + partial;
            return self.go(State::Name { lead, name: String::new() });
        }
        if FUNCTION.starts_with(partial.as_str()) {
            return Progress::More;
        }
        partial.pop();
        self.refuse(events)
    }

    fn in_name(&mut self, c: char, events: &mut Events) -> Progress {
        let State::Name { name, .. } = &mut self.state else { return Progress::More };
        if c == '>'
            && let Some(tool) = self.tools.iter().position(|tool| tool.name == *name)
        {
            events.start_call(name);
            events.arguments("{");
            (self.tool, self.first) = (tool, true);
            return self.go(State::Function { partial: String::new() });
        }
        name.push(c);
        if self.tools.iter().any(|tool| tool.name.starts_with(name.as_str())) {
            return Progress::More;
        }
        name.pop();
        self.refuse(events)
    }

    fn in_function(&mut self, c: char, events: &mut Events) -> Progress {
        let State::Function { partial } = &mut self.state else { return Progress::More };
        if partial.is_empty() && c.is_whitespace() {
            return Progress::More;
        }
        partial.push(c);
        if [PARAMETER, FUNCTION_END, CLOSE].iter().all(|mark| !mark.starts_with(partial.as_str())) {
            partial.pop();
            return self.refuse(events);
        }
        match partial.as_str() {
            PARAMETER => self.go(State::Key(String::new())),
            FUNCTION_END | CLOSE => {
                events.arguments("}");
                Progress::Done
            }
            _ => Progress::More,
        }
    }
}

impl AnswerReader for Qwen3CoderReader {
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
        self.refuse(events);
    }

    fn in_text(&self) -> bool {
        matches!(self.state, State::Text)
    }
}

/// Lets calls through with all required parameters, in the order of the schema.
pub(super) fn grammar(
    tools: &[CallableTool],
    several: bool,
    begun: bool,
    mark: &dyn Fn(&str) -> String,
) -> String {
    let mut grammar = Grammar::default();
    for (number, tool) in tools.iter().enumerate() {
        function(&mut grammar, number, tool);
    }
    let function = grammar.choice("function", tools.len());
    // The text of a string goes on to the first closing mark.
    grammar.rule(&format!("text[suffix={}]", literal(PARAMETER_END)), "/(?s:.*)/");
    grammar.rule("body", &format!(r#""\n"? {function} "\n"? {}"#, mark(CLOSE)));
    grammar.start_marked(several, begun, &mark(OPEN))
}

fn function(grammar: &mut Grammar, number: usize, tool: &CallableTool) {
    let mut body = literal(&format!("{FUNCTION}{}>\n", tool.name));
    let required = tool.parameters["required"].as_array();
    let keys = tool.parameters["properties"].as_object().into_iter().flat_map(|all| all.keys());
    for (place, key) in keys.enumerate() {
        let name = format!("parameter_{number}_{place}");
        let open = literal(&format!("{PARAMETER}{key}>\n"));
        grammar.rule(&name, &format!(r#"{open} {} "\n""#, parameter(&tool.parameters, key)));
        let optional = !required.is_some_and(|list| list.iter().any(|item| item == key));
        body += &format!(" {name}{}", if optional { "?" } else { "" });
    }
    grammar.rule(&format!("function_{number}"), &format!("{body} {}", literal(FUNCTION_END)));
}

/// A value with its closing mark.
fn parameter(parameters: &Value, key: &str) -> String {
    let types = ParameterTypes::of(parameters, key);
    let close = literal(&format!("\n{PARAMETER_END}"));
    let values = parameters["properties"][key]["enum"].as_array().into_iter().flatten();
    let values: Vec<String> = values.filter_map(Value::as_str).map(literal).collect();
    if types.is_string() && !values.is_empty() {
        return format!("({}) {close}", values.join(" | "));
    }
    match types.may_be_string() {
        true => "text".to_owned(),
        false => format!("%json {} {close}", own_schema(parameters, key)),
    }
}
