//! A call written as a JSON object with a name and arguments.

use serde_json::Value;

use super::arguments::{ArgumentStream, Progress};
use super::dialect::{CallableTool, is_on_offer};
use super::events::Events;
use super::json_scan::{JsonScan, Step, is_json, is_space};
use super::mark::TextScan;

/// Text with calls in it, each of which stands alone: what the dialects of such calls share.
#[derive(Debug)]
pub(super) struct CallsInText {
    pub(super) text: TextScan,
    tools: Vec<CallableTool>,
    call: Option<CallReader>,
}

impl CallsInText {
    pub(super) fn new(tools: Vec<CallableTool>) -> Self {
        Self { text: TextScan::default(), tools, call: None }
    }

    /// Gives a character to the call that is being read. Refused: it is none of a call.
    pub(super) fn push_to_call(&mut self, c: char, events: &mut Events) -> Progress {
        let Some(call) = &mut self.call else { return Progress::Refused };
        let progress = call.push(c, &self.tools, events);
        if progress != Progress::More {
            self.call = None;
            self.text.resume(progress == Progress::Done);
        }
        progress
    }

    /// A call follows a mark; `lead` is the text up to and with it.
    pub(super) fn begin(&mut self, lead: String) {
        self.call = Some(CallReader::new(lead));
    }

    /// A call begins with the brace at the end of `lead`, without a mark.
    pub(super) fn begin_bare(&mut self, mut lead: String, events: &mut Events) {
        if let Some(brace) = lead.pop() {
            self.begin(lead);
            self.push_to_call(brace, events);
        }
    }

    pub(super) fn finish(&mut self, events: &mut Events) {
        match &mut self.call {
            Some(call) => call.finish(events),
            None => self.text.finish(events),
        }
    }

    pub(super) fn in_text(&self) -> bool {
        self.call.is_none()
    }
}

/// Reads `{"name": …, "arguments": {…}}`, with the keys in any order and other keys passed over. `function`
/// is accepted for `name` and `parameters` for `arguments`.
#[derive(Debug)]
pub(super) struct CallReader {
    /// All that has been read and not been told.
    held: String,
    /// Where in `held` the key or the value begins that is being read.
    start: usize,
    place: Place,
    key: String,
    name: Option<String>,
    arguments: Arguments,
}

#[derive(Debug)]
enum Place {
    Open,
    FirstKey,
    Key,
    InKey(JsonScan),
    Colon,
    Value,
    InValue(JsonScan),
    InArguments(ArgumentStream),
    /// After a value: a comma or the end of the call.
    Next,
}

#[derive(Debug)]
enum Arguments {
    Missing,
    /// JSON text of an object that came before the name.
    Held(String),
    Told,
}

impl CallReader {
    /// A call is to follow. `lead` is the text before it that has not been told, the mark for example.
    pub(super) fn new(lead: String) -> Self {
        let (key, name, arguments) = (String::new(), None, Arguments::Missing);
        Self { held: lead, start: 0, place: Place::Open, key, name, arguments }
    }

    pub(super) fn push(&mut self, c: char, tools: &[CallableTool], events: &mut Events) -> Progress {
        if let Place::InArguments(stream) = &mut self.place {
            let progress = stream.push(c, events);
            if progress == Progress::Done {
                self.place = Place::Next;
                return Progress::More;
            }
            return progress;
        }
        self.held.push(c);
        let progress = self.step(c, tools, events);
        if progress == Progress::Refused {
            self.held.pop();
            events.text(&std::mem::take(&mut self.held));
        }
        progress
    }

    /// Tells what was held back of a call that broke off.
    pub(super) fn finish(&mut self, events: &mut Events) {
        if let Place::InArguments(stream) = &mut self.place {
            stream.finish(events);
        }
        let told = matches!(self.arguments, Arguments::Told);
        if !(told && self.held.trim().is_empty()) {
            events.text(&self.held);
        }
        self.held.clear();
    }

    fn step(&mut self, c: char, tools: &[CallableTool], events: &mut Events) -> Progress {
        match (&mut self.place, c) {
            (Place::InKey(scan), _) => match scan.push(c) {
                Step::More => Progress::More,
                Step::End => self.end_key(),
                Step::EndBefore | Step::Invalid => Progress::Refused,
            },
            (Place::InValue(scan), _) => match scan.push(c) {
                Step::More => Progress::More,
                Step::End => self.end_value(self.held.len(), tools, events),
                Step::EndBefore => match self.end_value(self.held.len() - c.len_utf8(), tools, events) {
                    Progress::More => self.step(c, tools, events),
                    other => other,
                },
                Step::Invalid => Progress::Refused,
            },
            _ if is_space(c) => Progress::More,
            (Place::Open, '{') => self.go(Place::FirstKey),
            (Place::FirstKey | Place::Next, '}') => self.end(events),
            (Place::FirstKey | Place::Key, '"') => self.begin(c, Place::InKey),
            (Place::Colon, ':') => self.go(Place::Value),
            (Place::Value, _) => self.begin_value(c, events),
            (Place::Next, ',') => self.go(Place::Key),
            _ => Progress::Refused,
        }
    }

    fn go(&mut self, place: Place) -> Progress {
        self.place = place;
        Progress::More
    }

    /// A key or a value begins with `c`.
    fn begin(&mut self, c: char, place: fn(JsonScan) -> Place) -> Progress {
        self.start = self.held.len() - c.len_utf8();
        let mut scan = JsonScan::new();
        if scan.push(c) == Step::Invalid {
            return Progress::Refused;
        }
        self.go(place(scan))
    }

    fn end_key(&mut self) -> Progress {
        match serde_json::from_str(&self.held[self.start..]) {
            Ok(key) => {
                self.key = key;
                self.go(Place::Colon)
            }
            Err(_) => Progress::Refused,
        }
    }

    /// The value of `self.key` ends at byte `end` of `held`.
    fn end_value(&mut self, end: usize, tools: &[CallableTool], events: &mut Events) -> Progress {
        self.place = Place::Next;
        let value = &self.held[self.start..end];
        if self.is_arguments() {
            match object_text(value) {
                Some(Some(object)) => self.arguments = Arguments::Held(object),
                Some(None) => {}
                None => return Progress::Refused,
            }
        } else if self.is_name() {
            match serde_json::from_str::<String>(value) {
                Ok(name) if is_on_offer(tools, &name) => self.name = Some(name),
                _ => return Progress::Refused,
            }
        }
        if self.name.is_some() && matches!(self.arguments, Arguments::Held(_)) {
            self.tell(events);
        }
        Progress::More
    }

    fn end(&mut self, events: &mut Events) -> Progress {
        if self.name.is_none() {
            return Progress::Refused;
        }
        if !matches!(self.arguments, Arguments::Told) {
            self.tell(events);
        }
        Progress::Done
    }

    fn is_name(&self) -> bool {
        !matches!(self.arguments, Arguments::Told) && matches!(self.key.as_str(), "name" | "function")
    }

    fn is_arguments(&self) -> bool {
        !matches!(self.arguments, Arguments::Told) && matches!(self.key.as_str(), "arguments" | "parameters")
    }

    fn begin_value(&mut self, c: char, events: &mut Events) -> Progress {
        if c == '{' && self.is_arguments() && self.name.is_some() {
            self.start(events);
            return self.go(Place::InArguments(ArgumentStream::begin(events)));
        }
        self.begin(c, Place::InValue)
    }

    /// Tells the call with arguments that are known as a whole.
    fn tell(&mut self, events: &mut Events) {
        match self.start(events) {
            Arguments::Held(object) => events.arguments(&object),
            Arguments::Missing | Arguments::Told => events.arguments("{}"),
        }
    }

    /// Tells that the call begins. Gives the arguments that there are.
    fn start(&mut self, events: &mut Events) -> Arguments {
        self.held.clear();
        events.start_call(self.name.as_deref().unwrap_or_default());
        std::mem::replace(&mut self.arguments, Arguments::Told)
    }
}

/// The JSON text of arguments, which some models write as a string with JSON in it. An inner `None` stands
/// for no arguments, an outer one for something else than arguments.
fn object_text(value: &str) -> Option<Option<String>> {
    match serde_json::from_str(value).ok()? {
        Value::Null => Some(None),
        Value::Object(_) => Some(Some(value.to_owned())),
        Value::String(text) if text.trim_matches(is_space).is_empty() => Some(None),
        Value::String(text) if text.trim_matches(is_space).starts_with('{') && is_json(&text) => {
            Some(Some(text))
        }
        _ => None,
    }
}

/// Reads one call, or an array of calls.
#[derive(Debug)]
pub(super) struct CallList {
    /// What was read outside of calls and not told.
    held: String,
    call: Option<CallReader>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Unknown,
    One,
    Array,
}

impl CallList {
    /// `lead` is the text before the calls that has not been told.
    pub(super) fn new(lead: String) -> Self {
        Self { held: lead, call: None, form: Form::Unknown }
    }

    pub(super) fn push(&mut self, c: char, tools: &[CallableTool], events: &mut Events) -> Progress {
        if let Some(call) = &mut self.call {
            let progress = call.push(c, tools, events);
            if progress != Progress::Done || self.form == Form::One {
                return progress;
            }
            self.call = None;
            return Progress::More;
        }
        match (self.form, c) {
            _ if is_space(c) => self.held.push(c),
            (Form::Unknown, '{') => {
                self.form = Form::One;
                self.begin_call();
                return self.push(c, tools, events);
            }
            (Form::Unknown, '[') => {
                self.form = Form::Array;
                self.held.push(c);
                self.begin_call();
            }
            (Form::Array, ',') => {
                self.held.push(c);
                self.begin_call();
            }
            (Form::Array, ']') => return Progress::Done,
            _ => {
                events.text(&std::mem::take(&mut self.held));
                return Progress::Refused;
            }
        }
        Progress::More
    }

    fn begin_call(&mut self) {
        self.call = Some(CallReader::new(std::mem::take(&mut self.held)));
    }

    /// Tells what was held back of calls that broke off. White space after a call is none of it.
    pub(super) fn finish(&mut self, events: &mut Events) {
        match (&mut self.call, self.form) {
            (Some(call), _) => call.finish(events),
            (None, Form::Unknown) => events.text(&std::mem::take(&mut self.held)),
            (None, _) => {}
        }
    }
}
