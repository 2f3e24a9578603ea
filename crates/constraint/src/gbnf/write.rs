//! Writes Lark.

use super::parser::Node;
use super::references;
use super::split::{Part, Split};
use crate::lark;

/// Writes the rules, the terminals, and the rules that terminals refer to, which are terminals too.
pub(super) fn write(split: &Split, rules: &[Node]) -> String {
    let mut lark = String::new();
    for (number, body) in &split.rules {
        let name = if *number == rules.len() { "start".to_owned() } else { rule_name(*number) };
        lark.push_str(&format!("{name}: {}\n", rule(body).text));
    }
    let mut open = Vec::new();
    for (number, body) in split.terminals.iter().enumerate() {
        lark.push_str(&format!("PART_{number}: {}\n", terminal(body).text));
        open.extend(references(body));
    }
    let mut is_written = vec![false; rules.len()];
    while let Some(number) = open.pop() {
        if !std::mem::replace(&mut is_written[number], true) {
            lark.push_str(&format!("RULE_{number}: {}\n", terminal(&rules[number]).text));
            open.extend(references(&rules[number]));
        }
    }
    lark
}

/// Names in GBNF may have dashes and capitals, which mean something in Lark.
fn rule_name(rule: usize) -> String {
    format!("rule_{rule}")
}

fn terminal(node: &Node) -> Written {
    match node {
        Node::Literal(text) => Written::atom(lark::string(text)),
        Node::Class(ranges, negated) => Written::atom(class(ranges, *negated)),
        Node::AnyCharacter => Written::atom("/(?s:.)/".to_owned()),
        Node::Rule(rule) => Written::atom(format!("RULE_{rule}")),
        Node::Sequence(parts) => Written::sequence(parts.iter().map(terminal)),
        Node::Alternatives(parts) => Written::alternatives(parts.iter().map(terminal)),
        Node::Repeat(part, least, most) => terminal(part).repeated(*least, *most),
    }
}

fn rule(part: &Part) -> Written {
    match part {
        Part::Terminal(number) => Written::atom(format!("PART_{number}")),
        Part::Rule(number) => Written::atom(rule_name(*number)),
        Part::Sequence(parts) => Written::sequence(parts.iter().map(rule)),
        Part::Alternatives(parts) => Written::alternatives(parts.iter().map(rule)),
        Part::Repeat(part, least, most) => rule(part).repeated(*least, *most),
    }
}

/// How closely the parts of a text belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Alternatives,
    Sequence,
    Repetition,
    Atom,
}

struct Written {
    text: String,
    binding: Binding,
}

impl Written {
    fn atom(text: String) -> Self {
        Self { text, binding: Binding::Atom }
    }

    /// The text, in parentheses if it would fall apart: the engine takes only some levels of them.
    fn within(self, binding: Binding) -> String {
        if self.binding < binding { format!("({})", self.text) } else { self.text }
    }

    fn sequence(parts: impl Iterator<Item = Self>) -> Self {
        let parts: Vec<String> = parts.map(|part| part.within(Binding::Sequence)).collect();
        if parts.is_empty() {
            return Self::atom(lark::string(""));
        }
        Self { text: parts.join(" "), binding: Binding::Sequence }
    }

    fn alternatives(parts: impl Iterator<Item = Self>) -> Self {
        let parts: Vec<String> = parts.map(|part| part.text).collect();
        Self { text: parts.join(" | "), binding: Binding::Alternatives }
    }

    fn repeated(self, least: u32, most: Option<u32>) -> Self {
        let part = self.within(Binding::Atom);
        let text = match (least, most) {
            (_, Some(0)) => return Self::atom(lark::string("")),
            (0, None) => format!("{part}*"),
            (1, None) => format!("{part}+"),
            (0, Some(1)) => format!("{part}?"),
            (least, None) => format!("{part}{{{least},}}"),
            (least, Some(most)) => format!("{part}{{{least},{most}}}"),
        };
        Self { text, binding: Binding::Repetition }
    }
}

fn class(ranges: &[(char, char)], negated: bool) -> String {
    let ranges = ranges.iter().map(|(first, last)| {
        let (first, last) = (u32::from(*first), u32::from(*last));
        format!(r"\x{{{first:X}}}-\x{{{last:X}}}")
    });
    format!("/[{}{}]/", if negated { "^" } else { "" }, ranges.collect::<String>())
}

#[cfg(test)]
mod tests {
    use crate::gbnf::to_lark;

    #[test]
    fn only_parentheses_that_are_needed_are_written() {
        let lark = to_lark("root ::= (((\"a\" | [b-c^] .)))* (\"d\")").unwrap();
        let body = r#"("a" | /[\x{62}-\x{63}\x{5E}-\x{5E}]/ /(?s:.)/)* "d""#;
        assert_eq!(lark, format!("start: PART_0\nPART_0: RULE_0\nRULE_0: {body}\n"));
    }

    #[test]
    fn terminals_stay_long_where_that_loses_no_text() {
        let string = "string ::= \"\\\"\" [^\"]* \"\\\"\" ws\nws ::= [ ]*";
        let apart = to_lark(&format!("root ::= \"[\" root? \"]\" | string\n{string}")).unwrap();
        assert!(apart.contains(": RULE_1\n"), "a string with its space is one terminal: {apart}");
        let joined = to_lark(&format!("root ::= \"[\" root? \"]\" | string \" \"\n{string}")).unwrap();
        assert!(
            joined.contains(r#""\"" /[^\x{22}-\x{22}]/* "\"""#),
            "its text is one terminal still: {joined}"
        );
    }
}
