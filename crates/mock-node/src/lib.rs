//! A node without a model. It speaks the node contract and every dialect, and does what its [`Script`] says: it
//! delays, fails, falls silent, breaks off, or slows down under load as a batching engine does.
//!
//! [`MockNode`] runs inside a test; the program `mock-node` is the same with a command line. The script can be changed
//! over HTTP while it runs: `PATCH /mock` with the fields to change, `GET /mock` for what has happened, `POST
//! /mock/kill` to break off everything at once.

mod answer;
mod contract;
mod heartbeat;
mod models;
mod node;
mod script;

pub use heartbeat::Gateway;
pub use node::MockNode;
pub use script::{Output, Script, Seen, Stats};
