//! JSON that arrives character by character: checked as it comes, with the end of the value found.

/// Deepest nesting of arrays and objects that is accepted; parsers of JSON stop at 128.
const MAX_DEPTH: usize = 64;
/// Longest number that is accepted, in bytes.
const MAX_SCALAR: usize = 512;

/// What a character did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the value, and the value goes on.
    More,
    /// It is the last character of the value.
    End,
    /// The value ended before it, as numbers do.
    EndBefore,
    /// No JSON has it here. The character is not taken.
    Invalid,
}

/// Reads one JSON value (RFC 8259), in time linear in its length.
#[derive(Debug)]
pub(super) struct JsonScan {
    open: Vec<Container>,
    state: State,
    /// The escape sequence or the scalar that is being read.
    token: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    FirstElement,
    FirstKey,
    Key,
    Colon,
    /// After a value: a comma or the end of the container.
    Next,
    String {
        key: bool,
    },
    Escape {
        key: bool,
    },
    /// A number, `true`, `false` or `null`.
    Scalar,
}

/// White space of JSON.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

fn is_scalar(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

impl JsonScan {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), state: State::Value, token: String::new() }
    }

    /// Takes the next character. After [`Step::End`], [`Step::EndBefore`] and [`Step::Invalid`] nothing more
    /// may come.
    pub(super) fn push(&mut self, c: char) -> Step {
        match (self.state, c) {
            (State::String { key }, _) => self.in_string(c, key),
            (State::Escape { key }, _) => self.in_escape(c, key),
            (State::Scalar, _) => self.in_scalar(c),
            (_, ' ' | '\t' | '\n' | '\r') => Step::More,
            (State::Value, _) => self.begin(c),
            (State::FirstElement, ']') => self.close(),
            (State::FirstElement, _) => self.begin(c),
            (State::FirstKey, '}') => self.close(),
            (State::FirstKey | State::Key, '"') => self.go(State::String { key: true }),
            (State::Colon, ':') => self.go(State::Value),
            (State::Next, _) => self.after_value(c),
            _ => Step::Invalid,
        }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::More
    }

    fn begin(&mut self, c: char) -> Step {
        match c {
            '{' | '[' if self.open.len() == MAX_DEPTH => Step::Invalid,
            '{' => {
                self.open.push(Container::Object);
                self.go(State::FirstKey)
            }
            '[' => {
                self.open.push(Container::Array);
                self.go(State::FirstElement)
            }
            '"' => self.go(State::String { key: false }),
            _ if is_scalar(c) => {
                self.token = c.to_string();
                self.go(State::Scalar)
            }
            _ => Step::Invalid,
        }
    }

    fn after_value(&mut self, c: char) -> Step {
        match (self.open.last(), c) {
            (Some(Container::Array), ',') => self.go(State::Value),
            (Some(Container::Object), ',') => self.go(State::Key),
            (Some(Container::Array), ']') | (Some(Container::Object), '}') => self.close(),
            _ => Step::Invalid,
        }
    }

    fn close(&mut self) -> Step {
        self.open.pop();
        self.end_value()
    }

    fn end_value(&mut self) -> Step {
        self.state = State::Next;
        if self.open.is_empty() { Step::End } else { Step::More }
    }

    fn in_string(&mut self, c: char, key: bool) -> Step {
        match c {
            '"' if key => self.go(State::Colon),
            '"' => self.end_value(),
            '\\' => {
                self.token.clear();
                self.go(State::Escape { key })
            }
            '\0'..='\x1f' => Step::Invalid,
            _ => Step::More,
        }
    }

    fn in_escape(&mut self, c: char, key: bool) -> Step {
        self.token.push(c);
        match whole_escape(&self.token) {
            None => Step::Invalid,
            Some(false) => Step::More,
            Some(true) => self.go(State::String { key }),
        }
    }

    fn in_scalar(&mut self, c: char) -> Step {
        if is_scalar(c) {
            self.token.push(c);
            return if self.token.len() > MAX_SCALAR { Step::Invalid } else { Step::More };
        }
        if !self.whole_scalar() {
            return Step::Invalid;
        }
        if self.open.is_empty() {
            return Step::EndBefore;
        }
        self.state = State::Next;
        self.push(c)
    }

    fn whole_scalar(&self) -> bool {
        matches!(self.token.as_str(), "true" | "false" | "null")
            || serde_json::from_str::<serde_json::Number>(&self.token).is_ok()
    }

    /// Whether what was taken so far becomes JSON if [`JsonScan::closing`] follows.
    pub(super) fn closable(&self) -> bool {
        matches!(
            self.state,
            State::Next | State::FirstElement | State::FirstKey | State::String { key: false }
        )
    }

    /// Whether `c` would end a number or a word, so that what was taken before it is closable.
    pub(super) fn closable_before(&self, c: char) -> bool {
        self.state == State::Scalar && !is_scalar(c) && self.whole_scalar()
    }

    /// The shortest text that makes JSON of all up to the last closable place. It stays the same from there
    /// on, because every string, array and object that begins or ends makes such a place.
    pub(super) fn closing(&self) -> String {
        let quoted = matches!(self.state, State::String { key: false } | State::Escape { key: false });
        let brackets = self.open.iter().rev().map(|container| match container {
            Container::Array => ']',
            Container::Object => '}',
        });
        quoted.then_some('"').into_iter().chain(brackets).collect()
    }
}

/// Whether `text` is one JSON value, white space around it aside.
pub(super) fn is_json(text: &str) -> bool {
    let text = text.trim_matches(is_space);
    let mut scan = JsonScan::new();
    let mut steps = text.chars().map(|c| scan.push(c));
    match steps.find(|step| *step != Step::More) {
        Some(step) => step == Step::End && steps.next().is_none(),
        None => scan.push(' ') == Step::EndBefore,
    }
}

/// Whether an escape sequence, written without its backslash, is whole. `None` if it can not become one.
/// A surrogate counts only as the first half of a pair, because a string has to be Unicode in the end.
fn whole_escape(sequence: &str) -> Option<bool> {
    match sequence.as_bytes() {
        [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't'] => Some(true),
        [b'u', digits @ ..] if digits.len() < 4 => code_unit(digits).map(|_| false),
        [b'u', digits @ ..] if digits.len() == 4 => match code_unit(digits)? {
            0xd800..=0xdbff => Some(false),
            0xdc00..=0xdfff => None,
            _ => Some(true),
        },
        [b'u', _, _, _, _, b'\\'] => Some(false),
        [b'u', _, _, _, _, b'\\', b'u', digits @ ..] if digits.len() < 4 => code_unit(digits).map(|_| false),
        [b'u', _, _, _, _, b'\\', b'u', digits @ ..] => {
            (0xdc00..=0xdfff).contains(&code_unit(digits)?).then_some(true)
        }
        _ => None,
    }
}

fn code_unit(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |unit, &digit| Some(unit * 16 + char::from(digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (usize, Step) {
        let mut scan = JsonScan::new();
        let steps = text.chars().map(|c| scan.push(c)).enumerate();
        steps.into_iter().find(|(_, step)| *step != Step::More).unwrap_or((text.len(), Step::More))
    }

    #[test]
    fn the_end_of_a_value_is_found() {
        for text in
            [r#"{"a": [1, {"b": "}"}], "c\"": null}"#, "[]", "{}", r#""\ud83d\ude00\n\u00e9""#, "[-0, 1.5e3]"]
        {
            assert_eq!(read(&format!("{text}}}")), (text.len() - 1, Step::End), "{text}");
            assert!(is_json(text) && serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
        }
        assert_eq!(read("12,"), (2, Step::EndBefore));
        assert!(is_json(" 12 ") && is_json("null"));
    }

    #[test]
    fn what_no_parser_takes_is_invalid() {
        let deep = "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1);
        let long = format!("[{}]", "1".repeat(MAX_SCALAR + 1));
        let texts = [
            "{,}",
            "{\"a\"}",
            "[1,]",
            "[1}",
            "{a: 1}",
            "[01]",
            "[1e999]",
            "[tru]",
            "[+1]",
            "[1 2]",
            "\"a\nb\"",
            "[.5]",
            "'a'",
            r#""\x""#,
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\u0041""#,
            r#""\u+123""#,
            &deep,
            &long,
        ];
        for text in texts {
            assert_eq!(read(text).1, Step::Invalid, "{text}");
        }
    }

    #[test]
    fn a_closable_start_becomes_json() {
        let text = r#"{"a b": [1, {"c": "d\n\ud83d\ude00"}, true, []], "e": {"f": null}}"#;
        let (mut scan, mut closed) = (JsonScan::new(), 0);
        for (at, c) in text.char_indices() {
            scan.push(c);
            if scan.closable() {
                closed += 1;
                let whole = text[..=at].to_owned() + &scan.closing();
                assert!(serde_json::from_str::<serde_json::Value>(&whole).is_ok(), "{whole}");
            }
        }
        assert!(closed > 10);
    }
}
