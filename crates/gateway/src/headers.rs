//! Which headers go from one side to the other.

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Headers that are about one connection (RFC 9110, section 7.6.1), besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 7] =
    [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Anthropic's header for a key.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// What Claude Code calls its session.
const CLAUDE_SESSION: HeaderName = HeaderName::from_static("x-claude-code-session-id");
/// What others may call theirs.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain([&KEEP_ALIVE, &PROXY_CONNECTION]).chain(&named) {
        headers.remove(name);
    }
}

/// What of a client's headers a node may see. Keys and cookies are between the client and the gateway. Nothing is asked
/// to be compressed: streams are passed on read by read.
pub(crate) fn to_node(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    strip_hop_by_hop(&mut headers);
    for name in [HOST, CONTENT_LENGTH, AUTHORIZATION, API_KEY, COOKIE, EXPECT, ACCEPT_ENCODING] {
        headers.remove(name);
    }
    headers
}

/// What of a node's headers a client may see.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    headers.remove(SET_COOKIE);
}

/// The session that a client names.
pub(crate) fn session(headers: &HeaderMap) -> Option<&str> {
    headers.get(CLAUDE_SESSION).or_else(|| headers.get(SESSION))?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn keys_and_headers_of_the_connection_stay_behind() {
        let sent = to_node(&map(&[
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("cookie", "secret"),
            ("host", "gateway"),
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("content-length", "9"),
            ("anthropic-version", "2023-06-01"),
            ("traceparent", "00-1-2-01"),
        ]));
        let mut names: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["anthropic-version", "traceparent"]);
    }

    #[test]
    fn a_node_s_answer_keeps_its_length_and_loses_the_rest_of_its_connection() {
        let mut headers = map(&[
            ("content-length", "9"),
            ("connection", "keep-alive"),
            ("set-cookie", "a"),
            ("retry-after", "7"),
        ]);
        to_client(&mut headers);
        let names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-length", "retry-after"]);
    }
}
