//! `node.toml`: one typed struct, its defaults here and nowhere else.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

/// A configuration file that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// It can't be read.
    #[error("cannot read {file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        reason: String,
    },
    /// It is no TOML, or has a key or a type that isn't known.
    #[error("{file}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, column, key and what was expected.
        message: String,
    },
    /// A value makes no sense.
    #[error("{file}, line {line}: {key}: {reason}")]
    Invalid {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

/// `node.toml`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeConfig {
    /// `[node]`.
    pub(crate) node: NodeSection,
    /// `[[models]]`.
    pub(crate) models: Vec<ModelConfig>,
    /// `[[gateways]]`.
    pub(crate) gateways: Vec<GatewayConfig>,
}

/// `[node]`. Relative paths start at the folder of the file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NodeSection {
    /// The node's name in the fleet; the host's name and the port if not given.
    pub(crate) name: Option<String>,
    /// Address to listen on.
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one.
    pub(crate) port: u16,
    /// Where gateways reach the node, `http://HOST:PORT`; where it listens if not given.
    pub(crate) address: Option<Spanned<String>>,
    /// File with the API keys that are accepted.
    pub(crate) api_key_file: Option<PathBuf>,
    /// Where a JSON line about each request goes: stderr, off, or a file.
    pub(crate) access_log: PathBuf,
    /// Folders whose `.gguf` files can be asked for by their stems.
    pub(crate) model_folders: Vec<PathBuf>,
    /// Models that are loaded one after another before the first request is taken: names of `[[models]]` or of files in
    /// `model_folders`, or references.
    pub(crate) default_models: Vec<String>,
    /// Most memory of the process, such as `6G`.
    pub(crate) ram_budget: Option<Spanned<String>>,
    /// Take models whose weights are larger than memory.
    pub(crate) overcommit_weights: bool,
    /// Seconds that a request waits for its model.
    pub(crate) load_timeout_s: u64,
    /// Seconds without a request after which a model goes when memory is short.
    pub(crate) idle_after_s: u64,
    /// Seconds that running answers have to end when the node stops.
    pub(crate) drain_s: u64,
}

impl Default for NodeSection {
    fn default() -> Self {
        Self {
            name: None,
            host: "127.0.0.1".into(),
            port: 8080,
            address: None,
            api_key_file: None,
            access_log: "stderr".into(),
            model_folders: Vec::new(),
            default_models: Vec::new(),
            ram_budget: None,
            overcommit_weights: false,
            load_timeout_s: 120,
            idle_after_s: 30,
            drain_s: 30,
        }
    }
}

/// One of `[[models]]`: known by name, loaded when somebody asks for it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelConfig {
    /// The name that requests use.
    pub(crate) name: Spanned<String>,
    /// A path, a name from the catalogue or a reference.
    pub(crate) model: String,
    /// Most tokens of prompt and answer together.
    #[serde(default)]
    pub(crate) ctx_cap: Option<NonZeroU32>,
    /// Most requests that run at once.
    #[serde(default)]
    pub(crate) max_concurrent: Option<usize>,
    /// Most sessions whose state is kept.
    #[serde(default)]
    pub(crate) max_sessions: Option<usize>,
    /// Most tokens of thinking where a request doesn't say.
    #[serde(default)]
    pub(crate) reasoning_budget: Option<usize>,
    /// Seconds without a request after which it is unloaded.
    #[serde(default)]
    pub(crate) ttl_s: Option<u64>,
    /// It leaves only when told to.
    #[serde(default)]
    pub(crate) pin: bool,
    /// Its class: it displaces models of its own class and of lower ones.
    #[serde(default)]
    pub(crate) priority: i32,
}

/// One of `[[gateways]]`: a gateway that the node reports to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GatewayConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub(crate) url: Spanned<String>,
    /// What the gateway asks of nodes that join.
    #[serde(default)]
    pub(crate) join_token: Option<String>,
    /// Milliseconds between two reports, unless the gateway wants others.
    #[serde(default = "heartbeat_ms")]
    pub(crate) heartbeat_ms: u64,
}

fn heartbeat_ms() -> u64 {
    1000
}

impl GatewayConfig {
    /// Where reports go.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}{}", self.url.get_ref().trim_end_matches('/'), lichen_contract::routes::HEARTBEAT)
    }

    /// Between two reports.
    pub(crate) fn period(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }
}

impl NodeConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { file: file.clone(), reason: error.to_string() })?;
        let mut config = Self::parse(&text, &file)?;
        config.begin_paths_at(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// Reads a text; `file` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub(crate) fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            file: file.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        let checked = config.check();
        checked.map_err(|(at, key, reason)| {
            let line = text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
            ConfigError::Invalid { file: file.to_owned(), line, key, reason }
        })?;
        Ok(config)
    }

    /// The first value that makes no sense: where it stands, its key, what is wrong.
    fn check(&self) -> Result<(), (usize, &'static str, String)> {
        let wrong = |value: &Spanned<String>, key, reason: &str| {
            Err((value.span().start, key, format!("'{}' {reason}", value.get_ref())))
        };
        if let Some(size) = &self.node.ram_budget
            && crate::commands::serve::size(size.get_ref()).is_err()
        {
            return wrong(size, "node.ram_budget", "is not a size; write it like 6G, 512M or 1000000");
        }
        if let Some(address) =
            self.node.address.as_ref().filter(|address| !is_base(address.get_ref(), &["http://"]))
        {
            return wrong(address, "node.address", "is not of the form http://HOST:PORT");
        }
        let mut names = std::collections::BTreeSet::new();
        for model in &self.models {
            if !(1..=256).contains(&model.name.get_ref().len()) {
                return wrong(&model.name, "models.name", "must have 1 to 256 bytes");
            }
            if !names.insert(model.name.get_ref()) {
                return wrong(&model.name, "models.name", "is there twice; name each model once");
            }
        }
        for gateway in &self.gateways {
            if !is_base(gateway.url.get_ref(), &["http://", "https://"]) {
                return wrong(&gateway.url, "gateways.url", "is not of the form http://HOST:PORT");
            }
            if gateway.heartbeat_ms == 0 {
                return wrong(&gateway.url, "gateways.heartbeat_ms", "needs a period of at least 1 ms");
            }
        }
        Ok(())
    }

    fn begin_paths_at(&mut self, folder: &Path) {
        let begin = |path: &mut PathBuf| *path = folder.join(&*path);
        self.node.model_folders.iter_mut().for_each(begin);
        self.node.api_key_file.iter_mut().for_each(begin);
        if !["stderr", "off"].contains(&self.node.access_log.to_string_lossy().as_ref()) {
            begin(&mut self.node.access_log);
        }
        for model in &mut self.models {
            // Anything else is a name or a reference, which look nowhere.
            if model.model.starts_with("./") || model.model.starts_with("../") {
                model.model = folder.join(&model.model).to_string_lossy().into_owned();
            }
        }
    }
}

fn is_base(url: &str, schemes: &[&str]) -> bool {
    schemes.iter().any(|scheme| url.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(NodeConfig::parse("", "node.toml").unwrap(), NodeConfig::default());
    }

    #[test]
    fn the_example_is_understood() {
        let example = include_str!("../../../packaging/node.example.toml");
        let config = NodeConfig::parse(example, "node.example.toml").unwrap();
        assert_eq!((config.node.port, config.models.len(), config.gateways.len()), (13131, 2, 1));
        assert_eq!(config.node.default_models, ["chat"]);
    }

    #[test]
    fn the_example_names_every_key() {
        let example = include_str!("../../../packaging/node.example.toml");
        let uncommented: String = example
            .lines()
            .map(|line| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line))
            .collect::<Vec<_>>()
            .join("\n");
        NodeConfig::parse(&uncommented, "node.example.toml").unwrap();
        for key in [
            "name",
            "host",
            "port",
            "address",
            "api_key_file",
            "access_log",
            "model_folders",
            "default_models",
            "ram_budget",
            "overcommit_weights",
            "load_timeout_s",
            "idle_after_s",
            "drain_s",
            "model",
            "ctx_cap",
            "max_concurrent",
            "max_sessions",
            "reasoning_budget",
            "ttl_s",
            "pin",
            "priority",
            "url",
            "join_token",
            "heartbeat_ms",
        ] {
            assert!(uncommented.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
        }
    }

    #[test]
    fn mistakes_are_told_with_line_and_key() {
        let cases = [
            ("[node]\nprot = 1\n", "line 2", "prot"),
            ("[node]\nport = \"x\"\n", "line 2", "port"),
            ("\n[node]\nram_budget = \"6X\"\n", "line 3", "node.ram_budget"),
            ("[node]\naddress = \"10.0.0.2:1\"\n", "line 2", "node.address"),
            ("[[gateways]]\nurl = \"10.0.0.2\"\n", "line 2", "gateways.url"),
            (
                "[[models]]\nname = \"a\"\nmodel = \"m\"\n[[models]]\nname = \"a\"\nmodel = \"n\"\n",
                "line 5",
                "models.name",
            ),
        ];
        for (text, line, key) in cases {
            let message = NodeConfig::parse(text, "node.toml").unwrap_err().to_string();
            assert!(
                message.contains(line) && message.contains(key) && message.contains("node.toml"),
                "{message}"
            );
        }
    }

    #[test]
    fn paths_begin_at_the_folder_of_the_file() {
        let text = "[node]\nmodel_folders = [\"models\"]\n[[models]]\nname = \"a\"\nmodel = \"./a.gguf\"\n\
            [[models]]\nname = \"b\"\nmodel = \"smollm2\"\n";
        let mut config = NodeConfig::parse(text, "node.toml").unwrap();
        config.begin_paths_at(Path::new("/etc/lichen"));
        assert_eq!(config.node.model_folders, [Path::new("/etc/lichen/models")]);
        assert_eq!(
            (config.models[0].model.as_str(), config.models[1].model.as_str()),
            ("/etc/lichen/./a.gguf", "smollm2")
        );
        assert_eq!(config.node.access_log, Path::new("stderr"));
    }
}
