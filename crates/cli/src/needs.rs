//! What a model needs, from its file and the limits of its engine. `bench/estimate.py` holds it against what a server
//! takes.

use std::num::NonZeroU32;

use anyhow::Result;
use lichen_backend::KvPrecision;
use lichen_cpu::PAGE_TOKENS;
use lichen_engine::{EngineConfig, FINE_PAGES};
use lichen_format::Strings;
use lichen_memory::{ModelBytes, Residency, longest_context};

use crate::load::{ComputeArgs, Limits, Opened, PRECISIONS, QueueArgs};
use crate::memory::Memory;

/// What one token takes in the tables of a tokenizer, as measured: its text, its place in an index and its merges, with
/// what the allocator keeps of the metadata that they are read from.
const TOKEN_BYTES: u64 = 72;
/// A model that can't have so many tokens of context is not worth loading unasked.
const SHORTEST_CONTEXT: usize = 512;

impl Opened {
    /// Bytes that the model needs under these limits before it has taken a request. A context cap that nobody asked for
    /// is the longest that fits where no other model is loaded.
    ///
    /// # Errors
    /// A tensor is missing.
    pub(crate) fn estimate(
        &self,
        compute: &ComputeArgs,
        queue: &QueueArgs,
        limits: Limits,
        memory: &Memory,
    ) -> Result<u64> {
        let config = limits.config(queue, &self.spec, compute.kv_precision(queue));
        let needs = self.model_bytes(&config)?;
        let alone = longest_within(&needs, memory, memory.for_models());
        let gives_way = limits.ctx_cap.is_none() && alone >= SHORTEST_CONTEXT;
        let context = if gives_way { needs.context_cap.min(alone as u64) } else { needs.context_cap };
        Ok(needs.with_context(Residency::Resident, context))
    }

    /// The limits of its engine and what it needs with them. A context cap that nobody asked for gives way to memory:
    /// to what there is now within the given room, or else to what there is where no other model is loaded, so that
    /// others may have to go.
    ///
    /// # Errors
    /// A tensor is missing.
    pub(crate) fn fit(
        &self,
        wanted: impl Fn(Option<NonZeroU32>) -> EngineConfig,
        ctx_cap: Option<NonZeroU32>,
        memory: Option<(&Memory, u64)>,
    ) -> Result<(EngineConfig, ModelBytes)> {
        let config = wanted(ctx_cap);
        let needs = self.model_bytes(&config)?;
        let (Some((memory, room)), None) = (memory, ctx_cap) else { return Ok((config, needs)) };
        let now = memory.longest_context(&self.path, &needs).min(longest_within(&needs, memory, room));
        let alone = longest_within(&needs, memory, memory.for_models());
        let worth_it = |tokens: &usize| *tokens >= SHORTEST_CONTEXT;
        let fits = [now, alone].into_iter().find(worth_it).unwrap_or(config.context_cap);
        if fits >= config.context_cap {
            return Ok((config, needs));
        }
        let config = wanted(u32::try_from(fits).ok().and_then(NonZeroU32::new));
        let needs = self.model_bytes(&config)?;
        Ok((config, needs))
    }

    /// What the model needs under these limits: what its load is admitted with, and later its requests.
    ///
    /// # Errors
    /// A tensor is missing.
    pub(crate) fn model_bytes(&self, config: &EngineConfig) -> Result<ModelBytes> {
        let kv = self.spec.lower().kv;
        let page = |precision| lichen_cpu::page_bytes(&kv, precision);
        let single = config.kv_precision == KvPrecision::F32;
        let plan = self.spec.lower();
        let (tokens, rows) = (config.prefill_tokens + config.max_running, config.max_running);
        // A drawing of one token has every token with its weight.
        let draw = (plan.vocab * size_of::<(u32, f32)>()) as u64;
        Ok(ModelBytes {
            page: PRECISIONS.map(|precision| page(if single { KvPrecision::F32 } else { precision })),
            page_tokens: PAGE_TOKENS as u64,
            fine_pages: FINE_PAGES as u64,
            floor: config.promised_precision(),
            context_cap: config.context_cap as u64,
            scratch: lichen_cpu::scratch_bytes(&plan, tokens, rows) + draw,
            weights_mapped: self.spec.weight_bytes(&self.checkpoint)? + self.head_bytes(),
            weights_anonymous: 0,
            tokenizer: self.tokenizer_bytes(),
        })
    }

    /// Bytes of the file before its tensors. They are read once and stay mapped.
    fn head_bytes(&self) -> u64 {
        let tensors = self.checkpoint.tensors.iter();
        let tensors: u64 = tensors.map(|tensor| self.checkpoint.data(tensor).len() as u64).sum();
        std::fs::metadata(&self.path).map_or(0, |file| file.len().saturating_sub(tensors))
    }

    fn tokenizer_bytes(&self) -> u64 {
        let tokens = self.checkpoint.metadata.strings("tokenizer.ggml.tokens").map_or(0, Strings::len);
        tokens as u64 * TOKEN_BYTES
    }
}

/// Tokens of the longest context with which the model needs at most so many bytes.
fn longest_within(needs: &ModelBytes, memory: &Memory, bytes: u64) -> usize {
    usize::try_from(longest_context(needs, memory.residency(), bytes)).unwrap_or(usize::MAX)
}
