//! `models.toml`: models that the fleet may load, and the names that requests may use for them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::config::{ConfigError, from_toml, line_of, read};

/// The class of a model that says nothing about it.
pub const DEFAULT_PRIORITY: i32 = 100;

/// A model that nodes may be asked to load.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogueModel {
    /// The name that requests use, and under which nodes serve it.
    pub id: toml::Spanned<String>,
    /// Where nodes find it: a path, a catalogue name or a reference; the id if not given.
    #[serde(default)]
    pub reference: Option<String>,
    /// Which quantisation of the reference.
    #[serde(default)]
    pub quant: Option<String>,
    /// Memory that it needs in MiB; 0 leaves the question to the nodes.
    #[serde(default)]
    pub memory_mb: u64,
    /// Devices that it needs at least.
    #[serde(default = "one")]
    pub min_devices: u32,
    /// Memory that each of these devices must have, in MiB.
    #[serde(default)]
    pub min_device_memory_mb: u64,
    /// Most tokens of prompt and answer together; `None` for what model and memory allow.
    #[serde(default)]
    pub ctx_cap: Option<u32>,
    /// Nodes that it belongs to: it is loaded on no others, and leaves these only when told to.
    #[serde(default)]
    pub pinned_on: Vec<String>,
    /// Its class: it may displace models of its own class and of lower ones.
    #[serde(default = "default_priority")]
    pub residency_priority: i32,
    /// Further names; a `*` stands for any characters.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What tokens cost.
    #[serde(default)]
    pub cost: Cost,
}

/// Price of a million tokens, in whatever currency the operator counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cost {
    /// Of the prompt.
    pub prompt: f64,
    /// Of the answer.
    pub completion: f64,
}

fn one() -> u32 {
    1
}

fn default_priority() -> i32 {
    DEFAULT_PRIORITY
}

impl CatalogueModel {
    /// The name that requests use.
    pub fn name(&self) -> &str {
        self.id.get_ref()
    }

    /// A model that stands in no catalogue, but is known to these nodes.
    pub(crate) fn known_on(name: &str, nodes: Vec<String>) -> Self {
        Self {
            id: toml::Spanned::new(0..0, name.to_owned()),
            reference: None,
            quant: None,
            memory_mb: 0,
            min_devices: 1,
            min_device_memory_mb: 0,
            ctx_cap: None,
            pinned_on: nodes,
            residency_priority: DEFAULT_PRIORITY,
            aliases: Vec::new(),
            cost: Cost::default(),
        }
    }

    /// Bytes that it needs.
    pub fn bytes(&self) -> u64 {
        self.memory_mb << 20
    }
}

/// The models of the file by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalogue {
    models: Vec<CatalogueModel>,
    /// Ids and aliases without a `*`, with the model's place in the list.
    names: BTreeMap<String, usize>,
    /// Aliases with a `*`, in the order of the file.
    patterns: Vec<(String, usize)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    models: Vec<CatalogueModel>,
}

impl Catalogue {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?, &path.display().to_string())
    }

    /// Reads a text; `file` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let mut catalogue = Self { models: from_toml::<File>(text, file)?.models, ..Self::default() };
        for (index, model) in catalogue.models.iter().enumerate() {
            let invalid = |key, reason: String| {
                let line = line_of(text, model.id.span().start);
                Err(ConfigError::Invalid { file: file.to_owned(), line, key, reason })
            };
            if model.name().is_empty() {
                return invalid("models.id", "is empty; give the name that requests use".into());
            }
            if model.min_devices == 0 {
                return invalid("models.min_devices", "is 0; a model needs at least 1".into());
            }
            if let Some(other) = catalogue.names.insert(model.name().to_owned(), index) {
                let other = catalogue.models[other].name();
                return invalid("models.id", format!("'{}' is a name of '{other}' already", model.name()));
            }
            for alias in &model.aliases {
                if alias.contains('*') {
                    catalogue.patterns.push((alias.clone(), index));
                } else if let Some(other) = catalogue.names.insert(alias.clone(), index) {
                    let other = catalogue.models[other].name();
                    return invalid("models.aliases", format!("'{alias}' is a name of '{other}' already"));
                }
            }
        }
        Ok(catalogue)
    }

    /// The model of a name: an id or an alias before a pattern, of patterns the longest.
    pub fn find(&self, name: &str) -> Option<&CatalogueModel> {
        let fitting = || self.patterns.iter().filter(|(pattern, _)| matches(pattern, name));
        let pattern = || fitting().max_by_key(|(pattern, _)| pattern.len()).map(|(_, at)| at);
        self.names.get(name).or_else(pattern).map(|&at| &self.models[at])
    }

    /// All models, in the order of the file.
    pub fn models(&self) -> &[CatalogueModel] {
        &self.models
    }
}

/// Whether a name is of a pattern: what stands between stars follows in order, the first at the start and the last at
/// the end.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[[models]]
id = "Qwen/Qwen3-8B"
memory_mb = 9000
pinned_on = ["attic"]
residency_priority = 200
aliases = ["chat", "claude-*"]
cost = { prompt = 0.1, completion = 0.4 }

[[models]]
id = "small"
reference = "hf:some/small"
aliases = ["claude-*haiku*"]
"#;

    #[test]
    fn a_model_answers_to_its_id_its_aliases_and_patterns() {
        let catalogue = Catalogue::parse(TEXT, "models.toml").unwrap();
        let id = |name| catalogue.find(name).map(CatalogueModel::name);
        assert_eq!((id("chat"), id("Qwen/Qwen3-8B")), (Some("Qwen/Qwen3-8B"), Some("Qwen/Qwen3-8B")));
        assert_eq!((id("claude-opus"), id("gpt-4")), (Some("Qwen/Qwen3-8B"), None));
        assert_eq!(id("claude-3-haiku"), Some("small"), "the longer pattern");
        let model = catalogue.find("chat").unwrap();
        assert_eq!((model.bytes(), model.min_devices, model.residency_priority), (9000 << 20, 1, 200));
        assert_eq!(catalogue.find("small").unwrap().residency_priority, DEFAULT_PRIORITY);
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        let yes = [
            ("claude-*haiku*", "claude-3-haiku-x"),
            ("*", ""),
            ("a*b*c", "abbc"),
            ("abc", "abc"),
            ("a*", "a"),
        ];
        let no = [
            ("claude-*haiku*", "claude-opus"),
            ("abc", "abcd"),
            ("a*b", "ac"),
            ("a*bc*c", "abc"),
            ("ab*ba", "aba"),
        ];
        yes.iter().for_each(|(pattern, name)| assert!(matches(pattern, name), "{pattern} {name}"));
        no.iter().for_each(|(pattern, name)| assert!(!matches(pattern, name), "{pattern} {name}"));
    }

    #[test]
    fn mistakes_are_told_with_line_and_key() {
        let cases = [
            ("[[models]]\nid = \"a\"\nmemmory_mb = 3\n", "line 3", "memmory_mb"),
            ("[[models]]\nmemory_mb = 3\n", "line 1", "id"),
            ("[[models]]\nid = \"a\"\n\n[[models]]\nid = \"a\"\n", "line 5", "models.id"),
            (
                "[[models]]\nid = \"a\"\n[[models]]\nid = \"b\"\naliases = [\"a\"]\n",
                "line 4",
                "models.aliases",
            ),
            ("[[models]]\nid = \"a\"\nmin_devices = 0\n", "line 2", "models.min_devices"),
        ];
        for (text, line, key) in cases {
            let message = Catalogue::parse(text, "models.toml").unwrap_err().to_string();
            assert!(message.contains(line) && message.contains(key), "{message}");
        }
    }
}
