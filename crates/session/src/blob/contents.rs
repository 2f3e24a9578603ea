//! The sections of a blob in order, with the rules that hold between them. Reader and writer both go through
//! here, so nothing is written that would not be read.

use super::layout::MAX_SECTIONS;
use super::metadata::MAX_METADATA;
use super::profile::{PAGE_TOKENS, Profile};
use super::section::Section;
use super::{BlobError, SectionName};

/// Most tokens of a blob, whatever the model.
const MAX_TOKENS: u64 = 1 << 24;
/// Most checkpoints of a blob.
const MAX_CHECKPOINTS: u64 = 64;

/// A page of KV, all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Number of its precision.
    pub precision: u32,
    /// Tokens in use, 1 to [`PAGE_TOKENS`]; only the last page may be partial. Its bytes are those of a full
    /// page.
    pub tokens: u64,
}

/// The state of all recurrent layers after `position` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateAt {
    /// Number of its format.
    pub format: u32,
    /// Tokens that it has seen.
    pub position: u64,
}

/// A section that may be there once, and its place in the table.
type Placed<T> = (T, usize);

/// What has been put in so far.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    sections: usize,
    pub(super) tokens: Option<Placed<u64>>,
    pub(super) pages: Vec<Placed<Page>>,
    pub(super) state: Option<Placed<StateAt>>,
    pub(super) checkpoints: Vec<Placed<StateAt>>,
    pub(super) metadata: Option<usize>,
}

impl Contents {
    /// Tokens that the pages cover: all pages but the last are full.
    pub(crate) fn page_tokens(&self) -> u64 {
        let full = (self.pages.len() as u64).saturating_sub(1) * PAGE_TOKENS;
        self.pages.last().map_or(0, |(last, _)| full + last.tokens)
    }

    pub(super) fn token_count(&self) -> u64 {
        self.tokens.map_or(0, |(count, _)| count)
    }

    /// Positions at which there is a state of recurrent layers.
    pub(crate) fn state_positions(&self) -> impl Iterator<Item = u64> {
        self.checkpoints.iter().chain(&self.state).map(|(state, _)| state.position)
    }

    /// Puts in the next section, of `length` bytes.
    pub(super) fn push(&mut self, section: Section, length: u64) -> Result<(), BlobError> {
        let place = self.sections;
        Profile::check_limit(SectionName::Table, place as u64 + 1, MAX_SECTIONS)?;
        self.check(section, length)?;
        match section {
            Section::Tokens { count } => self.tokens = Some((count, place)),
            Section::Page { precision, tokens, .. } => self.pages.push((Page { precision, tokens }, place)),
            Section::State { format, position } => self.state = Some((StateAt { format, position }, place)),
            Section::Checkpoint { format, position } => {
                self.checkpoints.push((StateAt { format, position }, place));
            }
            Section::Metadata => self.metadata = Some(place),
            Section::Unknown { .. } => {}
        }
        self.sections += 1;
        Ok(())
    }

    fn check(&self, section: Section, length: u64) -> Result<(), BlobError> {
        let name = section.name();
        let rule = |holds: bool, reason| match holds {
            true => Ok(()),
            false => Err(BlobError::Layout { section: name, reason }),
        };
        let is_tokens = matches!(section, Section::Tokens { .. });
        rule(is_tokens == self.tokens.is_none(), "tokens have to come first, and once")?;
        match section {
            Section::Tokens { count } => {
                Profile::check_limit(name, count, MAX_TOKENS)?;
                rule(length == count * 4, "the length does not fit the count")
            }
            Section::Page { number, tokens, .. } => {
                let before = self.page_tokens();
                rule(number == self.pages.len() as u64, "pages have to follow each other")?;
                rule((1..=PAGE_TOKENS).contains(&tokens), "a page has 1 to 64 tokens")?;
                rule(before.is_multiple_of(PAGE_TOKENS), "only the last page may be partial")?;
                rule(before + tokens <= self.token_count(), "more tokens in pages than there are")
            }
            Section::State { position, .. } => {
                rule(self.state.is_none(), "there twice")?;
                rule(position <= self.token_count(), "a position beyond the tokens")
            }
            Section::Checkpoint { position, .. } => {
                let last = self.checkpoints.last();
                Profile::check_limit(name, self.checkpoints.len() as u64 + 1, MAX_CHECKPOINTS)?;
                rule(last.is_none_or(|(last, _)| last.position < position), "checkpoints have to ascend")?;
                rule(position <= self.token_count(), "a position beyond the tokens")
            }
            Section::Metadata => {
                Profile::check_limit(name, length, MAX_METADATA)?;
                rule(self.metadata.is_none(), "there twice")
            }
            Section::Unknown { .. } if section.may_be_skipped() => Ok(()),
            Section::Unknown { .. } => Err(BlobError::UnknownSection { section: name }),
        }
    }
}
