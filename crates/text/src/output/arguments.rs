//! The arguments of a call, told while they arrive.

use super::events::Events;
use super::json_scan::{JsonScan, Step};

/// How reading goes on after a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It belongs to what is read, and there is more to come.
    More,
    /// It is the last one of what is read.
    Done,
    /// It does not belong there and is not taken. All before it has been told, the odd part of it as text.
    Refused,
}

/// The arguments of a call that has been told, as a JSON object. It is told only as far as it can be closed,
/// so that it can be made an object whatever follows.
#[derive(Debug)]
pub(super) struct ArgumentStream {
    scan: JsonScan,
    held: String,
}

impl ArgumentStream {
    /// Begins with the brace that opens the object.
    pub(super) fn begin(events: &mut Events) -> Self {
        let mut scan = JsonScan::new();
        scan.push('{');
        events.arguments("{");
        Self { scan, held: String::new() }
    }

    pub(super) fn push(&mut self, c: char, events: &mut Events) -> Progress {
        if self.scan.closable_before(c) {
            events.arguments(&std::mem::take(&mut self.held));
        }
        let step = self.scan.push(c);
        if matches!(step, Step::Invalid | Step::EndBefore) {
            self.finish(events);
            return Progress::Refused;
        }
        self.held.push(c);
        if self.scan.closable() {
            events.arguments(&std::mem::take(&mut self.held));
        }
        if step == Step::End { Progress::Done } else { Progress::More }
    }

    /// Closes an object that broke off. What was held back is text.
    pub(super) fn finish(&mut self, events: &mut Events) {
        events.arguments(&self.scan.closing());
        events.text(&std::mem::take(&mut self.held));
    }
}
