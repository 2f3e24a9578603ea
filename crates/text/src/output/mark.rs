//! Marks in text that arrives character by character.

use super::events::Events;

/// Finds marks, and holds back what may be the start of one.
#[derive(Debug, Default)]
pub(super) struct MarkScan {
    partial: String,
}

impl MarkScan {
    /// Takes a character. Gives the mark that it completes; what can not be in a mark any more goes to
    /// `released`. No mark may be the start of another.
    pub(super) fn push(
        &mut self,
        c: char,
        marks: &[&'static str],
        released: &mut String,
    ) -> Option<&'static str> {
        self.partial.push(c);
        while !self.partial.is_empty() {
            if let Some(mark) = marks.iter().find(|mark| **mark == self.partial) {
                self.partial.clear();
                return Some(mark);
            }
            if marks.iter().any(|mark| mark.starts_with(&self.partial)) {
                break;
            }
            released.push(self.partial.remove(0));
        }
        None
    }

    /// What is held back.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.partial)
    }
}

/// Text of an answer up to a mark. White space before a mark belongs to the mark, white space after a call to
/// the call.
#[derive(Debug, Default)]
pub(super) struct TextScan {
    marks: MarkScan,
    /// White space that is text only if no mark follows, and marks that turned out to introduce nothing yet.
    held: String,
    place: Place,
}

/// What was read last, white space aside.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    Text,
    Call,
}

/// A mark with all that was held back before it.
#[derive(Debug)]
pub(super) struct FoundMark {
    pub(super) mark: &'static str,
    /// Held white space and the mark: the text that this was if no call follows.
    pub(super) lead: String,
}

impl TextScan {
    /// Takes a character, tells what is surely text, and gives the mark that the character completes.
    /// `separators` are dropped after a call, as white space is.
    pub(super) fn push(
        &mut self,
        c: char,
        marks: &[&'static str],
        separators: &[char],
        events: &mut Events,
    ) -> Option<FoundMark> {
        let mut released = String::new();
        let mark = self.marks.push(c, marks, &mut released);
        for c in released.chars() {
            let space = c.is_whitespace();
            match self.place {
                Place::Call if space || separators.contains(&c) => {}
                _ if space => self.held.push(c),
                _ => self.tell(c, events),
            }
        }
        let mark = mark?;
        Some(FoundMark { mark, lead: std::mem::take(&mut self.held) + mark })
    }

    fn tell(&mut self, c: char, events: &mut Events) {
        events.text(&std::mem::take(&mut self.held));
        events.text(c.encode_utf8(&mut [0; 4]));
        self.place = Place::Text;
    }

    /// Takes back a mark that may still introduce a call, or be text.
    pub(super) fn hold(&mut self, lead: String) {
        self.held = lead;
    }

    /// Reading of text goes on: after a call, or after what was no call and has been told as text.
    pub(super) fn resume(&mut self, after_call: bool) {
        self.place = if after_call { Place::Call } else { Place::Text };
    }

    /// Whether a call ended here, with nothing but white space since.
    pub(super) fn follows_call(&self) -> bool {
        self.place == Place::Call
    }

    /// Whether there was text since the beginning and since the last call.
    pub(super) fn told_text(&self) -> bool {
        self.place == Place::Text
    }

    /// Tells what was held back.
    pub(super) fn finish(&mut self, events: &mut Events) {
        events.text(&std::mem::take(&mut self.held));
        events.text(&self.marks.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str, marks: &[&'static str]) -> (String, Vec<&'static str>) {
        let (mut scan, mut released) = (MarkScan::default(), String::new());
        let found = text.chars().filter_map(|c| scan.push(c, marks, &mut released)).collect();
        (released + &scan.take(), found)
    }

    #[test]
    fn a_mark_is_found_after_a_false_start() {
        assert_eq!(scan("a<<tool_call>b", &["<tool_call>"]), ("a<b".into(), vec!["<tool_call>"]));
        assert_eq!(scan("ababac", &["abac"]), ("ab".into(), vec!["abac"]));
    }

    #[test]
    fn an_unfinished_mark_is_text() {
        assert_eq!(scan("é<tool_c", &["<tool_call>"]), ("é<tool_c".into(), vec![]));
        assert_eq!(scan("é<tool_cé", &["<tool_call>"]), ("é<tool_cé".into(), vec![]));
    }

    #[test]
    fn the_shorter_of_two_marks_with_a_common_start_is_found() {
        assert_eq!(scan("<a<ab>", &["<a>", "<ab>"]), ("<a".into(), vec!["<ab>"]));
    }
}
