//! One command a file: its arguments and what it does.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod devices;
pub(crate) mod gateway;
pub(crate) mod inspect;
pub(crate) mod kernels;
pub(crate) mod list;
pub(crate) mod perplexity;
pub(crate) mod plan;
pub(crate) mod pull;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod serve_models;
pub(crate) mod session;
