//! Which characters a regular part may consist of, one after the other.

use super::parser::Node;

/// Most positions of one part. A larger one is not looked at.
const MOST_POSITIONS: usize = 2_000;
/// Most steps from position to position.
const MOST_STEPS: usize = 100_000;
/// Deepest nesting of rules.
const MOST_DEPTH: usize = 100;

/// Ranges of characters, or all others.
pub(super) type Characters = (Vec<(char, char)>, bool);

/// The automaton of Glushkov (1961): a state for each place of a character in the part. Counted repetitions
/// count as any number, so it accepts the part's texts and perhaps more.
#[derive(Debug, Default)]
pub(super) struct Automaton {
    pub(super) characters: Vec<Characters>,
    pub(super) first: Vec<usize>,
    pub(super) last: Vec<usize>,
    pub(super) next: Vec<Vec<usize>>,
    pub(super) is_nullable: bool,
    steps: usize,
}

/// Where a part of the automaton begins and ends.
#[derive(Default)]
struct Fragment {
    first: Vec<usize>,
    last: Vec<usize>,
    is_nullable: bool,
}

impl Automaton {
    /// `None` if it would be too large.
    pub(super) fn of(node: &Node, rules: &[Node]) -> Option<Self> {
        let mut automaton = Self::default();
        let fragment = automaton.add(node, rules, 0)?;
        Some(Self {
            first: fragment.first,
            last: fragment.last,
            is_nullable: fragment.is_nullable,
            ..automaton
        })
    }

    fn add(&mut self, node: &Node, rules: &[Node], depth: usize) -> Option<Fragment> {
        if depth > MOST_DEPTH {
            return None;
        }
        match node {
            Node::Literal(text) => {
                let mut whole = Fragment { is_nullable: true, ..Fragment::default() };
                for character in text.chars() {
                    let position = self.position((vec![(character, character)], false))?;
                    self.append(&mut whole, position)?;
                }
                Some(whole)
            }
            Node::Class(ranges, negated) => self.position((ranges.clone(), *negated)),
            Node::AnyCharacter => self.position((Vec::new(), true)),
            Node::Rule(rule) => self.add(&rules[*rule], rules, depth + 1),
            Node::Sequence(parts) => {
                let mut whole = Fragment { is_nullable: true, ..Fragment::default() };
                for part in parts {
                    let part = self.add(part, rules, depth + 1)?;
                    self.append(&mut whole, part)?;
                }
                Some(whole)
            }
            Node::Alternatives(parts) => {
                let mut whole = Fragment::default();
                for part in parts {
                    let part = self.add(part, rules, depth + 1)?;
                    whole.first.extend(part.first);
                    whole.last.extend(part.last);
                    whole.is_nullable |= part.is_nullable;
                }
                Some(whole)
            }
            Node::Repeat(_, _, Some(0)) => Some(Fragment { is_nullable: true, ..Fragment::default() }),
            Node::Repeat(part, least, most) => {
                let part = self.add(part, rules, depth + 1)?;
                if *most != Some(1) {
                    self.connect(&part.last, &part.first)?;
                }
                Some(Fragment { is_nullable: part.is_nullable || *least == 0, ..part })
            }
        }
    }

    fn position(&mut self, characters: Characters) -> Option<Fragment> {
        let position = self.characters.len();
        self.characters.push(characters);
        self.next.push(Vec::new());
        let fragment = Fragment { first: vec![position], last: vec![position], is_nullable: false };
        (position < MOST_POSITIONS).then_some(fragment)
    }

    fn append(&mut self, whole: &mut Fragment, part: Fragment) -> Option<()> {
        self.connect(&whole.last, &part.first)?;
        if whole.is_nullable {
            whole.first.extend(&part.first);
        }
        if part.is_nullable {
            whole.last.extend(part.last);
        } else {
            whole.last = part.last;
        }
        whole.is_nullable &= part.is_nullable;
        Some(())
    }

    fn connect(&mut self, from: &[usize], to: &[usize]) -> Option<()> {
        self.steps += from.len() * to.len();
        if self.steps > MOST_STEPS {
            return None;
        }
        from.iter().for_each(|&from| self.next[from].extend(to));
        Some(())
    }
}

/// Whether some character is in both.
pub(super) fn overlap(one: &Characters, other: &Characters) -> bool {
    match (one.1, other.1) {
        // Nobody lists all characters.
        (true, true) => true,
        (false, false) => one.0.iter().any(|a| other.0.iter().any(|b| a.0 <= b.1 && b.0 <= a.1)),
        (false, true) => one.0.iter().any(|range| !covers(&other.0, *range)),
        (true, false) => overlap(other, one),
    }
}

/// Whether one of `ranges` has all of `range`; that several together may do so only makes the answer less
/// sure.
fn covers(ranges: &[(char, char)], range: (char, char)) -> bool {
    ranges.iter().any(|covering| covering.0 <= range.0 && range.1 <= covering.1)
}
