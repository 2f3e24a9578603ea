//! What an engine does, in numbers.

/// A snapshot: gauges of now, and totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Requests that are being worked on.
    pub running: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests that were begun and gave way.
    pub paused: usize,
    /// KV pages that exist.
    pub pages: usize,
    /// Of these, pages that only the prefix cache holds.
    pub cached_pages: usize,
    /// Most KV pages.
    pub page_limit: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Sessions whose state is kept.
    pub sessions: usize,
    /// Prompt tokens taken in, in total.
    pub prompt_tokens: u64,
    /// Of these, tokens whose state was reused.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens guessed.
    pub drafted_tokens: u64,
    /// Of these, tokens that were right.
    pub accepted_tokens: u64,
    /// Times that a running request had to give way.
    pub pauses: u64,
    /// Steps run.
    pub steps: u64,
    /// Seconds until a request that comes now is likely begun.
    pub wait_seconds: f64,
    /// What became of requests.
    pub admissions: Admissions,
}

/// What became of requests when they came, in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Admissions {
    /// Begun without a wait.
    pub admitted: u64,
    /// Had to wait for others to end.
    pub queued_for_slot: u64,
    /// Had to wait for memory.
    pub queued_for_memory: u64,
    /// Refused: longer than the context.
    pub over_context: u64,
    /// Refused: larger than memory.
    pub over_memory: u64,
    /// Refused: too many waited.
    pub queue_full: u64,
    /// Refused after a wait for memory.
    pub timed_out: u64,
}
