//! Settings of the hub and how they follow from the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Endpoint used unless HF_ENDPOINT names another.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Access token of a model hub; its `Debug` output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Settings of a [`Hub`](crate::Hub).
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Folder of Lichen's own cache.
    pub home: PathBuf,
    /// Existing Hugging Face cache (the folder with `models--owner--repo`), read and never written.
    pub hf_cache: Option<PathBuf>,
    /// Address of the model hub, without a trailing slash.
    pub hf_endpoint: String,
    /// Token sent to the hub endpoint only.
    pub hf_token: Option<Token>,
    /// The pip program and its first arguments.
    pub pip_command: Vec<OsString>,
    /// Longest time pip may take.
    pub pip_timeout: Duration,
    /// Longest time to establish a connection.
    pub connect_timeout: Duration,
    /// Longest time to wait for the head of a response.
    pub response_timeout: Duration,
    /// Longest silence of a server in the middle of a transfer.
    pub read_timeout: Duration,
    /// How often a transfer that stopped is resumed without a byte of progress in between.
    pub retries: u32,
    /// Largest file accepted, in bytes.
    pub max_file_bytes: u64,
    /// Whether proxy settings are taken from the environment.
    pub proxy_from_env: bool,
}

impl HubConfig {
    /// Settings for a cache at `home`; everything else at its default, no Hugging Face cache, no token.
    pub fn new(home: impl Into<PathBuf>) -> Self {
        Self {
            home: home.into(),
            hf_cache: None,
            hf_endpoint: DEFAULT_ENDPOINT.to_owned(),
            hf_token: None,
            pip_command: ["python3", "-m", "pip"].map(OsString::from).to_vec(),
            pip_timeout: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(30),
            read_timeout: Duration::from_secs(60),
            retries: 3,
            max_file_bytes: 1 << 40,
            proxy_from_env: true,
        }
    }

    /// Settings from the environment: LICHEN_HOME, XDG_CACHE_HOME, HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN.
    pub fn from_env() -> Self {
        Self::from_vars(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with the variables given by `var`; an empty one counts as absent.
    pub fn from_vars(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let path = |name: &str| var(name).map(PathBuf::from);
        let text = |name: &str| var(name).and_then(|value| value.into_string().ok());
        let user_cache = path("XDG_CACHE_HOME")
            .or_else(|| path("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir);
        let mut config = Self::new(path("LICHEN_HOME").unwrap_or_else(|| user_cache.join("lichen")));
        let hf_home = path("HF_HOME").unwrap_or_else(|| user_cache.join("huggingface"));
        config.hf_cache = Some(path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub")));
        if let Some(endpoint) = text("HF_ENDPOINT") {
            config.hf_endpoint = endpoint.trim_end_matches('/').to_owned();
        }
        config.hf_token = text("HF_TOKEN").map(|token| Token::new(token.trim()));
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> HubConfig {
        HubConfig::from_vars(|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn folders_follow_the_environment() {
        let config = with(&[("HOME", "/h")]);
        assert_eq!(config.home, PathBuf::from("/h/.cache/lichen"));
        assert_eq!(config.hf_cache, Some("/h/.cache/huggingface/hub".into()));
        let config =
            with(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "/f"), ("LICHEN_HOME", "")]);
        assert_eq!(config.home, PathBuf::from("/x/lichen"));
        assert_eq!(config.hf_cache, Some("/f/hub".into()));
        let config =
            with(&[("LICHEN_HOME", "/l"), ("HF_ENDPOINT", "http://mirror/"), ("HF_TOKEN", "secret")]);
        assert_eq!(config.home, PathBuf::from("/l"));
        assert_eq!(config.hf_endpoint, "http://mirror");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
