//! A small model, a conversation of it, and an encoder of the format that shares nothing with the crate's.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Cursor, Read, Seek, Write};

use lichen_session::{
    BlobError, BlobReader, BlobWriter, ModelTag, NumericsTag, Page, Profile, StateAt, encoded_bytes,
};
use serde_json::{Map, Value, json};

pub(crate) const ID: [u8; 32] = [3; 32];
pub(crate) const CREATED: u64 = 1_700_000_000_000;
/// Precisions of pages.
pub(crate) const WIDE: u32 = 0;
pub(crate) const NARROW: u32 = 7;

/// Sizes that are no multiples of 64, so that there are gaps to look into.
pub(crate) fn profile() -> Profile {
    Profile {
        model: ModelTag::from_bytes([1; 32]),
        numerics: NumericsTag::from_bytes([2; 32]),
        vocabulary: 1000,
        max_tokens: 4096,
        max_bytes: 1 << 23,
        page_bytes: [(WIDE, 100), (NARROW, 40)].into(),
        state_bytes: [(1, 24)].into(),
    }
}

/// What a blob holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Conversation {
    pub(crate) tokens: Vec<u32>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) pages: Vec<(Page, Vec<u8>)>,
    pub(crate) checkpoints: Vec<(StateAt, Vec<u8>)>,
    pub(crate) state: Option<(StateAt, Vec<u8>)>,
}

/// Two full pages of different precision, two tokens on a third, and a recurrent state.
pub(crate) fn conversation() -> Conversation {
    let page = |precision, tokens, byte: u8, bytes: usize| (Page { precision, tokens }, vec![byte; bytes]);
    let Value::Object(metadata) = json!({"title": "golden"}) else { unreachable!("it is a map") };
    Conversation {
        tokens: (0..130).map(|index| index * 7 % 1000).collect(),
        metadata,
        pages: vec![page(WIDE, 64, 10, 100), page(NARROW, 64, 11, 40), page(WIDE, 2, 12, 100)],
        checkpoints: vec![(StateAt { format: 1, position: 64 }, vec![20; 24])],
        state: Some((StateAt { format: 1, position: 130 }, vec![21; 24])),
    }
}

/// A conversation with plain pages for all its tokens, whose bytes depend on `seed`.
pub(crate) fn plain(tokens: Vec<u32>, seed: u8) -> Conversation {
    let page = |tokens: &[u32]| (Page { precision: WIDE, tokens: tokens.len() as u64 }, vec![seed; 100]);
    Conversation { pages: tokens.chunks(64).map(page).collect(), tokens, ..Conversation::default() }
}

impl Conversation {
    pub(crate) fn write<W: Write>(&self, writer: &mut BlobWriter<'_, W>) -> Result<(), BlobError> {
        writer.tokens(&self.tokens)?;
        if !self.metadata.is_empty() {
            writer.metadata(&self.metadata)?;
        }
        self.pages.iter().try_for_each(|(page, bytes)| writer.page(*page, bytes))?;
        self.checkpoints.iter().try_for_each(|(at, bytes)| writer.checkpoint(*at, bytes))?;
        self.state.iter().try_for_each(|(at, bytes)| writer.state(*at, bytes))
    }

    /// Reads all that there is.
    pub(crate) fn read<R: Read + Seek>(reader: &mut BlobReader<R>) -> Result<Self, BlobError> {
        let mut read =
            Self { tokens: reader.tokens().to_vec(), metadata: reader.metadata().clone(), ..Self::default() };
        for (number, page) in reader.pages().into_iter().enumerate() {
            let mut bytes = Vec::new();
            reader.read_page(number, &mut bytes)?;
            read.pages.push((page, bytes));
        }
        for (index, at) in reader.checkpoints().into_iter().enumerate() {
            let mut bytes = Vec::new();
            reader.read_checkpoint(index, &mut bytes)?;
            read.checkpoints.push((at, bytes));
        }
        if let Some(at) = reader.state() {
            let mut bytes = Vec::new();
            reader.read_state(&mut bytes)?;
            read.state = Some((at, bytes));
        }
        Ok(read)
    }

    pub(crate) fn to_blob(&self) -> Result<Vec<u8>, BlobError> {
        let (mut bytes, profile) = (Vec::new(), profile());
        let mut writer = BlobWriter::new(&mut bytes, &profile, ID, CREATED)?;
        self.write(&mut writer)?;
        let length = writer.finish()?;
        assert_eq!((length, length), (bytes.len() as u64, self.bytes()));
        Ok(bytes)
    }

    /// Length of the blob, without writing it.
    pub(crate) fn bytes(&self) -> u64 {
        let metadata = Value::Object(self.metadata.clone()).to_string().len() as u64;
        let states = self.checkpoints.iter().chain(&self.state).map(|(_, bytes)| bytes.len() as u64);
        let pages = self.pages.iter().map(|(_, bytes)| bytes.len() as u64);
        let metadata = (!self.metadata.is_empty()).then_some(metadata);
        let tokens = self.tokens.len() as u64 * 4;
        encoded_bytes([tokens].into_iter().chain(metadata).chain(pages).chain(states))
    }

    pub(crate) fn from_blob(bytes: &[u8]) -> Result<Self, BlobError> {
        Self::from_blob_for(bytes, &profile())
    }

    pub(crate) fn from_blob_for(bytes: &[u8], profile: &Profile) -> Result<Self, BlobError> {
        let mut reader = BlobReader::open(Cursor::new(bytes), profile)?;
        let read = Self::read(&mut reader)?;
        reader.verify()?;
        Ok(read)
    }
}

/// A section as the table has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawSection {
    pub(crate) kind: u32,
    pub(crate) detail: u32,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) payload: Vec<u8>,
}

/// A blob of any sections, right or wrong, with right checksums.
#[derive(Debug, Clone, Default)]
pub(crate) struct RawBlob {
    pub(crate) major: u16,
    pub(crate) minor: u16,
    pub(crate) reserved: [u8; 12],
    /// Filled in between the sections.
    pub(crate) gap: u8,
    /// Empty space before each section.
    pub(crate) spread: usize,
    pub(crate) sections: Vec<RawSection>,
}

pub(crate) const TOKENS: u32 = 1;
pub(crate) const PAGE: u32 = 2;
pub(crate) const STATE: u32 = 3;
pub(crate) const CHECKPOINT: u32 = 4;
pub(crate) const METADATA: u32 = 0x8000_0001;

impl RawBlob {
    /// [`conversation`] as sections.
    pub(crate) fn conversation() -> Self {
        let all = conversation();
        let tokens = all.tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let metadata = Value::Object(all.metadata).to_string().into_bytes();
        let mut sections = vec![
            RawSection {
                kind: TOKENS,
                count: all.tokens.len() as u64,
                payload: tokens,
                ..RawSection::default()
            },
            RawSection { kind: METADATA, payload: metadata, ..RawSection::default() },
        ];
        for (number, (page, payload)) in all.pages.into_iter().enumerate() {
            let Page { precision: detail, tokens: count } = page;
            sections.push(RawSection { kind: PAGE, detail, first: number as u64, count, payload });
        }
        let states = all.checkpoints.into_iter().map(|state| (CHECKPOINT, state));
        for (kind, (at, payload)) in states.chain(all.state.map(|state| (STATE, state))) {
            sections.push(RawSection { kind, detail: at.format, first: at.position, count: 0, payload });
        }
        Self { major: 1, sections, ..Self::default() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        self.encode_with(|_| {})
    }

    /// Encodes with changes to the table, before its checksum is taken.
    pub(crate) fn encode_with(&self, edit_table: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let profile = profile();
        let mut bytes = b"\x89LCHN\r\n\x1a".to_vec();
        bytes.extend(self.major.to_le_bytes());
        bytes.extend(self.minor.to_le_bytes());
        bytes.extend(self.reserved);
        bytes.extend(CREATED.to_le_bytes());
        bytes.extend(profile.model.as_bytes());
        bytes.extend(profile.numerics.as_bytes());
        bytes.extend(ID);
        let (header, mut table) = (bytes.clone(), Vec::new());
        for section in &self.sections {
            bytes.resize(bytes.len() + self.spread, self.gap);
            table.extend(section.kind.to_le_bytes());
            table.extend(section.detail.to_le_bytes());
            let places = [section.first, section.count, bytes.len() as u64, section.payload.len() as u64];
            table.extend(places.iter().flat_map(|number| number.to_le_bytes()));
            table.extend(blake3::hash(&section.payload).as_bytes());
            bytes.extend(&section.payload);
            bytes.resize(bytes.len().next_multiple_of(64), self.gap);
        }
        edit_table(&mut table);
        let total = bytes.len() + table.len() + 64;
        let mut trailer = Vec::new();
        trailer.extend((bytes.len() as u64).to_le_bytes());
        trailer.extend((total as u64).to_le_bytes());
        trailer.extend((self.sections.len() as u64).to_le_bytes());
        bytes.extend(&table);
        bytes.extend(&trailer);
        bytes.extend(blake3::hash(&[header, table, trailer].concat()).as_bytes());
        bytes.extend(b"LCHN.end");
        bytes
    }
}
