//! Events of an answer, put together.

use lichen_text::OutputEvent::{self, Reasoning, Text, ToolArguments};

/// Adjacent events of one kind as one, as they belong together.
pub(crate) fn merged(events: impl IntoIterator<Item = OutputEvent>) -> Vec<OutputEvent> {
    let mut all: Vec<OutputEvent> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Text(last)), Text(text)) | (Some(Reasoning(last)), Reasoning(text)) => last.push_str(&text),
            (Some(ToolArguments { fragment: last, .. }), ToolArguments { fragment, .. }) => {
                last.push_str(&fragment);
            }
            (_, event) => all.push(event),
        }
    }
    all
}
