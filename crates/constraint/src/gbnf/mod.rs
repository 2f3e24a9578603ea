//! GBNF, the grammar format of llama.cpp, as Lark.
//!
//! GBNF knows characters only. The engine first cuts text into terminals and parses those, which is much faster where
//! terminals are long. So parts that refer to no recursive rule become terminals as far as that loses no text.

mod automaton;
mod follow;
mod parser;
mod split;
mod write;

use crate::GrammarError;
use parser::Node;
use split::split;
use write::write;

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
