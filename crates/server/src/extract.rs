//! A request body in memory, within the limit.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use lichen_api::Error;

use crate::Node;
use crate::reply::Refusal;

/// The whole body. Its content type is not looked at: many clients send none or a wrong one.
#[derive(Debug)]
pub(crate) struct Body(pub(crate) Bytes);

impl FromRequest<Node> for Body {
    type Rejection = Refusal;

    async fn from_request(request: Request, node: &Node) -> Result<Self, Refusal> {
        match Bytes::from_request(request, node).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(rejection) if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE => {
                Err(Refusal(Error::BodyTooLarge { limit: node.settings().body_limit }))
            }
            Err(rejection) => Err(Refusal(Error::invalid("body", rejection.body_text()))),
        }
    }
}
