//! What an answer consists of, in the order in which it is read.

/// A part of an answer. Adjacent parts of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Thinking, without the marks around it.
    Reasoning(String),
    /// What the user is to read.
    Text(String),
    /// A tool call begins. At least one [`OutputEvent::ToolArguments`] follows.
    ToolStart {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// Name of a tool on offer.
        name: String,
    },
    /// JSON text of a call's arguments. All fragments of a call together are one JSON object.
    ToolArguments {
        /// Number of the call in this answer, from 0.
        index: usize,
        /// The next part of the JSON text.
        fragment: String,
    },
}

/// Collects events; parts of one kind that follow each other become one event.
#[derive(Debug, Default)]
pub(super) struct Events {
    list: Vec<OutputEvent>,
    calls: usize,
    /// There was text before the first call.
    text_first: bool,
}

impl Events {
    pub(super) fn reasoning(&mut self, text: &str) {
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::Reasoning(last)) => last.push_str(text),
            _ => self.list.push(OutputEvent::Reasoning(text.to_owned())),
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.text_first |= self.calls == 0 && !text.is_empty();
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::Text(last)) => last.push_str(text),
            _ => self.list.push(OutputEvent::Text(text.to_owned())),
        }
    }

    pub(super) fn start_call(&mut self, name: &str) {
        self.list.push(OutputEvent::ToolStart { index: self.calls, name: name.to_owned() });
        self.calls += 1;
    }

    /// The next part of the arguments of the call that began last.
    pub(super) fn arguments(&mut self, text: &str) {
        let index = self.calls.saturating_sub(1);
        match self.list.last_mut() {
            _ if text.is_empty() => {}
            Some(OutputEvent::ToolArguments { fragment, .. }) => fragment.push_str(text),
            _ => self.list.push(OutputEvent::ToolArguments { index, fragment: text.to_owned() }),
        }
    }

    /// Whether text came before any call.
    pub(super) fn begins_with_text(&self) -> bool {
        self.text_first
    }

    pub(super) fn take(&mut self) -> Vec<OutputEvent> {
        std::mem::take(&mut self.list)
    }
}
