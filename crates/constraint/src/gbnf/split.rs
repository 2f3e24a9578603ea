//! Which parts of a grammar become terminals.
//!
//! The engine makes each terminal as long as possible. That loses texts where a terminal is complete, the
//! next character could belong to what follows, and this or another terminal could take it too. Such
//! terminals are taken apart, down to single characters if need be, where no such choice is left.

use super::automaton::{Automaton, overlap};
use super::follow::{FollowSets, Numbers};
use super::parser::Node;
use super::references;
use crate::GrammarError;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Most pairs of positions that are compared.
const MOST_WORK: usize = 5_000_000;

/// What remains for the parser.
#[derive(Debug)]
pub(super) enum Part {
    Terminal(usize),
    Rule(usize),
    Sequence(Vec<Part>),
    Alternatives(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
}

/// A grammar in terminals and rules over them.
#[derive(Debug, Default)]
pub(super) struct Split {
    pub(super) terminals: Vec<Node>,
    pub(super) rules: BTreeMap<usize, Part>,
    numbers: HashMap<Node, usize>,
}

/// Splits the grammar that starts at rule `root`.
pub(super) fn split(root: usize, rules: &[Node], regular: &[bool]) -> Result<Split, GrammarError> {
    let mut splitter = Splitter { rules, regular, apart: HashSet::new(), work: 0 };
    loop {
        let split = splitter.build(root);
        // A grammar of one terminal leaves no choice.
        let conflicts = if split.terminals.len() < 2 && regular[root] {
            HashSet::new()
        } else {
            splitter.conflicts(&split)?
        };
        let count = splitter.apart.len();
        splitter.apart.extend(conflicts.into_iter().map(|terminal| split.terminals[terminal].clone()));
        if splitter.apart.len() == count {
            return Ok(split);
        }
    }
}

struct Splitter<'g> {
    rules: &'g [Node],
    regular: &'g [bool],
    /// Parts that must not be terminals.
    apart: HashSet<Node>,
    work: usize,
}

impl Splitter<'_> {
    fn build(&self, root: usize) -> Split {
        let mut split = Split::default();
        let start = self.part(&Node::Rule(root), &mut split);
        let mut open = rules_of(&start);
        // Rule numbers end before this one.
        split.rules.insert(self.rules.len(), start);
        while let Some(rule) = open.pop() {
            if !split.rules.contains_key(&rule) {
                let body = self.part(&self.rules[rule], &mut split);
                open.extend(rules_of(&body));
                split.rules.insert(rule, body);
            }
        }
        split
    }

    fn is_terminal(&self, node: &Node) -> bool {
        let is_character = is_character(node);
        is_character
            || (references(node).into_iter().all(|rule| self.regular[rule]) && !self.apart.contains(node))
    }

    fn part(&self, node: &Node, split: &mut Split) -> Part {
        if self.is_terminal(node) {
            return split.terminal(node.clone());
        }
        match node {
            Node::Sequence(parts) => Part::Sequence(self.sequence(parts, split)),
            Node::Alternatives(parts) => {
                Part::Alternatives(parts.iter().map(|part| self.part(part, split)).collect())
            }
            Node::Repeat(part, least, most) => Part::Repeat(Box::new(self.part(part, split)), *least, *most),
            Node::Rule(rule) => Part::Rule(*rule),
            Node::Literal(text) => {
                let characters =
                    text.chars().map(|character| split.terminal(Node::Literal(character.to_string())));
                Part::Sequence(characters.collect())
            }
            Node::Class(..) | Node::AnyCharacter => split.terminal(node.clone()),
        }
    }

    /// Neighbours that may be one terminal are one.
    fn sequence(&self, parts: &[Node], split: &mut Split) -> Vec<Part> {
        let mut written = Vec::new();
        for run in parts.chunk_by(|one, other| self.is_terminal(one) && self.is_terminal(other)) {
            let whole = Node::Sequence(run.to_vec());
            if run.len() > 1 && run.len() < parts.len() && self.is_terminal(&whole) {
                written.push(split.terminal(whole));
            } else {
                written.extend(run.iter().map(|part| self.part(part, split)));
            }
        }
        written
    }

    /// Terminals that could be too long, or make another one so.
    fn conflicts(&mut self, split: &Split) -> Result<HashSet<usize>, GrammarError> {
        let automata: Vec<Option<Automaton>> =
            split.terminals.iter().map(|terminal| Automaton::of(terminal, self.rules)).collect();
        let nullable: Vec<bool> = automata
            .iter()
            .map(|automaton| automaton.as_ref().is_none_or(|automaton| automaton.is_nullable))
            .collect();
        let follow = FollowSets::of(split, &nullable);
        let too_large = (0..automata.len()).filter(|&terminal| automata[terminal].is_none());
        let mut conflicts: HashSet<usize> = too_large.collect();
        if !conflicts.is_empty() {
            return Ok(conflicts);
        }
        let automata: Vec<Automaton> = automata.into_iter().flatten().collect();
        for (short, automaton) in automata.iter().enumerate() {
            let after = follow.after(short);
            for (long, other) in automata.iter().enumerate() {
                if self.is_conflict(automaton, other, after, &automata)? {
                    conflicts.extend(
                        [short, long].into_iter().filter(|&part| !is_character(&split.terminals[part])),
                    );
                }
            }
        }
        Ok(conflicts)
    }

    /// Whether `short` may be complete where `long` could go on with a character that one of `after` begins
    /// with.
    fn is_conflict(
        &mut self,
        short: &Automaton,
        long: &Automaton,
        after: &Numbers,
        automata: &[Automaton],
    ) -> Result<bool, GrammarError> {
        let mut seen = HashSet::new();
        let mut open: Vec<(usize, usize)> =
            short.first.iter().flat_map(|&one| long.first.iter().map(move |&other| (one, other))).collect();
        while let Some((one, other)) = open.pop() {
            self.work += 1;
            if self.work > MOST_WORK {
                return Err(GrammarError::unsupported(
                    "a GBNF grammar of this size",
                    "its rules are too much alike",
                ));
            }
            if !overlap(&short.characters[one], &long.characters[other]) || !seen.insert((one, other)) {
                continue;
            }
            if short.last.contains(&one) {
                let mut going_on = long.next[other].iter().map(|&next| &long.characters[next]);
                let begins = |wanted| {
                    let mut begins = after.iter().map(|terminal| &automata[terminal]);
                    begins
                        .any(|next| next.first.iter().any(|&first| overlap(&next.characters[first], wanted)))
                };
                if going_on.any(begins) {
                    return Ok(true);
                }
            }
            open.extend(
                short.next[one]
                    .iter()
                    .flat_map(|&one| long.next[other].iter().map(move |&other| (one, other))),
            );
        }
        Ok(false)
    }
}

impl Split {
    fn terminal(&mut self, node: Node) -> Part {
        let next = self.terminals.len();
        let number = *self.numbers.entry(node.clone()).or_insert(next);
        if number == next {
            self.terminals.push(node);
        }
        Part::Terminal(number)
    }
}

/// One character, whatever it is: it can't be taken apart, and is never too long.
fn is_character(node: &Node) -> bool {
    match node {
        Node::Class(..) | Node::AnyCharacter => true,
        Node::Literal(text) => text.chars().nth(1).is_none(),
        _ => false,
    }
}

fn rules_of(part: &Part) -> Vec<usize> {
    match part {
        Part::Terminal(_) => Vec::new(),
        Part::Rule(rule) => vec![*rule],
        Part::Sequence(parts) | Part::Alternatives(parts) => parts.iter().flat_map(rules_of).collect(),
        Part::Repeat(part, ..) => rules_of(part),
    }
}
