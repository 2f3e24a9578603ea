//! Orders the pieces of an answer into blocks of which one is open at a time.
//!
//! Parsers may cross the arguments of parallel calls. Clients of the dialects with blocks may give a fragment
//! to the block that was opened last, so a piece that would interrupt an unfinished call is held back until
//! the end.

use std::collections::HashMap;

use serde_json::Value;

use crate::{Call, Piece, Reply, TokenLogprob};

/// A contiguous part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    /// Thinking.
    Thinking(String),
    /// Text with the log-probabilities of its tokens.
    Text {
        /// The text.
        text: String,
        /// One entry a token, if they were asked for.
        logprobs: Vec<TokenLogprob>,
    },
    /// A tool call.
    Call(Call),
}

/// What happens to the block at an index; indices count up from 0.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// The block begins, empty.
    Open(usize, Block),
    /// The block grows by this piece, which is of its kind.
    More(usize, Piece),
    /// The block is complete.
    Close(usize, Block),
}

/// The blocks of one answer as it is streamed.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    opened: usize,
    open: Option<Open>,
    held: Vec<Piece>,
    /// Log-probabilities of tokens without text so far, for the next text.
    early: Vec<TokenLogprob>,
}

#[derive(Debug)]
struct Open {
    index: usize,
    key: Key,
    block: Block,
}

/// Tells which pieces belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Thinking,
    Text,
    Call(usize),
}

impl Key {
    fn of(piece: &Piece) -> Self {
        match piece {
            Piece::Reasoning(_) => Self::Thinking,
            Piece::Text { .. } => Self::Text,
            Piece::ToolStart { index, .. } | Piece::ToolArguments { index, .. } => Self::Call(*index),
        }
    }
}

impl Blocks {
    /// Takes the next piece.
    pub(crate) fn push(&mut self, piece: Piece) -> Vec<Step> {
        let Some(piece) = self.without_emptiness(piece) else { return Vec::new() };
        let foreign = self.open.as_ref().is_some_and(|open| open.key != Key::of(&piece));
        if foreign && (!self.held.is_empty() || self.call_is_unfinished()) {
            self.held.push(piece);
            return Vec::new();
        }
        self.place(piece)
    }

    /// Ends the answer: places what was held back, block by block, and closes the last block.
    pub(crate) fn finish(&mut self) -> Vec<Step> {
        let mut held = std::mem::take(&mut self.held);
        let mut ranks = HashMap::new();
        for piece in &held {
            let rank = ranks.len();
            ranks.entry(Key::of(piece)).or_insert(rank);
        }
        held.sort_by_key(|piece| ranks[&Key::of(piece)]);
        let mut steps: Vec<Step> = held.into_iter().flat_map(|piece| self.place(piece)).collect();
        steps.extend(self.close());
        steps
    }

    /// `None` for a piece that adds nothing yet, so that no block opens for it.
    fn without_emptiness(&mut self, piece: Piece) -> Option<Piece> {
        match piece {
            Piece::Reasoning(text) if text.is_empty() => None,
            Piece::ToolArguments { fragment, .. } if fragment.is_empty() => None,
            Piece::Text { text, logprobs } => {
                self.early.extend(logprobs);
                let logprobs = if text.is_empty() { Vec::new() } else { std::mem::take(&mut self.early) };
                (!text.is_empty()).then_some(Piece::Text { text, logprobs })
            }
            other => Some(other),
        }
    }

    /// Whether the open block is a call whose arguments aren't a whole JSON object yet.
    fn call_is_unfinished(&self) -> bool {
        match &self.open {
            Some(Open { block: Block::Call(call), .. }) => {
                !serde_json::from_str::<Value>(&call.arguments).is_ok_and(|arguments| arguments.is_object())
            }
            _ => false,
        }
    }

    fn place(&mut self, piece: Piece) -> Vec<Step> {
        let key = Key::of(&piece);
        let mut steps = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.key != key) {
            let Some(block) = empty_block(&piece) else { return steps };
            steps.extend(self.close());
            steps.push(Step::Open(self.opened, block.clone()));
            self.open = Some(Open { index: self.opened, key, block });
            self.opened += 1;
        }
        if let Some(open) = &mut self.open
            && append(&mut open.block, &piece)
        {
            steps.push(Step::More(open.index, piece));
        }
        steps
    }

    fn close(&mut self) -> Option<Step> {
        self.open.take().map(|open| Step::Close(open.index, open.block))
    }
}

/// The block that a piece opens; arguments of a call that is not open open none.
fn empty_block(piece: &Piece) -> Option<Block> {
    match piece {
        Piece::Reasoning(_) => Some(Block::Thinking(String::new())),
        Piece::Text { .. } => Some(Block::Text { text: String::new(), logprobs: Vec::new() }),
        Piece::ToolStart { id, name, .. } => {
            Some(Block::Call(Call { id: id.clone(), name: name.clone(), arguments: String::new() }))
        }
        Piece::ToolArguments { .. } => None,
    }
}

/// Adds a piece to its block; false if there is nothing to add.
fn append(block: &mut Block, piece: &Piece) -> bool {
    match (block, piece) {
        (Block::Thinking(all), Piece::Reasoning(more)) => all.push_str(more),
        (Block::Text { text, logprobs }, Piece::Text { text: more, logprobs: entries }) => {
            text.push_str(more);
            logprobs.extend_from_slice(entries);
        }
        (Block::Call(call), Piece::ToolArguments { fragment, .. }) => call.arguments.push_str(fragment),
        _ => return false,
    }
    true
}

/// The blocks of an answer that is not streamed: thinking, text, calls.
pub(crate) fn blocks_of(reply: &Reply) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !reply.reasoning.is_empty() {
        blocks.push(Block::Thinking(reply.reasoning.clone()));
    }
    if !reply.text.is_empty() {
        blocks.push(Block::Text { text: reply.text.clone(), logprobs: reply.logprobs.clone() });
    }
    blocks.extend(reply.calls.iter().cloned().map(Block::Call));
    blocks
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn text(text: &str) -> Piece {
        Piece::Text { text: text.into(), logprobs: Vec::new() }
    }

    pub(crate) fn start(index: usize) -> Piece {
        Piece::ToolStart { index, id: format!("call_{index}"), name: format!("tool{index}") }
    }

    pub(crate) fn arguments(index: usize, fragment: &str) -> Piece {
        Piece::ToolArguments { index, fragment: fragment.into() }
    }

    /// Thinking, text and two calls, each in fragments, in any order in which parsers could give them.
    pub(crate) fn any_order() -> impl Strategy<Value = Vec<Piece>> {
        let sources = [
            vec![Piece::Reasoning("why ".into()), Piece::Reasoning("not".into())],
            vec![text("so "), text(""), text("be it")],
            vec![start(0), arguments(0, "{\"a\": \"}"), arguments(0, "\"}")],
            vec![start(1), arguments(1, ""), arguments(1, "{}")],
        ];
        let turns: Vec<usize> =
            sources.iter().enumerate().flat_map(|(at, source)| vec![at; source.len()]).collect();
        Just(turns).prop_shuffle().prop_map(move |turns| {
            let mut sources: Vec<_> = sources.iter().map(|source| source.clone().into_iter()).collect();
            // Calls are numbered in the order in which they begin.
            let swapped = turns.iter().position(|&at| at == 3) < turns.iter().position(|&at| at == 2);
            let pick = |at: usize| if swapped && at >= 2 { 5 - at } else { at };
            turns.into_iter().filter_map(|at| sources[pick(at)].next()).collect()
        })
    }

    fn steps(pieces: Vec<Piece>) -> Vec<Step> {
        let mut blocks = Blocks::default();
        let mut steps: Vec<Step> = pieces.into_iter().flat_map(|piece| blocks.push(piece)).collect();
        steps.extend(blocks.finish());
        steps
    }

    fn closed(steps: &[Step]) -> Vec<Block> {
        steps
            .iter()
            .filter_map(|step| if let Step::Close(_, block) = step { Some(block.clone()) } else { None })
            .collect()
    }

    proptest! {
        #[test]
        fn one_block_is_open_at_a_time_and_nothing_is_lost(pieces in any_order()) {
            let mut reply = Reply::default();
            pieces.iter().cloned().for_each(|piece| reply.push(piece));
            let steps = steps(pieces);
            let (mut open, mut next) = (None, 0);
            for step in &steps {
                match step {
                    Step::Open(index, _) => {
                        prop_assert_eq!((open, *index), (None, next));
                        (open, next) = (Some(*index), next + 1);
                    }
                    Step::More(index, _) => prop_assert_eq!(open, Some(*index)),
                    Step::Close(index, _) => prop_assert_eq!(open.take(), Some(*index)),
                }
            }
            let mut streamed = Reply::default();
            for block in closed(&steps) {
                match block {
                    Block::Thinking(text) => streamed.reasoning.push_str(&text),
                    Block::Text { text, .. } => streamed.text.push_str(&text),
                    Block::Call(call) => streamed.calls.push(call),
                }
            }
            prop_assert_eq!(streamed, reply);
        }
    }

    #[test]
    fn a_call_that_follows_a_whole_one_is_streamed_at_once() {
        let mut blocks = Blocks::default();
        for piece in [start(0), arguments(0, "{\"a\":"), arguments(0, "1}")] {
            blocks.push(piece);
        }
        assert_eq!(blocks.push(start(1)).len(), 2);
        assert_eq!(blocks.push(arguments(1, "{")), [Step::More(1, arguments(1, "{"))]);
    }

    #[test]
    fn log_probabilities_of_a_token_without_text_come_with_the_next_text() {
        let logprob =
            |token: &str| TokenLogprob { token: token.into(), bytes: vec![], logprob: -1.0, top: vec![] };
        let piece = |text: &str, token| Piece::Text { text: text.into(), logprobs: vec![logprob(token)] };
        let steps = steps(vec![piece("", "a"), piece("é", "b")]);
        assert_eq!(
            closed(&steps),
            [Block::Text { text: "é".into(), logprobs: vec![logprob("a"), logprob("b")] }]
        );
    }

    #[test]
    fn arguments_of_a_call_that_never_began_are_dropped() {
        assert_eq!(steps(vec![arguments(7, "{}")]), []);
    }
}
