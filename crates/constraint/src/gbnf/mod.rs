//! GBNF, the grammar format of llama.cpp, as Lark.
//!
//! GBNF knows characters only. The engine first cuts text into terminals and parses those, which is much faster where
//! terminals are long. So parts that refer to no recursive rule become terminals as far as that loses no text.

mod automaton;
mod follow;
mod parser;
mod split;

use crate::{GrammarError, lark};
use parser::Node;
use split::{Part, Split, split};

/// Longest source.
const MOST_BYTES: usize = 64 << 10;

/// Rewrites a GBNF grammar.
pub(crate) fn to_lark(source: &str) -> Result<String, GrammarError> {
    if source.len() > MOST_BYTES {
        return Err(GrammarError::too_large("bytes of a GBNF grammar", MOST_BYTES));
    }
    let (root, rules) = parser::parse(source)?;
    let references: Vec<Vec<usize>> = rules.iter().map(references).collect();
    let regular = regular_rules(&references);
    let split = split(root, &rules, &regular)?;
    Ok(write(&split, &rules))
}

/// The rules that a rule refers to.
fn references(rule: &Node) -> Vec<usize> {
    let mut found = Vec::new();
    let mut open = vec![rule];
    while let Some(node) = open.pop() {
        match node {
            Node::Rule(number) => found.push(*number),
            Node::Sequence(parts) | Node::Alternatives(parts) => open.extend(parts),
            Node::Repeat(part, ..) => open.push(part),
            Node::Literal(_) | Node::Class(..) | Node::AnyCharacter => {}
        }
    }
    found
}

/// Which rules lead to no recursive rule, by taking away rules whose references are all taken away (Kahn 1962).
fn regular_rules(references: &[Vec<usize>]) -> Vec<bool> {
    let mut users = vec![Vec::new(); references.len()];
    let mut left: Vec<usize> = references.iter().map(Vec::len).collect();
    for (user, used) in references.iter().enumerate() {
        used.iter().for_each(|&used| users[used].push(user));
    }
    let mut regular = vec![false; references.len()];
    let mut open: Vec<usize> = (0..references.len()).filter(|&rule| left[rule] == 0).collect();
    while let Some(rule) = open.pop() {
        regular[rule] = true;
        for &user in &users[rule] {
            left[user] -= 1;
            if left[user] == 0 {
                open.push(user);
            }
        }
    }
    regular
}

/// Writes the rules, the terminals, and the rules that terminals refer to, which are terminals too.
fn write(split: &Split, rules: &[Node]) -> String {
    let mut lark = String::new();
    for (number, body) in &split.rules {
        let name = if *number == rules.len() { "start".to_owned() } else { rule_name(*number) };
        lark.push_str(&format!("{name}: {}\n", rule(body)));
    }
    let mut open = Vec::new();
    for (number, body) in split.terminals.iter().enumerate() {
        lark.push_str(&format!("PART_{number}: {}\n", terminal(body)));
        open.extend(references(body));
    }
    let mut is_written = vec![false; rules.len()];
    while let Some(number) = open.pop() {
        if !std::mem::replace(&mut is_written[number], true) {
            lark.push_str(&format!("RULE_{number}: {}\n", terminal(&rules[number])));
            open.extend(references(&rules[number]));
        }
    }
    lark
}

/// Names in GBNF may have dashes and capitals, which mean something in Lark.
fn rule_name(rule: usize) -> String {
    format!("rule_{rule}")
}

fn terminal(node: &Node) -> String {
    match node {
        Node::Literal(text) => lark::string(text),
        Node::Class(ranges, negated) => class(ranges, *negated),
        Node::AnyCharacter => "/(?s:.)/".to_owned(),
        Node::Rule(rule) => format!("RULE_{rule}"),
        Node::Sequence(parts) if parts.is_empty() => lark::string(""),
        Node::Sequence(parts) => group(parts.iter().map(terminal), " "),
        Node::Alternatives(parts) => group(parts.iter().map(terminal), " | "),
        Node::Repeat(part, least, most) => repeated(&terminal(part), *least, *most),
    }
}

fn rule(part: &Part) -> String {
    match part {
        Part::Terminal(number) => format!("PART_{number}"),
        Part::Rule(number) => rule_name(*number),
        Part::Sequence(parts) if parts.is_empty() => lark::string(""),
        Part::Sequence(parts) => group(parts.iter().map(rule), " "),
        Part::Alternatives(parts) => group(parts.iter().map(rule), " | "),
        Part::Repeat(part, least, most) => repeated(&rule(part), *least, *most),
    }
}

fn group(parts: impl Iterator<Item = String>, between: &str) -> String {
    format!("({})", parts.collect::<Vec<_>>().join(between))
}

fn repeated(part: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => lark::string(""),
        (0, None) => format!("({part})*"),
        (1, None) => format!("({part})+"),
        (0, Some(1)) => format!("({part})?"),
        (least, None) => format!("({part}){{{least},}}"),
        (least, Some(most)) => format!("({part}){{{least},{most}}}"),
    }
}

fn class(ranges: &[(char, char)], negated: bool) -> String {
    let ranges = ranges.iter().map(|(first, last)| {
        let (first, last) = (u32::from(*first), u32::from(*last));
        format!(r"\x{{{first:X}}}-\x{{{last:X}}}")
    });
    format!("/[{}{}]/", if negated { "^" } else { "" }, ranges.collect::<String>())
}
