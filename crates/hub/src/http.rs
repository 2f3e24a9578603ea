//! The HTTP client: requests as the hub protocol needs them, and statuses turned into errors.

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::{HubConfig, HubError, Result, Token};

/// Redirects followed before giving up.
pub(crate) const MAX_REDIRECTS: u32 = 10;

/// Blocking client with the timeouts of a [`HubConfig`].
#[derive(Debug)]
pub(crate) struct Http {
    agent: Agent,
}

/// Bytes wanted from a position on, provided the content is still the one of `etag`.
#[derive(Debug, Clone)]
pub(crate) struct Resume {
    pub(crate) offset: u64,
    pub(crate) etag: Option<String>,
}

impl Http {
    pub(crate) fn new(config: &HubConfig) -> Self {
        let mut builder = Agent::config_builder()
            .user_agent(concat!("lichen/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(MAX_REDIRECTS)
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_recv_response(Some(config.response_timeout))
            .timeout_per_read(Some(config.read_timeout));
        if !config.proxy_from_env {
            builder = builder.proxy(None);
        }
        Self { agent: Agent::new_with_config(builder.build()) }
    }

    /// GET that follows redirects; the token goes to the first host only.
    pub(crate) fn get(
        &self,
        url: &str,
        token: Option<&Token>,
        resume: Option<&Resume>,
    ) -> Result<Response<Body>> {
        // A redirect from https to http would let anyone on the way swap the content.
        let mut request = self.agent.get(url).config().https_only(url.starts_with("https://")).build();
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        if let Some(resume) = resume {
            request = request.header("range", format!("bytes={}-", resume.offset));
            if let Some(etag) = &resume.etag {
                request = request.header("if-range", etag);
            }
        }
        request.call().map_err(|error| unreachable_at(url, &error))
    }

    /// HEAD that does not follow redirects: the hub's own headers stand on its first answer.
    pub(crate) fn head(&self, url: &str, token: Option<&Token>) -> Result<Response<Body>> {
        let mut request = self
            .agent
            .head(url)
            .config()
            .max_redirects(0)
            .max_redirects_will_error(false)
            .https_only(url.starts_with("https://"))
            .build();
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        request.call().map_err(|error| unreachable_at(url, &error))
    }
}

fn unreachable_at(url: &str, error: &ureq::Error) -> HubError {
    HubError::Unreachable { url: url.to_owned(), reason: error.to_string() }
}

/// Value of a header if it is there and is text.
pub(crate) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// Error of a status that is not a success; `what` names the thing asked for.
pub(crate) fn status_error(status: u16, what: &str, url: &str) -> HubError {
    let (what, url) = (what.to_owned(), url.to_owned());
    match status {
        404 | 410 => HubError::NotFound { what, url },
        401 | 403 => HubError::Denied { what, status },
        _ => HubError::Status { url, status },
    }
}
