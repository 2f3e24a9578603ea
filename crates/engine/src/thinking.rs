//! Watches a model think, and ends it when its budget is spent.

use lichen_generate::Thinking;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Whether it will think is still open.
    Before,
    Inside,
    After,
}

/// Follows the text of one answer.
#[derive(Debug)]
pub(crate) struct ThinkingWatch {
    marks: Thinking,
    state: State,
    /// Before: all text so far. Inside: the end of the text, which may be the start of the closing mark.
    tail: String,
    tokens: usize,
    closing: bool,
}

impl ThinkingWatch {
    pub(crate) fn new(marks: Thinking) -> Self {
        let state = if marks.begun { State::Inside } else { State::Before };
        Self { marks, state, tail: String::new(), tokens: 0, closing: false }
    }

    /// Takes the text of one more token.
    pub(crate) fn observe(&mut self, text: &str) {
        match self.state {
            State::Before => {
                self.tail.push_str(text);
                let begun = self.tail.trim_start();
                if let Some(rest) = begun.strip_prefix(self.marks.open.as_str()) {
                    self.tail = rest.to_owned();
                    self.state = State::Inside;
                    self.close();
                } else if !self.marks.open.starts_with(begun) {
                    self.state = State::After;
                }
            }
            State::Inside => {
                self.tokens += 1;
                self.tail.push_str(text);
                self.close();
            }
            State::After => {}
        }
    }

    fn close(&mut self) {
        if self.tail.contains(&self.marks.close) {
            self.state = State::After;
        }
        let mut keep = self.tail.len().saturating_sub(self.marks.close.len());
        while !self.tail.is_char_boundary(keep) {
            keep += 1;
        }
        self.tail.drain(..keep);
    }

    /// Whether it thinks now: a constraint is for the answer proper.
    pub(crate) fn is_inside(&self) -> bool {
        self.state == State::Inside
    }

    /// Tokens of thinking so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The tokens that must come now, once, when the budget is spent.
    pub(crate) fn take_closing(&mut self) -> Vec<u32> {
        let spent = self.marks.budget.is_some_and(|budget| self.tokens >= budget);
        if self.state == State::Inside && spent && !self.closing {
            self.closing = true;
            return self.marks.closing.clone();
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(begun: bool, budget: Option<usize>) -> ThinkingWatch {
        let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
        ThinkingWatch::new(Thinking { open, close, begun, budget, closing: vec![7, 8] })
    }

    #[test]
    fn thinking_is_found_over_any_cut_and_counted() {
        let mut thinking = watch(false, None);
        for text in ["\n<th", "ink>", "a", "b</thi", "nk>"] {
            assert_ne!(thinking.state, State::After);
            thinking.observe(text);
        }
        assert_eq!(thinking.state, State::After);
        assert_eq!(thinking.tokens(), 3);
    }

    #[test]
    fn an_answer_without_thinking_is_an_answer() {
        let mut thinking = watch(false, Some(0));
        thinking.observe(" The");
        assert_eq!(thinking.state, State::After);
        assert!(thinking.take_closing().is_empty());
    }

    #[test]
    fn a_spent_budget_closes_once() {
        let mut thinking = watch(true, Some(2));
        assert!(thinking.take_closing().is_empty());
        thinking.observe("é");
        assert!(thinking.is_inside());
        thinking.observe("é");
        assert_eq!(thinking.take_closing(), [7, 8]);
        assert!(thinking.take_closing().is_empty());
        thinking.observe("</think>");
        assert_eq!(thinking.state, State::After);
        assert_eq!(watch(true, Some(0)).take_closing(), [7, 8]);
    }
}
