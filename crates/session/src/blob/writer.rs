//! Writes a blob in one pass.

use std::io::Write;

use blake3::Hasher;
use serde_json::{Map, Value};

use super::contents::{Contents, Page, StateAt};
use super::layout::{ENTRY_BYTES, Entry, HEADER_BYTES, Header, Trailer, aligned};
use super::profile::Profile;
use super::section::Section;
use super::{BlobError, SectionName, encoded_bytes, metadata};

/// Tokens encoded at a time.
const TOKENS_AT_ONCE: usize = 4096;

/// Writes a blob to anything that takes bytes; payloads go straight through. Sections come in the order of
/// the calls, tokens first. After an error, what was written is no blob.
#[derive(Debug)]
pub struct BlobWriter<'p, W> {
    output: W,
    profile: &'p Profile,
    header: [u8; HEADER_BYTES],
    contents: Contents,
    table: Vec<u8>,
    /// Bytes written so far.
    at: u64,
    /// Exact length if no section were added.
    total: u64,
}

impl<'p, W: Write> BlobWriter<'p, W> {
    /// Begins a blob of the model of `profile` with an `id` of the caller's choice.
    pub fn new(
        mut output: W,
        profile: &'p Profile,
        id: [u8; 32],
        created_unix_ms: u64,
    ) -> Result<Self, BlobError> {
        let Profile { model, numerics, .. } = *profile;
        let header = Header { model, numerics, id, created_unix_ms }.encode();
        output.write_all(&header).map_err(BlobError::Io)?;
        let (at, total) = (HEADER_BYTES as u64, encoded_bytes([]));
        Ok(Self { output, profile, header, contents: Contents::default(), table: Vec::new(), at, total })
    }

    /// Writes all token ids of the sequence, those without pages too.
    pub fn tokens(&mut self, tokens: &[u32]) -> Result<(), BlobError> {
        let count = tokens.len() as u64;
        Profile::check_limit(SectionName::Tokens, count, self.profile.max_tokens)?;
        self.profile.check_tokens(tokens)?;
        let length = count.saturating_mul(4);
        let pieces = tokens.chunks(TOKENS_AT_ONCE);
        let pieces =
            pieces.map(|tokens| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>());
        self.section(Section::Tokens { count }, length, pieces)
    }

    /// Writes the next page; `payload` has the bytes of a full page, also if the page is partial.
    pub fn page(&mut self, page: Page, payload: &[u8]) -> Result<(), BlobError> {
        let Page { precision, tokens } = page;
        let section = Section::Page { precision, number: self.contents.pages.len() as u64, tokens };
        let length = payload.len() as u64;
        Profile::check_size(&self.profile.page_bytes, section.name(), precision, length)?;
        self.section(section, length, [payload])
    }

    /// Writes the state of recurrent layers with which the sequence goes on.
    pub fn state(&mut self, at: StateAt, payload: &[u8]) -> Result<(), BlobError> {
        let StateAt { format, position } = at;
        self.recurrent(Section::State { format, position }, format, payload)
    }

    /// Writes an earlier state of recurrent layers, to which a shorter prefix can go back. Positions ascend.
    pub fn checkpoint(&mut self, at: StateAt, payload: &[u8]) -> Result<(), BlobError> {
        let StateAt { format, position } = at;
        self.recurrent(Section::Checkpoint { format, position }, format, payload)
    }

    /// Writes the metadata, at most 64 KiB as JSON and 8 levels deep.
    pub fn metadata(&mut self, map: &Map<String, Value>) -> Result<(), BlobError> {
        let payload = metadata::encode(map)?;
        self.section(Section::Metadata, payload.len() as u64, [payload])
    }

    /// Ends the blob and returns its length in bytes. The output is flushed.
    pub fn finish(mut self) -> Result<u64, BlobError> {
        if self.contents.tokens.is_none() {
            return Err(BlobError::Layout { section: SectionName::Tokens, reason: "missing" });
        }
        self.pad()?;
        let sections = (self.table.len() / ENTRY_BYTES) as u32;
        let trailer = Trailer { table_offset: self.at, total_bytes: self.total, sections };
        let trailer = trailer.encode(&self.header, &self.table);
        let table = std::mem::take(&mut self.table);
        self.write(&table)?;
        self.write(&trailer)?;
        self.output.flush().map_err(BlobError::Io)?;
        Ok(self.at)
    }

    fn recurrent(&mut self, section: Section, format: u32, payload: &[u8]) -> Result<(), BlobError> {
        let length = payload.len() as u64;
        Profile::check_size(&self.profile.state_bytes, section.name(), format, length)?;
        self.section(section, length, [payload])
    }

    /// Writes a section whose `pieces` have `length` bytes together.
    fn section<B: AsRef<[u8]>>(
        &mut self,
        section: Section,
        length: u64,
        pieces: impl IntoIterator<Item = B>,
    ) -> Result<(), BlobError> {
        let added = encoded_bytes([length]).saturating_sub(encoded_bytes([]));
        let total = self.total.saturating_add(added);
        Profile::check_limit(section.name(), total, self.profile.max_bytes)?;
        self.contents.push(section, length)?;
        self.pad()?;
        let (offset, mut hasher) = (self.at, Hasher::new());
        for piece in pieces {
            hasher.update(piece.as_ref());
            self.write(piece.as_ref())?;
        }
        let ((kind, detail, first, count), checksum) = (section.fields(), hasher.finalize().into());
        self.table.extend(Entry { kind, detail, first, count, offset, length, checksum }.encode());
        self.total = total;
        Ok(())
    }

    fn pad(&mut self) -> Result<(), BlobError> {
        let next = aligned(self.at).expect("the length is below the limit of the profile");
        self.write(&[0; 64][..(next - self.at) as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.output.write_all(bytes).map_err(BlobError::Io)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
