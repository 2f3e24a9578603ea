//! Thinking at the start of an answer.

use super::events::Events;
use super::mark::MarkScan;

/// The texts around a model's thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThinkingMarks {
    /// Before the thinking.
    pub open: &'static str,
    /// After the thinking.
    pub close: &'static str,
}

/// Marks in use, those of most models first.
const KNOWN: [(&str, &str); 9] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thought>", "</thought>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
];

impl ThinkingMarks {
    /// The marks that a chat template's source names; nothing for models that do not think.
    pub fn of_template(source: &str) -> Option<Self> {
        let known = KNOWN.into_iter().find(|(open, close)| source.contains(open) || source.contains(close));
        known.map(|(open, close)| Self { open, close })
    }
}

/// Reads the thinking at the start of an answer, and gives what does not belong to it.
#[derive(Debug)]
pub(super) struct ThinkingReader {
    marks: ThinkingMarks,
    scan: MarkScan,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// White space before the mark, which is text if no mark follows.
    Before(String),
    Inside,
    /// White space after the thinking, which is dropped.
    After,
    Over,
}

impl ThinkingReader {
    /// `begun`: the prompt ends inside the thinking.
    pub(super) fn new(marks: ThinkingMarks, begun: bool) -> Self {
        let place = if begun { Place::Inside } else { Place::Before(String::new()) };
        Self { marks, scan: MarkScan::default(), place }
    }

    /// Takes a character; what is not of the thinking goes to `answer`.
    pub(super) fn push(&mut self, c: char, events: &mut Events, answer: &mut String) {
        let mut released = String::new();
        match &mut self.place {
            Place::Before(space) => {
                let found = self.scan.push(c, &[self.marks.open], &mut released);
                space.push_str(&released);
                if found.is_some() {
                    self.place = Place::Inside;
                } else if !released.trim().is_empty() {
                    *answer = std::mem::take(space) + &self.scan.take();
                    self.place = Place::Over;
                }
            }
            Place::Inside => {
                let found = self.scan.push(c, &[self.marks.close], &mut released);
                events.reasoning(&released);
                if found.is_some() {
                    self.place = Place::After;
                }
            }
            Place::After if c.is_whitespace() => {}
            Place::After | Place::Over => {
                answer.push(c);
                self.place = Place::Over;
            }
        }
    }

    /// Gives what was held back.
    pub(super) fn finish(&mut self, events: &mut Events, answer: &mut String) {
        let held = self.scan.take();
        match &mut self.place {
            Place::Before(space) => *answer = std::mem::take(space) + &held,
            Place::Inside => events.reasoning(&held),
            Place::After | Place::Over => {}
        }
        self.place = Place::Over;
    }

    /// Whether thinking is what is read now.
    pub(super) fn is_inside(&self) -> bool {
        matches!(self.place, Place::Inside)
    }
}
