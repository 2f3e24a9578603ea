//! Regular expressions of ECMA-262 in the engine's dialect.
//!
//! Every construct is read and written anew, so that none can mean something else there.

use super::has_no_escape;
use crate::GrammarError;
use regex_syntax::hir::{Class, Hir, HirKind};
use std::iter::Peekable;
use std::str::Chars;

/// Longest expression.
const MOST_BYTES: usize = 4 << 10;
/// Deepest nesting of groups.
const MOST_DEPTH: usize = 50;
/// Largest number of repetitions.
const MOST_REPETITIONS: u32 = 10_000;

const DIGITS: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
const SPACE: &str = concat!(
    r"\x{9}-\x{D}\x{20}\x{A0}\x{1680}\x{2000}-\x{200A}",
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
);
const ANY: &str = r"[^\x{A}\x{D}\x{2028}\x{2029}]";

/// Rewrites an expression.
pub(super) fn lower(pattern: &str) -> Result<String, GrammarError> {
    if pattern.len() > MOST_BYTES {
        return Err(GrammarError::too_large("bytes of a pattern", MOST_BYTES));
    }
    let mut reader = Reader { pattern, rest: pattern.chars().peekable(), written: String::new() };
    reader.alternatives(0)?;
    match reader.rest.next() {
        None => {
            reader.check_characters()?;
            Ok(reader.written)
        }
        Some(_) => Err(reader.invalid("a parenthesis closes nothing")),
    }
}

struct Reader<'p> {
    pattern: &'p str,
    rest: Peekable<Chars<'p>>,
    written: String,
}

/// What an escape stands for.
enum Escape {
    Character(char),
    /// The inside of a class, and whether it is negated.
    Class(String, bool),
}

impl Reader<'_> {
    fn invalid(&self, reason: &str) -> GrammarError {
        GrammarError::invalid(format!("pattern {:?}: {reason}", self.pattern))
    }

    fn unsupported(&self, construct: &str) -> GrammarError {
        GrammarError::unsupported(
            format!("pattern {:?}", self.pattern),
            format!("{construct} is not regular, or not supported"),
        )
    }

    /// Refuses what the engine would leave out of literals.
    fn check_characters(&self) -> Result<(), GrammarError> {
        let parsed = regex_syntax::parse(&self.written);
        let parsed = parsed.map_err(|reason| {
            let reason = reason.to_string();
            self.invalid(reason.lines().last().unwrap_or_default())
        })?;
        let mut open: Vec<&Hir> = vec![&parsed];
        while let Some(node) = open.pop() {
            open.extend(node.kind().subs());
            let is_left_out = match node.kind() {
                HirKind::Literal(literal) => literal.0.iter().any(|&byte| has_no_escape(char::from(byte))),
                HirKind::Class(Class::Unicode(class)) => {
                    let mut single = class.ranges().iter().filter(|range| range.start() == range.end());
                    single.any(|range| has_no_escape(range.start()))
                }
                _ => false,
            };
            if is_left_out {
                return Err(self.unsupported("a control character without a short escape"));
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        self.rest.next().ok_or_else(|| self.invalid("it ends too early"))
    }

    fn take(&mut self, wanted: char) -> bool {
        self.rest.next_if_eq(&wanted).is_some()
    }

    /// Up to the end or a closing parenthesis, which stays.
    fn alternatives(&mut self, depth: usize) -> Result<(), GrammarError> {
        if depth > MOST_DEPTH {
            return Err(GrammarError::too_large("the depth of groups in a pattern", MOST_DEPTH));
        }
        while let Some(&next) = self.rest.peek() {
            match next {
                ')' => break,
                '|' => drop((self.rest.next(), self.written.push('|'))),
                _ => self.term(depth)?,
            }
        }
        Ok(())
    }

    fn term(&mut self, depth: usize) -> Result<(), GrammarError> {
        let first = self.next()?;
        match first {
            '^' | '$' => {
                self.written.push(first);
                if self.rest.peek().is_some_and(|next| "*+?{".contains(*next)) {
                    return Err(self.unsupported("a repeated anchor"));
                }
                return Ok(());
            }
            '(' => self.group(depth)?,
            '.' => self.written.push_str(ANY),
            '[' => self.class()?,
            '\\' => match self.escape()? {
                Escape::Character(character) => self.write(character),
                Escape::Class(inside, negated) => self.written.push_str(&class(&inside, negated)),
            },
            '*' | '+' | '?' => return Err(self.invalid("nothing to repeat")),
            '{' => return Err(self.unsupported("a brace that is not escaped")),
            _ => self.write(first),
        }
        self.quantifier()
    }

    fn write(&mut self, character: char) {
        self.written.push_str(&literal(character));
    }

    fn group(&mut self, depth: usize) -> Result<(), GrammarError> {
        if self.take('?') {
            match self.next()? {
                ':' => {}
                '<' if !matches!(self.rest.peek(), Some('=' | '!')) => while self.next()? != '>' {},
                '=' | '!' | '<' => return Err(self.unsupported("looking ahead or behind")),
                _ => return Err(self.unsupported("a group with flags")),
            }
        }
        self.written.push_str("(?:");
        self.alternatives(depth + 1)?;
        if self.next()? != ')' {
            return Err(self.invalid("a group has no end"));
        }
        self.written.push(')');
        Ok(())
    }

    fn quantifier(&mut self) -> Result<(), GrammarError> {
        let Some(first) = self.rest.next_if(|next| "*+?{".contains(*next)) else { return Ok(()) };
        self.written.push(first);
        if first == '{' {
            self.counts()?;
        }
        // Which of several matches is meant makes no difference to whether there is one.
        self.take('?');
        if self.rest.peek().is_some_and(|next| "*+?{".contains(*next)) {
            return Err(self.invalid("nothing to repeat"));
        }
        Ok(())
    }

    fn counts(&mut self) -> Result<(), GrammarError> {
        let mut text = String::new();
        loop {
            match self.next()? {
                '}' => break,
                digit => text.push(digit),
            }
        }
        let (least, most) = text.split_once(',').unwrap_or((&text, &text));
        let number =
            |text: &str| text.parse::<u32>().map_err(|_| self.unsupported("a brace that is not escaped"));
        let (least, most) = (number(least)?, if most.is_empty() { None } else { Some(number(most)?) });
        if most.is_some_and(|most| most < least) {
            return Err(self.invalid("a repetition's bounds are the wrong way round"));
        }
        if most.unwrap_or(least) > MOST_REPETITIONS {
            return Err(GrammarError::too_large("repetitions in a pattern", MOST_REPETITIONS as usize));
        }
        self.written
            .push_str(&format!("{least},{}}}", most.map(|most| most.to_string()).unwrap_or_default()));
        Ok(())
    }

    fn class(&mut self) -> Result<(), GrammarError> {
        let negated = self.take('^');
        let mut inside = String::new();
        while !self.take(']') {
            let first = match self.class_item()? {
                Escape::Character(character) => character,
                Escape::Class(class_inside, negated) => {
                    inside.push_str(&class(&class_inside, negated));
                    continue;
                }
            };
            inside.push_str(&literal(first));
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|next| next != ']') {
                self.rest.next();
                match self.class_item()? {
                    Escape::Character(last) if last >= first => {
                        inside.push_str(&format!("-{}", literal(last)))
                    }
                    _ => return Err(self.invalid("a range is the wrong way round, or ends with a class")),
                }
            }
        }
        if inside.is_empty() {
            return Err(self.unsupported("an empty class"));
        }
        self.written.push_str(&class(&inside, negated));
        Ok(())
    }

    fn class_item(&mut self) -> Result<Escape, GrammarError> {
        match self.next()? {
            '\\' if self.take('b') => Ok(Escape::Character('\x08')),
            '\\' if self.take('-') => Ok(Escape::Character('-')),
            '\\' => self.escape(),
            character => Ok(Escape::Character(character)),
        }
    }

    fn escape(&mut self) -> Result<Escape, GrammarError> {
        let letter = self.next()?;
        let character = match letter {
            'd' | 'D' => return Ok(Escape::Class(DIGITS.to_owned(), letter == 'D')),
            'w' | 'W' => return Ok(Escape::Class(WORD.to_owned(), letter == 'W')),
            's' | 'S' => return Ok(Escape::Class(SPACE.to_owned(), letter == 'S')),
            'p' | 'P' => return Ok(Escape::Class(self.property()?, letter == 'P')),
            't' => '\t',
            'n' => '\n',
            'v' => '\x0b',
            'f' => '\x0c',
            'r' => '\r',
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => '\0',
            'c' => match self.next()? {
                control if control.is_ascii_alphabetic() => char::from(control as u8 % 32),
                _ => return Err(self.invalid("\\c wants a letter")),
            },
            'x' => self.hexadecimal(2)?,
            'u' if self.take('{') => self.braced_hexadecimal()?,
            'u' => self.hexadecimal(4)?,
            _ if letter.is_ascii_punctuation() => letter,
            _ => return Err(self.unsupported(&format!("\\{letter}"))),
        };
        Ok(Escape::Character(character))
    }

    /// A Unicode property such as `{L}` or `{Script=Greek}`.
    fn property(&mut self) -> Result<String, GrammarError> {
        if !self.take('{') {
            return Err(self.unsupported("a Unicode property without braces"));
        }
        let mut name = String::new();
        loop {
            match self.next()? {
                '}' => return Ok(format!(r"\p{{{name}}}")),
                letter if letter.is_ascii_alphanumeric() || "_=".contains(letter) => name.push(letter),
                _ => return Err(self.invalid("a Unicode property has a name of letters")),
            }
        }
    }

    fn hexadecimal(&mut self, digits: usize) -> Result<char, GrammarError> {
        let mut text = String::new();
        for _ in 0..digits {
            text.push(self.next()?);
        }
        self.code_point(&text)
    }

    fn braced_hexadecimal(&mut self) -> Result<char, GrammarError> {
        let mut text = String::new();
        loop {
            match self.next()? {
                '}' => return self.code_point(&text),
                digit => text.push(digit),
            }
        }
    }

    fn code_point(&self, text: &str) -> Result<char, GrammarError> {
        let number =
            u32::from_str_radix(text, 16).map_err(|_| self.invalid("an escape wants hexadecimal digits"))?;
        char::from_u32(number).ok_or_else(|| self.unsupported("half of a surrogate pair"))
    }
}

fn literal(character: char) -> String {
    if character.is_ascii_alphanumeric() || !character.is_ascii() {
        character.to_string()
    } else {
        format!(r"\x{{{:X}}}", u32::from(character))
    }
}

fn class(inside: &str, negated: bool) -> String {
    format!("[{}{inside}]", if negated { "^" } else { "" })
}
