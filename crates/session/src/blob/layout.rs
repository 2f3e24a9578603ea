//! Header, table entries and trailer as bytes.

use blake3::Hasher;

use super::BlobError;
use super::SectionName;
use crate::{ModelTag, NumericsTag};

/// Version of blobs that are written: major, minor.
pub const FORMAT_VERSION: (u16, u16) = (1, 0);

/// As PNG's: the first byte is no ASCII, and line ends show damage by transfers in text mode.
const MAGIC: [u8; 8] = *b"\x89LCHN\r\n\x1a";
const END_MARK: [u8; 8] = *b"LCHN.end";

pub(super) const HEADER_BYTES: usize = 128;
pub(super) const ENTRY_BYTES: usize = 72;
pub(super) const TRAILER_BYTES: usize = 64;
/// Sections begin at multiples of this, as cache lines do.
const ALIGNMENT: u64 = 64;

/// Enough for four million tokens in pages of 64.
pub(super) const MAX_SECTIONS: u64 = 1 << 16;

/// What a blob says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The model whose state it is.
    pub model: ModelTag,
    /// How the state was computed.
    pub numerics: NumericsTag,
    /// An id chosen by the writer.
    pub id: [u8; 32],
    /// When it was written, in milliseconds since 1970.
    pub created_unix_ms: u64,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(super) kind: u32,
    /// Page precision or state format, else 0.
    pub(super) detail: u32,
    /// Number of the page or position of the state, else 0.
    pub(super) first: u64,
    /// Tokens, else 0.
    pub(super) count: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) checksum: [u8; 32],
}

/// The end of a blob without checksum and end mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) table_offset: u64,
    pub(super) total_bytes: u64,
    pub(super) sections: u32,
}

/// Reads fields one after another from bytes whose length is known to suffice.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_first_chunk().expect("records are as long as their fields");
        self.0 = rest;
        *bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}

/// Puts `parts` together; they have `N` bytes.
fn join<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    parts.concat().try_into().expect("the parts have the length of the record")
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let (major, minor) = FORMAT_VERSION;
        join(&[
            &MAGIC,
            &major.to_le_bytes(),
            &minor.to_le_bytes(),
            &[0; 12],
            &self.created_unix_ms.to_le_bytes(),
            self.model.as_bytes(),
            self.numerics.as_bytes(),
            &self.id,
        ])
    }

    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BlobError> {
        let mut fields = Fields(bytes);
        if fields.bytes() != MAGIC {
            return Err(BlobError::NotABlob);
        }
        let major = u16::from_le_bytes(fields.bytes());
        if major != FORMAT_VERSION.0 {
            return Err(BlobError::Version { major, supported: FORMAT_VERSION.0 });
        }
        let _minor: [u8; 2] = fields.bytes();
        if fields.bytes() != [0; 12] {
            let reason = "bytes that are reserved are not zero";
            return Err(BlobError::Layout { section: SectionName::Header, reason });
        }
        Ok(Self {
            created_unix_ms: fields.u64(),
            model: ModelTag::from_bytes(fields.bytes()),
            numerics: NumericsTag::from_bytes(fields.bytes()),
            id: fields.bytes(),
        })
    }
}

impl Entry {
    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        join(&[
            &self.kind.to_le_bytes(),
            &self.detail.to_le_bytes(),
            &self.first.to_le_bytes(),
            &self.count.to_le_bytes(),
            &self.offset.to_le_bytes(),
            &self.length.to_le_bytes(),
            &self.checksum,
        ])
    }

    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            kind: fields.u32(),
            detail: fields.u32(),
            first: fields.u64(),
            count: fields.u64(),
            offset: fields.u64(),
            length: fields.u64(),
            checksum: fields.bytes(),
        }
    }
}

impl Trailer {
    fn fields(&self) -> [u8; 24] {
        let sections = self.sections.to_le_bytes();
        join(&[&self.table_offset.to_le_bytes(), &self.total_bytes.to_le_bytes(), &sections, &[0; 4]])
    }

    /// The trailer of a blob with this header and table.
    pub(super) fn encode(&self, header: &[u8; HEADER_BYTES], table: &[u8]) -> [u8; TRAILER_BYTES] {
        let fields = self.fields();
        join(&[&fields, &checksum(header, table, &fields), &END_MARK])
    }

    /// Takes the places from a trailer if it ends as one does; nothing is verified yet.
    pub(super) fn decode(bytes: &[u8; TRAILER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (table_offset, total_bytes, sections) = (fields.u64(), fields.u64(), fields.u32());
        bytes.ends_with(&END_MARK).then_some(Self { table_offset, total_bytes, sections })
    }
}

fn checksum(header: &[u8; HEADER_BYTES], table: &[u8], trailer: &[u8; 24]) -> [u8; 32] {
    let mut hasher = Hasher::new();
    hasher.update(header).update(table).update(trailer);
    hasher.finalize().into()
}

/// The next place where a section or the table may begin.
pub(super) fn aligned(offset: u64) -> Option<u64> {
    offset.checked_next_multiple_of(ALIGNMENT)
}

/// Exact length in bytes of a blob whose sections have these lengths; `u64::MAX` if there is none.
pub fn encoded_bytes(sections: impl IntoIterator<Item = u64>) -> u64 {
    let sum = |total: u64, length: u64| aligned(length)?.checked_add(total)?.checked_add(ENTRY_BYTES as u64);
    let ends = (HEADER_BYTES + TRAILER_BYTES) as u64;
    sections.into_iter().try_fold(ends, sum).unwrap_or(u64::MAX)
}
