//! Which terminals may come after which.

use super::split::{Part, Split};
use std::collections::BTreeMap;

/// A set of small numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Numbers(Vec<u64>);

impl Numbers {
    fn insert(&mut self, number: usize) {
        let word = number / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    /// True if that added any.
    fn extend(&mut self, other: &Self) -> bool {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut is_changed = false;
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            is_changed |= *other & !*word != 0;
            *word |= other;
        }
        is_changed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len() * 64).filter(|number| self.0[number / 64] >> (number % 64) & 1 == 1)
    }
}

/// What a part may begin with, and whether it may be nothing.
#[derive(Debug, Clone, Default)]
struct Begin {
    terminals: Numbers,
    is_nullable: bool,
}

/// First and follow sets (Aho, Lam, Sethi, Ullman: Compilers, 4.4.2), by iteration until nothing changes.
pub(super) struct FollowSets<'s> {
    nullable_terminals: &'s [bool],
    begins: BTreeMap<usize, Begin>,
    after_rules: BTreeMap<usize, Numbers>,
    after_terminals: Vec<Numbers>,
}

impl<'s> FollowSets<'s> {
    pub(super) fn of(split: &Split, nullable_terminals: &'s [bool]) -> Self {
        let mut sets = Self {
            nullable_terminals,
            begins: split.rules.keys().map(|&rule| (rule, Begin::default())).collect(),
            after_rules: split.rules.keys().map(|&rule| (rule, Numbers::default())).collect(),
            after_terminals: vec![Numbers::default(); split.terminals.len()],
        };
        while split.rules.iter().fold(false, |changed, (rule, body)| sets.begin_rule(*rule, body) || changed)
        {
        }
        while split.rules.iter().fold(false, |changed, (rule, body)| {
            let after = sets.after_rules[rule].clone();
            sets.follow(body, &after) || changed
        }) {}
        sets
    }

    /// Terminals that may come after a terminal.
    pub(super) fn after(&self, terminal: usize) -> &Numbers {
        &self.after_terminals[terminal]
    }

    fn begin_rule(&mut self, rule: usize, body: &Part) -> bool {
        let begin = self.begin(body);
        let known = self.begins.entry(rule).or_default();
        let is_new = begin.is_nullable && !known.is_nullable;
        known.is_nullable |= begin.is_nullable;
        known.terminals.extend(&begin.terminals) || is_new
    }

    fn begin(&self, part: &Part) -> Begin {
        match part {
            Part::Terminal(terminal) => {
                let mut begin = Begin { is_nullable: self.nullable_terminals[*terminal], ..Begin::default() };
                begin.terminals.insert(*terminal);
                begin
            }
            Part::Rule(rule) => self.begins[rule].clone(),
            Part::Sequence(parts) => {
                let mut whole = Begin { is_nullable: true, ..Begin::default() };
                for part in parts {
                    let begin = self.begin(part);
                    whole.terminals.extend(&begin.terminals);
                    whole.is_nullable = begin.is_nullable;
                    if !begin.is_nullable {
                        break;
                    }
                }
                whole
            }
            Part::Alternatives(parts) => {
                let mut whole = Begin::default();
                for part in parts {
                    let begin = self.begin(part);
                    whole.terminals.extend(&begin.terminals);
                    whole.is_nullable |= begin.is_nullable;
                }
                whole
            }
            Part::Repeat(part, least, _) => {
                let begin = self.begin(part);
                Begin { is_nullable: begin.is_nullable || *least == 0, ..begin }
            }
        }
    }

    /// Takes note that `after` may come after `part`.
    fn follow(&mut self, part: &Part, after: &Numbers) -> bool {
        match part {
            Part::Terminal(terminal) => self.after_terminals[*terminal].extend(after),
            Part::Rule(rule) => self.after_rules.entry(*rule).or_default().extend(after),
            Part::Sequence(parts) => {
                let mut after = after.clone();
                let mut is_changed = false;
                for part in parts.iter().rev() {
                    is_changed |= self.follow(part, &after);
                    let begin = self.begin(part);
                    if !begin.is_nullable {
                        after = Numbers::default();
                    }
                    after.extend(&begin.terminals);
                }
                is_changed
            }
            Part::Alternatives(parts) => {
                let mut is_changed = false;
                parts.iter().for_each(|part| is_changed |= self.follow(part, after));
                is_changed
            }
            Part::Repeat(part, _, most) => {
                let mut after = after.clone();
                if *most != Some(1) {
                    after.extend(&self.begin(part).terminals);
                }
                self.follow(part, &after)
            }
        }
    }
}
