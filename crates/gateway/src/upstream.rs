//! The connections to nodes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::route::Target;

/// Largest answer of a node about itself.
const CONTROL_BODY: usize = 8 << 20;
/// Idle seconds after which the system asks whether the other host is still there. A host without power closes nothing.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
/// Idle connections that are kept to each node.
const IDLE_CONNECTIONS: usize = 256;

/// A body of bytes that are shared, not copied: it can be sent to one node after another.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedBody {
    parts: VecDeque<Bytes>,
}

impl SharedBody {
    /// The bytes as they are.
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { parts: [bytes].into() }
    }

    /// The bytes with others in place of a range.
    pub(crate) fn spliced(bytes: &Bytes, at: Range<usize>, with: Bytes) -> Self {
        let parts = [bytes.slice(..at.start), with, bytes.slice(at.end..)];
        Self { parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }
}

impl Body for SharedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(|part| part.len() as u64).sum())
    }
}

/// Why a node gave no answer that makes sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Nobody listens there.
    #[error("it can't be reached: {0}")]
    Unreachable(String),
    /// It broke off.
    #[error("it broke off: {0}")]
    Broken(String),
    /// It answered something else than the contract says.
    #[error("{0}")]
    Answer(String),
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> Self {
        let cause = cause(&error);
        if error.is_connect() { Self::Unreachable(cause) } else { Self::Broken(cause) }
    }
}

/// What is at the bottom of an error: the outer ones only say where it happened.
pub(crate) fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// A pool of connections. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Upstream(Client<HttpConnector, SharedBody>);

impl Upstream {
    pub(crate) fn new(connect_timeout: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(connect_timeout));
        connector.set_keepalive(Some(TCP_KEEPALIVE));
        connector.set_keepalive_interval(Some(TCP_KEEPALIVE / 3));
        connector.set_keepalive_retries(Some(3));
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self(client)
    }

    /// Sends a request. Dropping the future gives it up.
    ///
    /// # Errors
    /// [`CallError::Unreachable`] and [`CallError::Broken`].
    pub(crate) async fn send(&self, request: Request<SharedBody>) -> Result<Response<Incoming>, CallError> {
        Ok(self.0.request(request).await?)
    }

    /// Asks a node about itself.
    pub(crate) async fn get<T: DeserializeOwned>(&self, node: &Target, path: &str) -> Result<T, CallError> {
        self.call(node, Method::GET, path, Bytes::new()).await
    }

    /// Tells a node something.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        node: &Target,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(body).map_err(|error| CallError::Answer(error.to_string()))?;
        self.call(node, Method::POST, path, body.into()).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        node: &Target,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, CallError> {
        let mut request = Request::new(SharedBody::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri(node, path)?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = credential(node) {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let response = self.send(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), CONTROL_BODY).collect().await;
        let body = body.map_err(|error| CallError::Broken(error.to_string()))?.to_bytes();
        // Refusals of the contract are answers, too, so the status says nothing that the body doesn't.
        serde_json::from_slice(&body)
            .map_err(|error| CallError::Answer(format!("it answered {path} with {status}: {error}")))
    }
}

/// Where a path is on a node.
pub(crate) fn uri(node: &Target, path: &str) -> Result<Uri, CallError> {
    let uri = format!("{}{path}", node.address);
    uri.parse().map_err(|error| CallError::Unreachable(format!("'{uri}' is no address: {error}")))
}

/// The header that lets the gateway in.
pub(crate) fn credential(node: &Target) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", node.api_key.as_deref()?)).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spliced_body_is_the_bytes_with_others_in_the_middle() {
        let body = SharedBody::spliced(
            &Bytes::from_static(b"{\"model\":\"a\"}"),
            9..12,
            Bytes::from_static(b"\"long\""),
        );
        assert_eq!(body.parts.iter().flatten().copied().collect::<Vec<_>>(), b"{\"model\":\"long\"}");
        assert_eq!(body.size_hint().exact(), Some(16));
    }
}
