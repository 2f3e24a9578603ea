//! Reads a blob: the frame first, then each section once its checksum held.

use std::io::{ErrorKind, Read, Seek, SeekFrom};

use blake3::Hasher;
use serde_json::{Map, Value};

use super::contents::{Contents, Page, StateAt};
use super::layout::{
    ENTRY_BYTES, Entry, HEADER_BYTES, Header, MAX_SECTIONS, TRAILER_BYTES, Trailer, aligned,
};
use super::profile::Profile;
use super::section::Section;
use super::{BlobError, SectionName, metadata};

/// Bytes hashed at a time where a section is not kept.
const CHUNK: usize = 1 << 16;

/// A blob whose frame is sound: header, table and trailer are as written, sections lie as they have to, and
/// no gap hides anything. No model is involved.
#[derive(Debug)]
pub(crate) struct Container<R> {
    input: R,
    bytes: u64,
    header: Header,
    entries: Vec<Entry>,
    contents: Contents,
}

impl<R: Read + Seek> Container<R> {
    /// Opens a blob of at most `limit` bytes; memory is taken for the table only, once its size is known to
    /// fit.
    pub(crate) fn open(mut input: R, limit: u64) -> Result<Self, BlobError> {
        let bytes = input.seek(SeekFrom::End(0)).map_err(BlobError::Io)?;
        Profile::check_limit(SectionName::Header, bytes, limit)?;
        let frame = (HEADER_BYTES + TRAILER_BYTES) as u64;
        let mut header_bytes = [0; HEADER_BYTES];
        read_at(&mut input, 0, &mut header_bytes, bytes)?;
        let header = Header::decode(&header_bytes)?;
        if bytes < frame {
            return Err(BlobError::Truncated { bytes });
        }
        let mut end = [0; TRAILER_BYTES];
        read_at(&mut input, bytes - TRAILER_BYTES as u64, &mut end, bytes)?;
        let trailer = Trailer::decode(&end).ok_or(BlobError::Truncated { bytes })?;
        let table = read_table(&mut input, trailer, bytes)?;
        if trailer.encode(&header_bytes, &table) != end {
            return Err(BlobError::Checksum { section: SectionName::Table });
        }
        let entries: Vec<Entry> = table.as_chunks().0.iter().map(Entry::decode).collect();
        let contents = check_sections(&mut input, &entries, trailer.table_offset, bytes)?;
        Ok(Self { input, bytes, header, entries, contents })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Reads and verifies the token ids.
    pub(crate) fn read_tokens(&mut self) -> Result<Vec<u32>, BlobError> {
        let mut bytes = Vec::new();
        let (_, place) = self.contents.tokens.expect("a container without tokens is not opened");
        self.read_section(place, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).collect())
    }

    /// Reads a section of a length that was found acceptable into `buffer`, and verifies it.
    fn read_section(&mut self, place: usize, buffer: &mut Vec<u8>) -> Result<(), BlobError> {
        let entry = self.entries[place];
        let section = Section::of(&entry).name();
        let too_large = || BlobError::TooLarge { section, found: entry.length, limit: usize::MAX as u64 };
        buffer.resize(usize::try_from(entry.length).map_err(|_| too_large())?, 0);
        let read = read_at(&mut self.input, entry.offset, buffer, self.bytes);
        let sound = read.and_then(|()| verify(Hasher::new().update(buffer), &entry));
        // What did not hold must not be taken for a section.
        sound.inspect_err(|_| buffer.clear())
    }

    /// Verifies every section without keeping any.
    fn verify(&mut self) -> Result<(), BlobError> {
        let mut chunk = vec![0; CHUNK];
        for entry in &self.entries {
            let (mut hasher, mut done) = (Hasher::new(), 0);
            while done < entry.length {
                let part = &mut chunk[..(entry.length - done).min(CHUNK as u64) as usize];
                read_at(&mut self.input, entry.offset + done, part, self.bytes)?;
                hasher.update(part);
                done += part.len() as u64;
            }
            verify(&hasher, entry)?;
        }
        Ok(())
    }
}

fn verify(hasher: &Hasher, entry: &Entry) -> Result<(), BlobError> {
    let matches = hasher.finalize() == entry.checksum;
    if matches { Ok(()) } else { Err(BlobError::Checksum { section: Section::of(entry).name() }) }
}

/// Fills `buffer` from `offset`; `bytes` is the length that the input had.
fn read_at(
    input: &mut (impl Read + Seek),
    offset: u64,
    buffer: &mut [u8],
    bytes: u64,
) -> Result<(), BlobError> {
    let read = input.seek(SeekFrom::Start(offset)).and_then(|_| input.read_exact(buffer));
    read.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => BlobError::Truncated { bytes },
        _ => BlobError::Io(error),
    })
}

fn read_table(input: &mut (impl Read + Seek), trailer: Trailer, bytes: u64) -> Result<Vec<u8>, BlobError> {
    let Trailer { table_offset, total_bytes, sections } = trailer;
    if total_bytes != bytes {
        return Err(BlobError::Truncated { bytes });
    }
    Profile::check_limit(SectionName::Table, sections.into(), MAX_SECTIONS)?;
    let length = sections as usize * ENTRY_BYTES;
    let end = table_offset.checked_add((length + TRAILER_BYTES) as u64);
    if end != Some(bytes) || aligned(table_offset) != Some(table_offset) || table_offset < HEADER_BYTES as u64
    {
        return Err(BlobError::Layout {
            section: SectionName::Table,
            reason: "it is not where it has to be",
        });
    }
    let mut table = vec![0; length];
    read_at(input, table_offset, &mut table, bytes)?;
    Ok(table)
}

/// Checks that sections fill the bytes between header and table, with nothing but zeros in between.
fn check_sections(
    input: &mut (impl Read + Seek),
    entries: &[Entry],
    table_offset: u64,
    bytes: u64,
) -> Result<Contents, BlobError> {
    let (mut contents, mut next) = (Contents::default(), HEADER_BYTES as u64);
    for entry in entries {
        let section = Section::of(entry);
        let malformed = |reason| BlobError::Layout { section: section.name(), reason };
        if section.fields() != (entry.kind, entry.detail, entry.first, entry.count) {
            return Err(malformed("fields that the kind doesn't have are not zero"));
        }
        let end = entry.offset.checked_add(entry.length).filter(|&end| end <= table_offset);
        let (true, Some(end)) = (entry.offset == next, end) else {
            return Err(malformed("it is not where it has to be"));
        };
        next = aligned(end).expect("the table lies behind, at an aligned offset");
        let mut gap = [0; 64];
        let gap = &mut gap[..(next - end) as usize];
        if !gap.is_empty() {
            read_at(input, end, gap, bytes)?;
        }
        if gap.iter().any(|&byte| byte != 0) {
            return Err(malformed("the bytes behind it are not zero"));
        }
        contents.push(section, entry.length)?;
    }
    if next != table_offset {
        return Err(BlobError::Layout {
            section: SectionName::Table,
            reason: "it is not where it has to be",
        });
    }
    if contents.tokens.is_none() {
        return Err(BlobError::Layout { section: SectionName::Tokens, reason: "missing" });
    }
    Ok(contents)
}

/// Reads a blob that fits the loaded model. For bytes in memory, wrap them in [`std::io::Cursor`].
#[derive(Debug)]
pub struct BlobReader<R> {
    container: Container<R>,
    tokens: Vec<u32>,
    metadata: Map<String, Value>,
}

impl<R: Read + Seek> BlobReader<R> {
    /// Checks frame, identity and sizes, and reads tokens and metadata. Pages and states are left where they
    /// are.
    pub fn open(input: R, profile: &Profile) -> Result<Self, BlobError> {
        let mut container = open_for(input, profile)?;
        let (found, expected) = (container.header.numerics, profile.numerics);
        if found != expected {
            return Err(BlobError::OtherNumerics { found, expected });
        }
        check_sizes(&container.entries, profile)?;
        let tokens = take_tokens(&mut container, profile)?;
        let metadata = match container.contents.metadata {
            None => Map::new(),
            Some(place) => {
                let mut bytes = Vec::new();
                container.read_section(place, &mut bytes)?;
                metadata::decode(&bytes)?
            }
        };
        Ok(Self { container, tokens, metadata })
    }

    /// What the blob says of itself.
    pub fn header(&self) -> &Header {
        &self.container.header
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.container.bytes
    }

    /// All token ids; those behind the last page have no state yet.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The metadata, empty if there is none.
    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// The pages in order.
    pub fn pages(&self) -> Vec<Page> {
        self.container.contents.pages.iter().map(|&(page, _)| page).collect()
    }

    /// Reads a page by its number into `buffer`, which then has exactly the bytes of a page of its precision.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read_page(&mut self, number: usize, buffer: &mut Vec<u8>) -> Result<(), BlobError> {
        let (_, place) = self.container.contents.pages[number];
        self.container.read_section(place, buffer)
    }

    /// The state of recurrent layers with which the sequence goes on.
    pub fn state(&self) -> Option<StateAt> {
        self.container.contents.state.map(|(state, _)| state)
    }

    /// Reads the bytes of [`Self::state`] into `buffer`; without a state it is left empty.
    pub fn read_state(&mut self, buffer: &mut Vec<u8>) -> Result<(), BlobError> {
        buffer.clear();
        match self.container.contents.state {
            Some((_, place)) => self.container.read_section(place, buffer),
            None => Ok(()),
        }
    }

    /// Earlier states of recurrent layers, by position.
    pub fn checkpoints(&self) -> Vec<StateAt> {
        self.container.contents.checkpoints.iter().map(|&(state, _)| state).collect()
    }

    /// Reads the bytes of a checkpoint by its place among [`Self::checkpoints`].
    ///
    /// # Panics
    /// If there is no such checkpoint.
    pub fn read_checkpoint(&mut self, index: usize, buffer: &mut Vec<u8>) -> Result<(), BlobError> {
        let (_, place) = self.container.contents.checkpoints[index];
        self.container.read_section(place, buffer)
    }

    /// Reads everything and checks it, also what this version would skip.
    pub fn verify(&mut self) -> Result<(), BlobError> {
        self.container.verify()
    }
}

/// Reads only the tokens, which are good for the same model whatever its numerics.
pub fn read_tokens(input: impl Read + Seek, profile: &Profile) -> Result<Vec<u32>, BlobError> {
    take_tokens(&mut open_for(input, profile)?, profile)
}

fn open_for<R: Read + Seek>(input: R, profile: &Profile) -> Result<Container<R>, BlobError> {
    let container = Container::open(input, profile.max_bytes)?;
    let (found, expected) = (container.header.model, profile.model);
    if found != expected {
        return Err(BlobError::OtherModel { found, expected });
    }
    Profile::check_limit(SectionName::Tokens, container.contents.token_count(), profile.max_tokens)?;
    Ok(container)
}

fn take_tokens(
    container: &mut Container<impl Read + Seek>,
    profile: &Profile,
) -> Result<Vec<u32>, BlobError> {
    let tokens = container.read_tokens()?;
    profile.check_tokens(&tokens)?;
    Ok(tokens)
}

fn check_sizes(entries: &[Entry], profile: &Profile) -> Result<(), BlobError> {
    for entry in entries {
        let section = Section::of(entry);
        let (sizes, format) = match section {
            Section::Page { precision, .. } => (&profile.page_bytes, precision),
            Section::State { format, .. } | Section::Checkpoint { format, .. } => {
                (&profile.state_bytes, format)
            }
            _ => continue,
        };
        Profile::check_size(sizes, section.name(), format, entry.length)?;
    }
    Ok(())
}
