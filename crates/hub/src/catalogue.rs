//! Models known by name.

use serde::Deserialize;

use crate::digest::is_sha256;
use crate::reference::is_relative_file;
use crate::{HubError, Reference, Result};

/// One model of the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueEntry {
    /// Name by which it is asked for.
    pub name: String,
    /// Model and quantisation, for people.
    pub title: String,
    /// File name in the cache.
    pub file: String,
    /// SPDX expression of the licence of the weights.
    pub licence: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Digest of the file, lower-case hex.
    pub sha256: String,
    /// References to try in order.
    pub sources: Vec<String>,
}

/// The models known by name.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    models: Vec<CatalogueEntry>,
}

impl Catalogue {
    /// The catalogue that comes with this program.
    pub fn builtin() -> Self {
        Self::from_toml(include_str!("catalogue.toml"))
            .expect("the catalogue in the binary is checked by a test of this module")
    }

    /// Reads a catalogue: an array `models` of tables with the fields of [`CatalogueEntry`].
    ///
    /// # Errors
    /// [`HubError::Catalogue`] if the text, a digest, a file name or a source is malformed.
    pub fn from_toml(text: &str) -> Result<Self> {
        let document: Document =
            toml::from_str(text).map_err(|error| HubError::Catalogue { reason: error.to_string() })?;
        document.models.iter().try_for_each(check)?;
        Ok(Self { entries: document.models })
    }

    /// All entries in the order of the file.
    pub fn entries(&self) -> &[CatalogueEntry] {
        &self.entries
    }

    /// The entry of that name.
    ///
    /// # Errors
    /// [`HubError::UnknownName`] with the names there are.
    pub fn get(&self, name: &str) -> Result<&CatalogueEntry> {
        self.entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
            HubError::UnknownName { name: name.to_owned(), known: known.join(", ") }
        })
    }
}

fn check(entry: &CatalogueEntry) -> Result<()> {
    let fail = |reason: String| HubError::Catalogue { reason: format!("{}: {reason}", entry.name) };
    if !matches!(entry.name.parse(), Ok(Reference::Name(_))) {
        return Err(fail("not a catalogue name".into()));
    }
    if !is_sha256(&entry.sha256) {
        return Err(fail("sha256 must be 64 lower-case hex digits".into()));
    }
    if !is_relative_file(&entry.file) || entry.file.contains('/') {
        return Err(fail("file must be a plain file name".into()));
    }
    for source in &entry.sources {
        match source.parse().map_err(|error: HubError| fail(error.to_string()))? {
            Reference::Name(_) => return Err(fail(format!("source `{source}` is a catalogue name"))),
            Reference::HuggingFace { file: None, .. } => {
                return Err(fail(format!("source `{source}` names no file")));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_has_smollm2_with_sources() {
        let catalogue = Catalogue::builtin();
        let entry = catalogue.get("smollm2").unwrap();
        assert_eq!((entry.bytes, entry.licence.as_str()), (98_362_432, "Apache-2.0"));
        assert!(!entry.sources.is_empty());
        let message = catalogue.get("smolm").unwrap_err().to_string();
        assert!(message.contains("smolm") && message.contains("smollm2") && message.contains("hf:"));
    }

    #[test]
    fn malformed_entries_are_refused() {
        let text = include_str!("catalogue.toml");
        assert!(Catalogue::from_toml(&text.replace("b179", "B179")).is_err());
        assert!(Catalogue::from_toml(&text.replace("pip:", "nope:")).is_err());
        assert!(Catalogue::from_toml(&text.replace("file = \"", "file = \"../")).is_err());
    }
}
