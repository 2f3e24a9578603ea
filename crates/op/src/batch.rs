//! What one run of a plan works on: rows of several sequences, one after another.

use thiserror::Error;

/// Consecutive rows of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which sequence: the caller's number for its KV.
    pub sequence: u64,
    /// First row in the batch.
    pub first: usize,
    /// Rows in the batch.
    pub len: usize,
    /// Tokens of the sequence whose KV exists already; anything stored beyond is dropped.
    pub past: usize,
}

/// A ragged batch: prompts and single decoding steps mixed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, one per row.
    pub tokens: Vec<u32>,
    /// Position for the rotary embedding, one per row.
    pub positions: Vec<u32>,
    /// Which rows belong to which sequence; they cover all rows in order.
    pub sequences: Vec<Span>,
    /// Rows whose logits are wanted.
    pub outputs: Vec<usize>,
}

/// Why a batch cannot be run.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// Lengths disagree.
    #[error("batch has {tokens} tokens but {positions} positions; give one position per token")]
    Positions {
        /// Number of tokens.
        tokens: usize,
        /// Number of positions.
        positions: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} in row {row} is outside the vocabulary of {vocab}")]
    Token {
        /// The row.
        row: usize,
        /// The id.
        token: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// Spans that leave a gap, overlap or run past the end.
    #[error(
        "sequence {sequence} should start at row {expected} and end within the {rows} rows; spans must cover rows in order"
    )]
    Spans {
        /// The sequence at fault, or the last one.
        sequence: u64,
        /// Where it should have started.
        expected: usize,
        /// Rows in the batch.
        rows: usize,
    },
    /// Two spans of one sequence.
    #[error("sequence {0} occurs twice in one batch; merge its spans")]
    Repeated(u64),
    /// An output row that does not exist.
    #[error("output row {row} does not exist; the batch has {rows} rows")]
    Output {
        /// The row asked for.
        row: usize,
        /// Rows in the batch.
        rows: usize,
    },
}

impl Batch {
    /// Makes it empty, and keeps its space for the next step.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.outputs.clear();
    }

    /// Appends the next tokens of a sequence with `past` tokens behind it; positions continue from `past`.
    /// Logits are wanted for the last row, or for all.
    pub fn push(&mut self, sequence: u64, past: usize, tokens: &[u32], all_outputs: bool) {
        let first = self.tokens.len();
        let len = tokens.len();
        self.tokens.extend_from_slice(tokens);
        let position = |i| u32::try_from(past.saturating_add(i)).unwrap_or(u32::MAX);
        self.positions.extend((0..len).map(position));
        self.sequences.push(Span { sequence, first, len, past });
        let from = if all_outputs { first } else { (first + len).saturating_sub(1) };
        self.outputs.extend(from..first + len);
    }

    /// Checks that rows, spans, tokens and outputs fit together.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn validate(&self, vocab: usize) -> Result<(), BatchError> {
        let rows = self.tokens.len();
        if self.positions.len() != rows {
            return Err(BatchError::Positions { tokens: rows, positions: self.positions.len() });
        }
        if let Some((row, &token)) =
            self.tokens.iter().enumerate().find(|&(_, &token)| token as usize >= vocab)
        {
            return Err(BatchError::Token { row, token, vocab });
        }
        let mut expected = 0;
        for (index, span) in self.sequences.iter().enumerate() {
            if span.first != expected || span.len > rows - expected {
                return Err(BatchError::Spans { sequence: span.sequence, expected, rows });
            }
            // Batches have few sequences, and this is done in every step.
            if self.sequences[..index].iter().any(|earlier| earlier.sequence == span.sequence) {
                return Err(BatchError::Repeated(span.sequence));
            }
            expected += span.len;
        }
        if expected != rows {
            let sequence = self.sequences.last().map_or(0, |span| span.sequence);
            return Err(BatchError::Spans { sequence, expected, rows });
        }
        match self.outputs.iter().find(|&&row| row >= rows) {
            Some(&row) => Err(BatchError::Output { row, rows }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_must_cover_the_rows() {
        let mut batch = Batch::default();
        batch.push(1, 0, &[3, 4], false);
        batch.push(2, 5, &[1], false);
        assert_eq!(batch.positions, [0, 1, 5]);
        assert_eq!(batch.outputs, [1, 2]);
        assert_eq!(batch.validate(5), Ok(()));
        assert_eq!(batch.validate(4), Err(BatchError::Token { row: 1, token: 4, vocab: 4 }));
        batch.sequences[1].sequence = 1;
        assert_eq!(batch.validate(5), Err(BatchError::Repeated(1)));
        batch.sequences.pop();
        assert_eq!(batch.validate(5), Err(BatchError::Spans { sequence: 1, expected: 2, rows: 3 }));
    }
}
