//! Kinds of section, and how they stand in the table.

use super::SectionName;
use super::layout::Entry;

const TOKENS: u32 = 1;
const PAGE: u32 = 2;
const STATE: u32 = 3;
const CHECKPOINT: u32 = 4;
/// May be skipped: all it could lose is a name or a setting.
const METADATA: u32 = ANCILLARY | 1;
/// Set in kinds that a reader may skip.
const ANCILLARY: u32 = 1 << 31;

/// What a section is, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Tokens { count: u64 },
    Page { precision: u32, number: u64, tokens: u64 },
    State { format: u32, position: u64 },
    Checkpoint { format: u32, position: u64 },
    Metadata,
    Unknown { kind: u32 },
}

impl Section {
    /// Kind, detail, first and count as in the table.
    pub(super) fn fields(self) -> (u32, u32, u64, u64) {
        match self {
            Self::Tokens { count } => (TOKENS, 0, 0, count),
            Self::Page { precision, number, tokens } => (PAGE, precision, number, tokens),
            Self::State { format, position } => (STATE, format, position, 0),
            Self::Checkpoint { format, position } => (CHECKPOINT, format, position, 0),
            Self::Metadata => (METADATA, 0, 0, 0),
            Self::Unknown { kind } => (kind, 0, 0, 0),
        }
    }

    pub(super) fn of(entry: &Entry) -> Self {
        let &Entry { kind, detail, first, count, .. } = entry;
        match kind {
            TOKENS => Self::Tokens { count },
            PAGE => Self::Page { precision: detail, number: first, tokens: count },
            STATE => Self::State { format: detail, position: first },
            CHECKPOINT => Self::Checkpoint { format: detail, position: first },
            METADATA => Self::Metadata,
            kind => Self::Unknown { kind },
        }
    }

    pub(super) fn name(self) -> SectionName {
        match self {
            Self::Tokens { .. } => SectionName::Tokens,
            Self::Page { number, .. } => SectionName::Page(number),
            Self::State { .. } => SectionName::State,
            Self::Checkpoint { position, .. } => SectionName::Checkpoint(position),
            Self::Metadata => SectionName::Metadata,
            Self::Unknown { kind } => SectionName::Unknown(kind),
        }
    }

    pub(super) fn may_be_skipped(self) -> bool {
        self.fields().0 & ANCILLARY != 0
    }
}
