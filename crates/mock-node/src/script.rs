//! What a mock node is to do, and what it has done.

use std::collections::BTreeMap;

use lichen_api::Piece;
use serde::{Deserialize, Serialize};

/// What the answers consist of.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// So many tokens of text.
    Tokens(usize),
    /// These pieces.
    Pieces(Vec<Piece>),
    /// These bytes, each entry written at once; whole answers are the entries joined.
    Raw(Vec<String>),
}

/// What a mock node is to do. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Before the first token.
    pub first_token_ms: u64,
    /// Between two tokens of a request that runs alone.
    pub token_ms: u64,
    /// Tokens of an answer.
    pub tokens: usize,
    /// What answers consist of instead of `tokens`.
    #[serde(skip)]
    pub output: Option<Output>,
    /// Requests that run at once; others wait.
    pub slots: usize,
    /// How much each further request that runs slows all down: a token takes `1 + slowdown * others` as long.
    pub slowdown: f32,
    /// Send the head of a stream only with its first token, as some engines do.
    pub late_head: bool,
    /// Answer the next requests with this status.
    pub fail_status: Option<u16>,
    /// How many requests `fail_status` is for; `None` for all.
    pub fail_count: Option<usize>,
    /// The `Retry-After` of failures.
    pub retry_after: Option<u64>,
    /// Break off after so many tokens.
    pub break_after: Option<usize>,
    /// Answer nothing at all, health and contract included.
    pub hang: bool,
    /// Report nothing to gateways and refuse to say how it is.
    pub mute: bool,
    /// How long a load takes.
    pub load_ms: u64,
    /// Let loads fail, for this cause.
    pub load_failure: Option<String>,
    /// Announce that it is about to stop.
    pub draining: bool,
}

impl Default for Script {
    /// Sixteen tokens at once, two hundred requests side by side.
    fn default() -> Self {
        Self {
            first_token_ms: 0,
            token_ms: 0,
            tokens: 16,
            output: None,
            slots: 200,
            slowdown: 0.0,
            late_head: false,
            fail_status: None,
            fail_count: None,
            retry_after: None,
            break_after: None,
            hang: false,
            mute: false,
            load_ms: 0,
            load_failure: None,
            draining: false,
        }
    }
}

impl Script {
    /// What answers consist of.
    pub(crate) fn output(&self) -> Output {
        self.output.clone().unwrap_or(Output::Tokens(self.tokens))
    }

    /// The failure of the next request, if it is to fail. Counts it.
    pub(crate) fn take_failure(&mut self) -> Option<u16> {
        let status = self.fail_status?;
        match &mut self.fail_count {
            Some(0) => return None,
            Some(left) => *left -= 1,
            None => {}
        }
        Some(status)
    }
}

/// A request as it arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its path and query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: String,
}

/// What has happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Requests for inference that came in.
    pub requests: usize,
    /// Of these, answered to the end.
    pub completed: usize,
    /// Of these, given up by whoever asked.
    pub canceled: usize,
    /// That run or wait now.
    pub in_flight: usize,
    /// Requests on other routes than those for inference.
    pub contract_requests: usize,
    /// Loads begun, by model.
    pub loads: BTreeMap<String, usize>,
    /// Models that went, in order.
    pub unloads: Vec<String>,
    /// The last requests for inference.
    pub seen: Vec<Seen>,
}
