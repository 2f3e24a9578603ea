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

/// KV of one layer with attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// Bytes of keys and values for one token, by precision in the order of [`KvPrecision::ALL`].
    pub per_token: [u64; 4],
    /// How many tokens back it looks, if not all.
    pub window: Option<u64>,
}

/// What a model needs, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelBytes {
    /// Layers with attention.
    pub layers: Vec<KvLayer>,
    /// Tokens of one page of KV.
    pub page_tokens: u64,
    /// The precision of promises.
    pub floor: KvPrecision,
    /// The most tokens of prompt and answer together.
    pub context_cap: u64,
    /// Tokens of one prefill batch.
    pub batch: u64,
    /// Activations for one token of a batch.
    pub scratch_per_token: u64,
    /// Logits of one token.
    pub logits_row: u64,
    /// Weights in clean pages of a mapped file.
    pub weights_mapped: u64,
    /// Weights in memory of our own.
    pub weights_anonymous: u64,
    /// Recurrent state of one sequence, with the checkpoints that a running one must have.
    pub state: u64,
    /// Buffers for input and output of one sequence.
    pub buffers: u64,
}

impl KvLayer {
    fn bytes(&self, precision: KvPrecision) -> u64 {
        self.per_token[precision as usize]
    }
}

impl ModelBytes {
    /// Bytes of KV for one more token, as long as no window is full.
    pub fn bytes_per_token(&self, precision: KvPrecision) -> u64 {
        self.sum(|layer| layer.bytes(precision))
    }

    /// Bytes of KV for a sequence of so many tokens, in whole pages. A layer with a window keeps that and one
    /// batch.
    pub fn kv_bytes(&self, tokens: u64, precision: KvPrecision) -> u64 {
        self.sum(|layer| {
            let kept = layer.window.map_or(tokens, |window| tokens.min(window.saturating_add(self.batch)));
            let page = self.page_tokens.max(1);
            kept.div_ceil(page).saturating_mul(page).saturating_mul(layer.bytes(precision))
        })
    }

    /// Bytes that the newest page of a sequence takes beyond the precision of promises: it isn't full, so it
    /// can't be requantised.
    pub fn tail_bytes(&self) -> u64 {
        let page = |precision| self.bytes_per_token(precision).saturating_mul(self.page_tokens);
        page(KvPrecision::F16).saturating_sub(page(self.floor))
    }

    /// Bytes of activations for a batch, with so many rows of logits.
    pub fn scratch_bytes(&self, batch: u64, rows: u64) -> u64 {
        batch.saturating_mul(self.scratch_per_token).saturating_add(rows.saturating_mul(self.logits_row))
    }

    /// Bytes that must be promised to a turn. Of the shared tokens only whole pages count.
    pub fn turn_bytes(&self, prompt: u64, shared: u64, answer: u64) -> u64 {
        let page = self.page_tokens.max(1);
        let own = prompt.saturating_sub(shared / page * page).saturating_add(answer);
        [self.tail_bytes(), self.state, self.buffers]
            .into_iter()
            .fold(self.kv_bytes(own, self.floor), u64::saturating_add)
    }

    /// Bytes of weights, and of scratch for a batch with one row of logits.
    pub fn stationary(&self, batch: u64, residency: Residency) -> u64 {
        let mapped = match residency {
            Residency::Resident => self.weights_mapped,
            Residency::Streamed => self.weights_mapped.div_ceil(STREAMED_PART),
        };
        let scratch = self.scratch_bytes(batch.min(self.batch), 1);
        mapped.saturating_add(self.weights_anonymous).saturating_add(scratch)
    }

    fn sum(&self, bytes: impl Fn(&KvLayer) -> u64) -> u64 {
        self.layers.iter().map(bytes).fold(0, u64::saturating_add)
    }
}
