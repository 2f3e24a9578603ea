//! GBNF, the grammar format of llama.cpp, as Lark.
//!
//! GBNF knows characters only. The engine first cuts text into terminals and parses those, which is much
//! faster where terminals are long. So parts that refer to no recursive rule become terminals as far as that
//! loses no text.

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

/// Which rules lead to no recursive rule, by taking away rules whose references are all taken away (Kahn
/// 1962).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grammar, GrammarCompiler, TokenText, Vocabulary};
    use lichen_generate::Constraint;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const END: u32 = 256;
    /// Grammars that are tried.
    const CASES: u32 = 200;

    fn compiler() -> GrammarCompiler {
        let mut tokens: Vec<TokenText> = (0..=u8::MAX).map(|byte| TokenText::Bytes(vec![byte])).collect();
        tokens.push(TokenText::Control("<end>".to_owned()));
        GrammarCompiler::new(Vocabulary { tokens, end: vec![END] }).unwrap()
    }

    fn fork_after(constraint: &dyn Constraint, text: &str) -> Option<Box<dyn Constraint>> {
        let mut fork = constraint.fork();
        text.bytes().all(|byte| fork.accept(u32::from(byte)).is_ok()).then_some(fork)
    }

    /// By rule and start, where the rule may end.
    type Table = Vec<Vec<BTreeSet<usize>>>;

    /// Whether `text` follows rule `root`: ends of rules are added until there are no more.
    fn follows(root: usize, rules: &[Node], text: &[u8]) -> bool {
        let mut table: Table = vec![vec![BTreeSet::new(); text.len() + 1]; rules.len()];
        loop {
            let found = |rule| (0..=text.len()).map(|start| ends(rule, text, start, &table)).collect();
            let next: Table = rules.iter().map(found).collect();
            if next == table {
                return table[root][0].contains(&text.len());
            }
            table = next;
        }
    }

    /// Where `node` may end that begins at `start`, by trying everything.
    fn ends(node: &Node, text: &[u8], start: usize, table: &Table) -> BTreeSet<usize> {
        match node {
            Node::Literal(literal) if text[start..].starts_with(literal.as_bytes()) => {
                [start + literal.len()].into()
            }
            Node::Class(ranges, negated) => {
                let next = text.get(start).map(|&byte| char::from(byte));
                let is_in = |next| ranges.iter().any(|&(first, last)| first <= next && next <= last);
                next.filter(|&next| is_in(next) != *negated).map(|_| start + 1).into_iter().collect()
            }
            Node::Literal(_) | Node::AnyCharacter => BTreeSet::new(),
            Node::Rule(rule) => table[*rule][start].clone(),
            Node::Sequence(parts) => parts.iter().fold([start].into(), |starts: BTreeSet<usize>, part| {
                starts.into_iter().flat_map(|start| ends(part, text, start, table)).collect()
            }),
            Node::Alternatives(parts) => {
                parts.iter().flat_map(|part| ends(part, text, start, table)).collect()
            }
            Node::Repeat(part, least, most) => {
                let mut found = BTreeSet::new();
                let mut starts = BTreeSet::from([start]);
                for times in 0..=most.unwrap_or(least + text.len() as u32 + 1) {
                    if times >= *least {
                        found.extend(&starts);
                    }
                    starts = starts.into_iter().flat_map(|start| ends(part, text, start, table)).collect();
                }
                found
            }
        }
    }

    /// Bodies of rules that refer to one another, behind a character, so that trying everything comes to an
    /// end.
    fn body() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "\"a\"",
            "\"ab\"",
            "\"b\"",
            "\"\"",
            "[ab]",
            "[^a]",
            "one",
            "two",
            "\"b\" root",
            "\"a\" root \"b\"",
            "\"(\" one \")\"",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.join(" ")),
                prop::collection::vec(inner.clone(), 2..4)
                    .prop_map(|parts| format!("({})", parts.join(" | "))),
                (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"]))
                    .prop_map(|(part, operator)| format!("({part}){operator}")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

        #[test]
        fn the_texts_that_follow_are_those_of_the_grammar(
            root in body(),
            one in body(),
            texts in prop::collection::vec("[ab()]{0,6}", 30),
        ) {
            let source = format!("root ::= {root}\none ::= {one}\ntwo ::= [ab]* \"b\" | \"a\" two?");
            let (start, rules) = parser::parse(&source).unwrap();
            let Ok(constraint) = compiler().compile(&Grammar::Gbnf(source.clone())) else { return Ok(()) };
            for text in texts {
                let fork = fork_after(constraint.as_ref(), &text);
                let may_end = fork.is_some_and(|mut fork| fork.accept(END).is_ok());
                let should = follows(start, &rules, text.as_bytes());
                prop_assert_eq!(may_end, should, "{:?} and {}", text, source);
            }
        }
    }
}
