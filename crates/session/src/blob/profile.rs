//! What a blob has to agree with.

use std::collections::BTreeMap;

use super::{BlobError, SectionName};
use crate::{ModelTag, NumericsTag};

/// Tokens of a KV page.
pub const PAGE_TOKENS: u64 = 64;

/// The loaded model as far as blobs are concerned. Sizes come from here, never from a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Which model.
    pub model: ModelTag,
    /// How states are computed and laid out.
    pub numerics: NumericsTag,
    /// Number of token ids; all ids are below.
    pub vocabulary: u32,
    /// Most tokens of a sequence.
    pub max_tokens: u64,
    /// Largest blob, in bytes.
    pub max_bytes: u64,
    /// Bytes of a page of [`PAGE_TOKENS`] tokens of all layers, by the number of its precision.
    pub page_bytes: BTreeMap<u32, u64>,
    /// Bytes of the state of all recurrent layers, by the number of its format; empty without such layers.
    pub state_bytes: BTreeMap<u32, u64>,
}

impl Profile {
    /// Checks the length of a page or a state against the `sizes` that the model has.
    pub(super) fn check_size(
        sizes: &BTreeMap<u32, u64>,
        section: SectionName,
        format: u32,
        found: u64,
    ) -> Result<(), BlobError> {
        match sizes.get(&format) {
            None => Err(BlobError::Format { section, format }),
            Some(&expected) if expected != found => Err(BlobError::Geometry { section, found, expected }),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), BlobError> {
        let vocabulary = self.vocabulary;
        match tokens.iter().position(|&token| token >= vocabulary) {
            Some(index) => Err(BlobError::Token { index: index as u64, token: tokens[index], vocabulary }),
            None => Ok(()),
        }
    }

    pub(super) fn check_limit(section: SectionName, found: u64, limit: u64) -> Result<(), BlobError> {
        if found > limit { Err(BlobError::TooLarge { section, found, limit }) } else { Ok(()) }
    }
}
