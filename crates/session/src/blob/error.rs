//! What can be wrong with a blob.

use std::fmt;
use std::io;

use crate::{ModelTag, NumericsTag};

/// A part of a blob, as errors name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SectionName {
    /// Magic, version and tags.
    Header,
    /// The table of sections and the trailer behind it.
    Table,
    /// Token ids.
    Tokens,
    /// The KV page with this number.
    Page(u64),
    /// The state of recurrent layers at the end.
    State,
    /// The state of recurrent layers at this token.
    Checkpoint(u64),
    /// The JSON map.
    Metadata,
    /// A section of a kind that this version doesn't know.
    Unknown(u32),
}

impl fmt::Display for SectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Table => f.write_str("table"),
            Self::Tokens => f.write_str("tokens"),
            Self::Page(number) => write!(f, "page {number}"),
            Self::State => f.write_str("state"),
            Self::Checkpoint(position) => write!(f, "checkpoint at token {position}"),
            Self::Metadata => f.write_str("metadata"),
            Self::Unknown(kind) => write!(f, "section of kind {kind:#x}"),
        }
    }
}

/// Why a blob can't be read or written. Nothing of the receiver's state has changed when one is returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// The bytes could not be read or written.
    #[error("session blob: {0}")]
    Io(#[source] io::Error),
    /// The first bytes are not those of a blob.
    #[error("not a session blob: it doesn't start like one")]
    NotABlob,
    /// Written by a version that this one can't read.
    #[error("session blob of format version {major}: this program reads {supported}: save it again with it")]
    Version {
        /// Major version of the blob.
        major: u16,
        /// Major version that is read.
        supported: u16,
    },
    /// Made by another model, or by the same in another quantisation.
    #[error("session blob of model {found}, not of {expected}: load the model that it was saved with")]
    OtherModel {
        /// The blob's model.
        found: ModelTag,
        /// The loaded model.
        expected: ModelTag,
    },
    /// Made by the same model with other kernels or page formats; the tokens are still good.
    #[error("session blob with numerics {found}, not {expected}: only its tokens can be used")]
    OtherNumerics {
        /// The blob's numerics.
        found: NumericsTag,
        /// The numerics in use.
        expected: NumericsTag,
    },
    /// The blob does not end as blobs do.
    #[error("session blob cut off: {bytes} bytes are left and don't end as a blob does")]
    Truncated {
        /// Bytes that are there.
        bytes: u64,
    },
    /// Bytes are not those that were written.
    #[error("session blob damaged: the checksum of the {section} does not match")]
    Checksum {
        /// The part concerned.
        section: SectionName,
    },
    /// The parts don't lie where they have to, or what has to be zero is not.
    #[error("session blob malformed: {section}: {reason}")]
    Layout {
        /// The part concerned.
        section: SectionName,
        /// What is wrong.
        reason: &'static str,
    },
    /// More than is accepted.
    #[error("session blob: {section} of {found}, where at most {limit} are accepted")]
    TooLarge {
        /// The part concerned.
        section: SectionName,
        /// Bytes, tokens or sections found.
        found: u64,
        /// Most that is accepted.
        limit: u64,
    },
    /// Sizes don't fit the loaded model.
    #[error("session blob does not fit the model: {section} has {found} bytes, not {expected}")]
    Geometry {
        /// The part concerned.
        section: SectionName,
        /// Bytes found.
        found: u64,
        /// Bytes that the model's layout needs.
        expected: u64,
    },
    /// A page precision or state format that the loaded model doesn't have.
    #[error(
        "session blob does not fit the model: {section} has format {format}, which the model doesn't have"
    )]
    Format {
        /// The part concerned.
        section: SectionName,
        /// The number of the format.
        format: u32,
    },
    /// A token id beyond the vocabulary.
    #[error("session blob: token {token} at place {index} is not in the vocabulary of {vocabulary}")]
    Token {
        /// Place of the token.
        index: u64,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// A section that must not be skipped is unknown.
    #[error(
        "session blob holds a {section} that must not be skipped: it needs a newer version of this program"
    )]
    UnknownSection {
        /// The section.
        section: SectionName,
    },
    /// The metadata is no small JSON map.
    #[error("session blob: metadata: {reason}")]
    Metadata {
        /// What is wrong.
        reason: String,
    },
}

impl BlobError {
    /// The reason as one word for programs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::NotABlob => "not_a_blob",
            Self::Version { .. } => "version",
            Self::OtherModel { .. } => "other_model",
            Self::OtherNumerics { .. } => "other_numerics",
            Self::Truncated { .. } => "truncated",
            Self::Checksum { .. } => "checksum",
            Self::Layout { .. } => "layout",
            Self::TooLarge { .. } => "too_large",
            Self::Geometry { .. } => "geometry",
            Self::Format { .. } => "format",
            Self::Token { .. } => "token",
            Self::UnknownSection { .. } => "unknown_section",
            Self::Metadata { .. } => "metadata",
        }
    }

    /// The part of the blob concerned.
    pub fn section(&self) -> Option<SectionName> {
        match self {
            Self::Io(_) | Self::Truncated { .. } => None,
            Self::NotABlob | Self::Version { .. } => Some(SectionName::Header),
            Self::OtherModel { .. } | Self::OtherNumerics { .. } => Some(SectionName::Header),
            Self::Checksum { section }
            | Self::Layout { section, .. }
            | Self::TooLarge { section, .. }
            | Self::Geometry { section, .. }
            | Self::Format { section, .. }
            | Self::UnknownSection { section } => Some(*section),
            Self::Token { .. } => Some(SectionName::Tokens),
            Self::Metadata { .. } => Some(SectionName::Metadata),
        }
    }

    /// Whether no reader will ever take these bytes, whatever model it has loaded.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::NotABlob
                | Self::Truncated { .. }
                | Self::Checksum { .. }
                | Self::Layout { .. }
                | Self::Metadata { .. }
        )
    }
}
