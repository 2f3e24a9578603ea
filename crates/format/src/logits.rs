//! Saved logits: what one build, precision or process predicted for a text, for comparison with another.
//!
//! All numbers are little-endian. Header, 48 bytes: the magic `LICHENLG`, version (u32), kind of numbers (u32: 1 for f16,
//! 2 for f32), vocabulary (u32), tokens of a chunk (u32), hash of all tokens (u64, FNV-1a), rows (u64), and 8 bytes of
//! zeros. Then the rows: each logit less the largest of its row, so that few bits are precise where it matters.

use half::f16;
use std::io::{self, Read, Write};

const MAGIC: [u8; 8] = *b"LICHENLG";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 48;
/// Larger vocabularies than any that there is.
const MOST_VOCABULARY: u32 = 1 << 24;

/// How saved logits are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitNumber {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl LogitNumber {
    fn bytes(self) -> u64 {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// What saved logits belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogitsHeader {
    /// How they are stored.
    pub number: LogitNumber,
    /// Logits of a row.
    pub vocabulary: u32,
    /// Tokens of a chunk, each of which was predicted from nothing.
    pub chunk: u32,
    /// [`tokens_hash`] of the tokens of all chunks.
    pub tokens_hash: u64,
    /// Rows.
    pub rows: u64,
}

/// Why saved logits can't be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogitsError {
    /// Reading or writing failed.
    #[error("the logits can't be read or written: {0}")]
    Io(#[from] io::Error),
    /// Not such a file.
    #[error("these are no saved logits; make them with lichen perplexity --save-logits")]
    Magic,
    /// Another version of the format.
    #[error("the logits are saved in version {0} and this program reads version {VERSION}; save them again")]
    Version(u32),
    /// A field of the header is out of range.
    #[error("the saved logits are damaged: {field} is {value}; save them again")]
    Field {
        /// Its name.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The file is not as long as its header says.
    #[error("the saved logits have {got} bytes and should have {needed}; they were cut off, save them again")]
    Length {
        /// Bytes that there are.
        got: u64,
        /// Bytes of header and rows.
        needed: u128,
    },
    /// A row holds a number that no logit has.
    #[error("row {0} of the saved logits holds a number that isn't finite; save them again")]
    NotFinite(u64),
    /// A row of another length, or more or fewer rows than announced.
    #[error("{got} logits or rows were given where {needed} were announced")]
    Count {
        /// Given.
        got: u64,
        /// Announced.
        needed: u64,
    },
    /// Made from something else.
    #[error(
        "the saved logits are of another {what} ({saved}, here {here}); save them again with the same {what}"
    )]
    Mismatch {
        /// What differs.
        what: &'static str,
        /// In the file.
        saved: u64,
        /// Here.
        here: u64,
    },
}

impl LogitsHeader {
    /// Checks that saved logits are about the same tokens as these would be.
    ///
    /// # Errors
    /// [`LogitsError::Mismatch`] names what differs.
    pub fn same_text(&self, here: &Self) -> Result<(), LogitsError> {
        let pairs = [
            ("vocabulary", u64::from(self.vocabulary), u64::from(here.vocabulary)),
            ("--ctx", u64::from(self.chunk), u64::from(here.chunk)),
            ("number of chunks", self.rows, here.rows),
            ("text or tokenizer", self.tokens_hash, here.tokens_hash),
        ];
        match pairs.into_iter().find(|(_, saved, here)| saved != here) {
            Some((what, saved, here)) => Err(LogitsError::Mismatch { what, saved, here }),
            None => Ok(()),
        }
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES as usize] {
        let number: u32 = if self.number == LogitNumber::F16 { 1 } else { 2 };
        let mut bytes = [0; HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        for (at, field) in [(8, VERSION), (12, number), (16, self.vocabulary), (20, self.chunk)] {
            bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&self.tokens_hash.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.rows.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES as usize]) -> Result<Self, LogitsError> {
        let u32_at = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("48 bytes were read"));
        let u64_at = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("48 bytes were read"));
        if bytes[..8] != MAGIC {
            return Err(LogitsError::Magic);
        }
        if u32_at(8) != VERSION {
            return Err(LogitsError::Version(u32_at(8)));
        }
        let number = match u32_at(12) {
            1 => LogitNumber::F16,
            2 => LogitNumber::F32,
            other => return Err(LogitsError::Field { field: "kind of numbers", value: u64::from(other) }),
        };
        let (vocabulary, chunk) = (u32_at(16), u32_at(20));
        if !(1..=MOST_VOCABULARY).contains(&vocabulary) {
            return Err(LogitsError::Field { field: "vocabulary", value: u64::from(vocabulary) });
        }
        if u64_at(40) != 0 {
            return Err(LogitsError::Field { field: "the reserved field", value: u64_at(40) });
        }
        Ok(Self { number, vocabulary, chunk, tokens_hash: u64_at(24), rows: u64_at(32) })
    }
}

/// A hash of tokens: FNV-1a of their bytes.
pub fn tokens_hash(tokens: impl IntoIterator<Item = u32>) -> u64 {
    let bytes = tokens.into_iter().flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Writes logits.
pub struct LogitsWriter<W> {
    out: W,
    header: LogitsHeader,
    written: u64,
    bytes: Vec<u8>,
}

impl<W: Write> LogitsWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// If writing fails.
    pub fn new(mut out: W, header: LogitsHeader) -> Result<Self, LogitsError> {
        out.write_all(&header.to_bytes())?;
        Ok(Self { out, header, written: 0, bytes: Vec::new() })
    }

    /// Writes the logits of one token.
    ///
    /// # Errors
    /// If writing fails, the row isn't as long as the vocabulary, or there are more rows than announced.
    pub fn row(&mut self, logits: &[f32]) -> Result<(), LogitsError> {
        let (got, needed) = (logits.len() as u64, u64::from(self.header.vocabulary));
        if got != needed {
            return Err(LogitsError::Count { got, needed });
        }
        self.written += 1;
        if self.written > self.header.rows {
            return Err(LogitsError::Count { got: self.written, needed: self.header.rows });
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // What is impossible is as unlikely as can be said.
        let lowest = f32::from(f16::MIN);
        let stored = logits.iter().map(|logit| (logit - largest).max(lowest));
        self.bytes.clear();
        match self.header.number {
            LogitNumber::F16 => {
                self.bytes.extend(stored.flat_map(|logit| f16::from_f32(logit).to_le_bytes()));
            }
            LogitNumber::F32 => self.bytes.extend(stored.flat_map(f32::to_le_bytes)),
        }
        Ok(self.out.write_all(&self.bytes)?)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If writing fails or rows are missing.
    pub fn finish(mut self) -> Result<W, LogitsError> {
        if self.written != self.header.rows {
            return Err(LogitsError::Count { got: self.written, needed: self.header.rows });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Reads saved logits row by row.
pub struct LogitsReader<R> {
    input: R,
    header: LogitsHeader,
    read: u64,
    bytes: Vec<u8>,
}

impl<R: Read> LogitsReader<R> {
    /// Reads the header of a file of so many bytes. Nothing is allocated before the length has been compared.
    ///
    /// # Errors
    /// The header is damaged, or the length isn't what it says.
    pub fn new(mut input: R, length: u64) -> Result<Self, LogitsError> {
        let mut header = [0; HEADER_BYTES as usize];
        if length < HEADER_BYTES {
            return Err(LogitsError::Length { got: length, needed: u128::from(HEADER_BYTES) });
        }
        input.read_exact(&mut header)?;
        let header = LogitsHeader::from_bytes(&header)?;
        let row = u128::from(header.vocabulary) * u128::from(header.number.bytes());
        let needed = u128::from(HEADER_BYTES) + u128::from(header.rows) * row;
        if u128::from(length) != needed {
            return Err(LogitsError::Length { got: length, needed });
        }
        // A file without rows needs no room for one.
        let bytes = if header.rows == 0 { Vec::new() } else { vec![0; row as usize] };
        Ok(Self { input, header, read: 0, bytes })
    }

    /// What they belong to.
    pub fn header(&self) -> &LogitsHeader {
        &self.header
    }

    /// The logits of the next token, less the largest of them; `None` after the last.
    ///
    /// # Errors
    /// If reading fails or a number isn't finite.
    pub fn row(&mut self) -> Result<Option<Vec<f32>>, LogitsError> {
        if self.read == self.header.rows {
            return Ok(None);
        }
        self.input.read_exact(&mut self.bytes)?;
        let row: Vec<f32> = match self.header.number {
            LogitNumber::F16 => {
                let halves = self.bytes.as_chunks::<2>().0.iter();
                halves.map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect()
            }
            LogitNumber::F32 => {
                self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
        };
        if !row.iter().all(|logit| logit.is_finite()) {
            return Err(LogitsError::NotFinite(self.read));
        }
        self.read += 1;
        Ok(Some(row))
    }
}
