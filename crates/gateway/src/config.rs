//! `gateway.toml`: one typed struct, its defaults here and nowhere else.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::placement::Strategy;

/// A configuration file that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
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
        /// What is wrong and what would be right.
        reason: String,
    },
}

/// Everything that `gateway.toml` says.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gateway itself.
    pub gateway: GatewayConfig,
    /// How nodes join and how they are watched.
    pub fleet: FleetConfig,
    /// What is weighed against what when a request is routed.
    pub routing: RoutingConfig,
    /// Which models give way.
    pub eviction: EvictionConfig,
    /// Nodes that are known beforehand. Others join by themselves.
    pub nodes: Vec<NodeConfig>,
}

/// `[gateway]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// The gateway's name, told to nodes.
    pub name: String,
    /// Where clients reach it.
    pub listen: SocketAddr,
    /// The catalogue; a relative path starts at the folder of `gateway.toml`. Without it only models that nodes hold
    /// are served.
    pub models_config: Option<PathBuf>,
    /// Largest request body in MiB.
    pub body_limit_mib: usize,
    /// Seconds that a request waits for a model to be loaded before it is told to come back.
    pub wait_budget_s: u64,
    /// Seconds of silence after which a stream gets a sign of life.
    pub keep_alive_s: u64,
    /// Seconds for a connection to a node to come about.
    pub connect_timeout_s: u64,
    /// Most nodes that one request is sent to, one after another.
    pub max_attempts: usize,
    /// Retries after an answer that asks to come back later, as a share of all requests.
    pub retry_share: f32,
    /// Seconds that running answers have to end when the gateway stops.
    pub drain_s: u64,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            name: "gateway".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 31313)),
            models_config: None,
            body_limit_mib: 32,
            wait_budget_s: 60,
            keep_alive_s: 5,
            connect_timeout_s: 2,
            max_attempts: 3,
            retry_share: 0.1,
            drain_s: 30,
        }
    }
}

impl GatewayConfig {
    /// Largest request body in bytes.
    pub fn body_limit(&self) -> usize {
        self.body_limit_mib << 20
    }

    /// How long a request waits for a load.
    pub fn wait_budget(&self) -> Duration {
        Duration::from_secs(self.wait_budget_s)
    }

    /// The longest silence of a stream.
    pub fn keep_alive(&self) -> Duration {
        Duration::from_secs(self.keep_alive_s)
    }
}

/// `[fleet]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetConfig {
    /// What a node shows when it joins. Without it nodes can't join by themselves.
    pub join_token: Option<String>,
    /// The key that the gateway shows to nodes that have joined.
    pub node_api_key: Option<String>,
    /// Milliseconds between two reports of a node, and between two looks at it.
    pub heartbeat_ms: u64,
    /// Heartbeats without news after which a node gets no requests.
    pub missed_heartbeats: u32,
    /// Seconds after which a silent node that has joined by itself is forgotten.
    pub forget_after_s: u64,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            join_token: None,
            node_api_key: None,
            heartbeat_ms: 1000,
            missed_heartbeats: 5,
            forget_after_s: 600,
        }
    }
}

impl FleetConfig {
    /// Between two reports.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// The longest silence of a node that gets requests.
    pub fn silence(&self) -> Duration {
        self.heartbeat() * self.missed_heartbeats
    }
}

/// `[routing]`: weights in requests in flight. A node with a weight of 1 more against it is as good as one with one
/// request more.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoutingConfig {
    /// Of a request that waits on the node.
    pub queued: f32,
    /// Of key-value memory that is full.
    pub kv_use: f32,
    /// In favour of a node that has seen the whole prompt before.
    pub prefix: f32,
    /// In favour of the node that served the session last.
    pub session: f32,
    /// Blocks of prompts remembered for each node.
    pub prefix_blocks: usize,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self { queued: 1.5, kv_use: 4.0, prefix: 4.0, session: 2.0, prefix_blocks: 65_536 }
    }
}

/// `[eviction]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvictionConfig {
    /// Which idle models go first.
    pub strategy: Strategy,
}

/// What a node speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// The node contract and every dialect.
    #[default]
    Lichen,
    /// OpenAI's routes only, models neither loaded nor unloaded: llama.cpp's server, vLLM, Ollama.
    Openai,
}

/// One of `[[nodes]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node's name.
    pub name: String,
    /// `http://HOST:PORT`.
    pub endpoint: toml::Spanned<String>,
    /// What it speaks.
    #[serde(default)]
    pub kind: NodeKind,
    /// The key that the gateway shows to it.
    #[serde(default)]
    pub api_key: Option<String>,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        Self::parse(&read(path)?, &file)
    }

    /// Reads a text; `file` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError`], naming line and key.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let config: Self = from_toml(text, file)?;
        let mut names = std::collections::BTreeSet::new();
        for node in &config.nodes {
            let invalid = |key, reason: String| {
                let line = line_of(text, node.endpoint.span().start);
                Err(ConfigError::Invalid { file: file.to_owned(), line, key, reason })
            };
            let endpoint = node.endpoint.get_ref();
            if endpoint.strip_prefix("http://").is_none_or(str::is_empty) {
                return invalid(
                    "nodes.endpoint",
                    format!("'{endpoint}' is not of the form http://HOST:PORT"),
                );
            }
            if !names.insert(&node.name) {
                return invalid("nodes.name", format!("'{}' is there twice; name each node once", node.name));
            }
        }
        Ok(config)
    }
}

/// Reads a configuration file.
pub(crate) fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: std::io::Error| ConfigError::Unreadable {
        file: path.display().to_string(),
        reason: error.to_string(),
    };
    std::fs::read_to_string(path).map_err(unreadable)
}

/// Parses TOML. What `toml` reports has line, column and key in it.
pub(crate) fn from_toml<T: serde::de::DeserializeOwned>(text: &str, file: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Syntax {
        file: file.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    })
}

/// The line of a byte, from 1.
pub(crate) fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_defaults() {
        assert_eq!(Config::parse("", "gateway.toml").unwrap(), Config::default());
        assert_eq!(Config::default().gateway.body_limit(), 32 << 20);
    }

    #[test]
    fn nodes_and_sections_are_read() {
        let text = "[gateway]\nlisten = \"0.0.0.0:9\"\n[eviction]\nstrategy = \"lru\"\n\
            [[nodes]]\nname = \"attic\"\nendpoint = \"http://10.0.0.2:13131\"\n\
            [[nodes]]\nname = \"old\"\nendpoint = \"http://10.0.0.3:8000\"\nkind = \"openai\"\napi_key = \"k\"\n";
        let config = Config::parse(text, "gateway.toml").unwrap();
        assert_eq!(config.gateway.listen.port(), 9);
        assert_eq!(config.eviction.strategy, Strategy::Lru);
        assert_eq!((config.nodes[0].kind, config.nodes[1].kind), (NodeKind::Lichen, NodeKind::Openai));
    }

    #[test]
    fn mistakes_are_told_with_line_and_key() {
        let cases = [
            ("[gateway]\nlissten = \"x\"\n", "line 2", "lissten"),
            ("[gateway]\nwait_budget_s = \"long\"\n", "line 2", "wait_budget_s"),
            ("\n[[nodes]]\nname = \"a\"\nendpoint = \"10.0.0.2:1\"\n", "line 4", "nodes.endpoint"),
            (
                "[[nodes]]\nname = \"a\"\nendpoint = \"http://a\"\n[[nodes]]\nname = \"a\"\nendpoint = \"http://b\"\n",
                "line 6",
                "nodes.name",
            ),
        ];
        for (text, line, key) in cases {
            let message = Config::parse(text, "gateway.toml").unwrap_err().to_string();
            assert!(message.contains(line) && message.contains(key), "{message}");
            assert!(message.contains("gateway.toml"), "{message}");
        }
    }
}
