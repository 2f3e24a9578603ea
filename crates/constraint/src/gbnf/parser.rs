//! Reads GBNF: rules of literals, character classes, groups and repetitions.

use crate::GrammarError;
use std::collections::HashMap;

/// Deepest nesting of groups; the engine takes 30 levels of parentheses.
const MOST_DEPTH: usize = 25;
/// Largest number of repetitions.
const MOST_REPETITIONS: u32 = 10_000;

/// What a rule, or a part of one, consists of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Literal(String),
    /// Ranges of characters, and whether all others are meant.
    Class(Vec<(char, char)>, bool),
    AnyCharacter,
    /// Another rule, by number.
    Rule(usize),
    Sequence(Vec<Node>),
    Alternatives(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Reads all rules; the first number is that of `root`.
pub(super) fn parse(source: &str) -> Result<(usize, Vec<Node>), GrammarError> {
    let mut parser = Parser { source, rest: source, numbers: HashMap::new(), rules: Vec::new() };
    parser.space(true);
    while !parser.rest.is_empty() {
        parser.rule()?;
        parser.space(true);
    }
    let root = parser.numbers.get("root").copied();
    let root = root.ok_or_else(|| GrammarError::invalid("GBNF starts at a rule root, which is missing"))?;
    let undefined = parser.numbers.iter().find(|(_, number)| parser.rules[**number].is_none());
    if let Some((name, _)) = undefined {
        return Err(GrammarError::invalid(format!("rule {name} is used and not defined")));
    }
    Ok((root, parser.rules.into_iter().flatten().collect()))
}

struct Parser<'s> {
    source: &'s str,
    rest: &'s str,
    numbers: HashMap<&'s str, usize>,
    /// Rules by number; `None` is used and not yet defined.
    rules: Vec<Option<Node>>,
}

impl<'s> Parser<'s> {
    fn line(&self) -> usize {
        self.source[..self.source.len() - self.rest.len()].matches('\n').count() + 1
    }

    fn invalid(&self, reason: impl std::fmt::Display) -> GrammarError {
        GrammarError::invalid(format!("line {}: {reason}", self.line()))
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let next = self.peek().ok_or_else(|| self.invalid("the grammar ends too early"))?;
        self.rest = &self.rest[next.len_utf8()..];
        Ok(next)
    }

    fn take(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips blanks and comments, and line ends if they mean nothing here.
    fn space(&mut self, line_ends: bool) {
        loop {
            let rest = self.rest.trim_start_matches(|next| {
                next == ' ' || next == '\t' || (line_ends && "\r\n".contains(next))
            });
            let Some(comment) = rest.strip_prefix('#') else {
                self.rest = rest;
                return;
            };
            self.rest = comment.find(['\r', '\n']).map_or("", |end| &comment[end..]);
        }
    }

    fn name(&mut self) -> Result<usize, GrammarError> {
        let is_part = |next: char| next.is_ascii_alphanumeric() || next == '-' || next == '_';
        let length = self.rest.find(|next| !is_part(next)).unwrap_or(self.rest.len());
        if length == 0 {
            return Err(self.invalid("a rule's name is missing"));
        }
        let (name, rest) = self.rest.split_at(length);
        self.rest = rest;
        let next = self.rules.len();
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.rules.push(None);
        }
        Ok(number)
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let number = self.name()?;
        if self.rules[number].is_some() {
            return Err(self.invalid("the rule is defined twice"));
        }
        self.space(false);
        if !self.take("::=") {
            return Err(self.invalid("::= is missing after a rule's name"));
        }
        self.space(true);
        self.rules[number] = Some(self.alternatives(0)?);
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(other) => Err(self.invalid(format!("{other} belongs to nothing"))),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<Node, GrammarError> {
        if depth > MOST_DEPTH {
            return Err(GrammarError::too_large("the depth of groups in GBNF", MOST_DEPTH));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        loop {
            // A line that begins with a bar goes on with the rule above.
            let end = self.rest;
            self.space(true);
            if !self.take("|") {
                self.rest = end;
                break;
            }
            self.space(true);
            alternatives.push(self.sequence(depth)?);
        }
        Ok(if alternatives.len() == 1 { alternatives.remove(0) } else { Node::Alternatives(alternatives) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let mut parts = Vec::new();
        let mut is_repeated = true;
        loop {
            self.space(depth > 0);
            let Some(next) = self.peek() else { break };
            let part = match next {
                '|' | ')' | '\r' | '\n' => break,
                '"' => self.literal()?,
                '[' => self.class()?,
                '(' => self.group(depth)?,
                '.' => {
                    self.next()?;
                    Node::AnyCharacter
                }
                '*' | '+' | '?' | '{' => {
                    let part = parts.pop().filter(|_| !is_repeated);
                    let part = part.ok_or_else(|| self.invalid(format!("{next} has nothing to repeat")))?;
                    let (least, most) = self.repetition()?;
                    parts.push(Node::Repeat(Box::new(part), least, most));
                    is_repeated = true;
                    continue;
                }
                '<' | '!' => {
                    let reason = format!("line {}: write the token's text as a literal", self.line());
                    return Err(GrammarError::unsupported("a token in GBNF", reason));
                }
                _ => Node::Rule(self.name()?),
            };
            parts.push(part);
            is_repeated = false;
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Sequence(parts) })
    }

    fn group(&mut self, depth: usize) -> Result<Node, GrammarError> {
        self.next()?;
        self.space(true);
        let group = self.alternatives(depth + 1)?;
        self.space(true);
        if !self.take(")") {
            return Err(self.invalid("a group has no end"));
        }
        Ok(group)
    }

    fn repetition(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        match self.next()? {
            '*' => return Ok((0, None)),
            '+' => return Ok((1, None)),
            '?' => return Ok((0, Some(1))),
            _ => {}
        }
        let counts = self.rest.split_once('}').map(|(counts, _)| counts);
        let counts = counts.ok_or_else(|| self.invalid("a repetition has no end"))?;
        let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
        let number = |text: &str| {
            let text = text.trim();
            let number =
                text.parse::<u32>().ok().filter(|_| text.bytes().all(|digit| digit.is_ascii_digit()));
            number.ok_or_else(|| self.invalid(format!("{{{counts}}} is not a repetition")))
        };
        let least = number(least)?;
        let most = if most.trim().is_empty() { None } else { Some(number(most)?) };
        if most.is_some_and(|most| most < least) {
            return Err(self.invalid(format!("{{{counts}}} is the wrong way round")));
        }
        if most.unwrap_or(least) > MOST_REPETITIONS {
            return Err(GrammarError::too_large("repetitions in GBNF", MOST_REPETITIONS as usize));
        }
        self.rest = &self.rest[counts.len() + 1..];
        Ok((least, most))
    }

    fn literal(&mut self) -> Result<Node, GrammarError> {
        self.next()?;
        let mut text = String::new();
        while !self.take("\"") {
            text.push(self.character()?);
        }
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node, GrammarError> {
        self.next()?;
        let negated = self.take("^");
        let mut ranges = Vec::new();
        while !self.take("]") {
            let first = self.character()?;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            if is_range {
                self.next()?;
            }
            let last = if is_range { self.character()? } else { first };
            if last < first {
                return Err(self.invalid(format!("the range {first}-{last} is the wrong way round")));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err(self.invalid("a character class is empty"));
        }
        Ok(Node::Class(ranges, negated))
    }

    /// A character, or an escape for one.
    fn character(&mut self) -> Result<char, GrammarError> {
        match self.next()? {
            '\\' => {}
            character => return Ok(character),
        }
        match self.next()? {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'x' => self.hexadecimal(2),
            'u' => self.hexadecimal(4),
            'U' => self.hexadecimal(8),
            escaped @ ('\\' | '"' | '[' | ']' | '-' | '^') => Ok(escaped),
            other => Err(self.invalid(format!("\\{other} is no escape"))),
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<char, GrammarError> {
        let mut number: u32 = 0;
        for _ in 0..digits {
            let digit = self
                .next()?
                .to_digit(16)
                .ok_or_else(|| self.invalid("an escape wants hexadecimal digits"))?;
            number = number << 4 | digit;
        }
        char::from_u32(number).ok_or_else(|| self.invalid(format!("{number:x} is no character")))
    }
}
