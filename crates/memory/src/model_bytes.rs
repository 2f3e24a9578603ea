//! What a model needs, in bytes.

use crate::KvPrecision;

/// Of streamed weights, the part that must be in memory at a time: one in so many.
const STREAMED_PART: u64 = 10;

/// How mapped weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Residency {
    /// In memory.
    Resident,
    /// Read from disk again at each pass, a tenth of them in memory at a time. For models larger than memory.
    Streamed,
}

/// What a model needs, in bytes. The default is a model of nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelBytes {
    /// One page of KV over all layers, by precision in the order of [`KvPrecision::ALL`].
    pub page: [u64; 4],
    /// Tokens of one page of KV.
    pub page_tokens: u64,
    /// Pages of a running sequence that can't be requantised: those at its ends.
    pub fine_pages: u64,
    /// The precision of promises.
    pub floor: KvPrecision,
    /// The most tokens of prompt and answer together.
    pub context_cap: u64,
    /// Activations and logits of the largest step.
    pub scratch: u64,
    /// Weights in clean pages of a mapped file.
    pub weights_mapped: u64,
    /// Weights in memory of our own.
    pub weights_anonymous: u64,
    /// Tables of the tokenizer.
    pub tokenizer: u64,
}

impl ModelBytes {
    /// Bytes of KV for one more token, rounded up.
    pub fn bytes_per_token(&self, precision: KvPrecision) -> u64 {
        self.page_bytes(precision).div_ceil(self.page_tokens.max(1))
    }

    /// Bytes of KV for a sequence of so many tokens, in whole pages.
    pub fn kv_bytes(&self, tokens: u64, precision: KvPrecision) -> u64 {
        self.pages(tokens).saturating_mul(self.page_bytes(precision))
    }

    /// Bytes that must be promised to a turn: its pages at the precision of promises, and what those take beyond
    /// it that stay open. Of the shared tokens only whole pages count.
    pub fn turn_bytes(&self, prompt: u64, shared: u64, answer: u64) -> u64 {
        let page = self.page_tokens.max(1);
        let own = prompt.saturating_sub(shared / page * page).saturating_add(answer);
        let surplus = self.page_bytes(KvPrecision::F16).saturating_sub(self.page_bytes(self.floor));
        let open = self.fine_pages.min(self.pages(own)).saturating_mul(surplus);
        self.kv_bytes(own, self.floor).saturating_add(open)
    }

    /// Bytes of weights that must be in memory.
    pub fn weights(&self, residency: Residency) -> u64 {
        let mapped = match residency {
            Residency::Resident => self.weights_mapped,
            Residency::Streamed => self.weights_mapped.div_ceil(STREAMED_PART),
        };
        mapped.saturating_add(self.weights_anonymous)
    }

    /// Bytes that stay from the load on, whatever runs: weights, tokenizer and scratch.
    pub fn stationary(&self, residency: Residency) -> u64 {
        self.weights(residency).saturating_add(self.tokenizer).saturating_add(self.scratch)
    }

    /// Bytes with a sequence of so many tokens: what a load must have room for.
    pub fn with_context(&self, residency: Residency, tokens: u64) -> u64 {
        self.stationary(residency).saturating_add(self.turn_bytes(tokens, 0, 0))
    }

    fn pages(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page_tokens.max(1))
    }

    fn page_bytes(&self, precision: KvPrecision) -> u64 {
        self.page[precision as usize]
    }
}
