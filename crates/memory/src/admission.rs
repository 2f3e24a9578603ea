//! Whether a turn or a model fits: now, later, or never.

use crate::model_bytes::{ModelBytes, Residency};
use crate::{Budget, KvPrecision, Level, Snapshot, Source};

/// A batch so small that it fits wherever anything does.
const SMALLEST_BATCH: u64 = 32;

/// What admission knows about memory at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Bytes that are ours at best.
    pub limit: u64,
    /// Where that comes from.
    pub source: Source,
    /// Bytes that are ours now.
    pub ceiling: u64,
    /// Bytes kept free.
    pub margin: u64,
    /// Bytes committed now; caches and whatever else can be revoked are none.
    pub committed: u64,
    /// Bytes that stay when every sequence and every other idle model is gone: the process, emergency, pinned
    /// models. The model that is asked about isn't among them.
    pub permanent: u64,
    /// How short memory is.
    pub level: Level,
}

impl Standing {
    /// What a budget and the ledger say, beside the bytes that are permanent.
    pub fn new(budget: &Budget, account: &Snapshot, permanent: u64, level: Level) -> Self {
        Self {
            limit: budget.limit,
            source: budget.source.clone(),
            ceiling: budget.ceiling,
            margin: budget.margin,
            committed: account.promised(),
            permanent,
            level,
        }
    }

    /// Bytes that can be promised now.
    fn available(&self) -> u64 {
        self.ceiling.min(self.limit).saturating_sub(self.margin).saturating_sub(self.committed)
    }

    /// Bytes that could be promised at best, beside so many of the model's own.
    fn alone(&self, own: u64) -> u64 {
        self.limit.saturating_sub(self.margin).saturating_sub(self.permanent).saturating_sub(own)
    }
}

/// A request for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens whose pages are pinned in the cache already.
    pub shared_tokens: u64,
    /// The most tokens to answer, if the request says.
    pub max_tokens: Option<u64>,
    /// The most tokens to answer if it doesn't.
    pub default_tokens: u64,
}

/// Slots of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// In use.
    pub running: usize,
    /// That may be in use at this level.
    pub target: usize,
}

/// What becomes of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnVerdict {
    /// It begins.
    Admit {
        /// Bytes to reserve as [`Class::KvFloor`](crate::Class::KvFloor).
        reserve: u64,
        /// The most tokens it answers.
        max_tokens: u64,
    },
    /// It fits, but not now: after others have ended, or alone with the smallest scratch.
    Queue {
        /// Bytes it needs.
        need: u64,
        /// Bytes that can be promised now.
        available: u64,
        /// Whether it waits for a slot; otherwise it waits for memory.
        for_slot: bool,
    },
    /// It fits not even alone.
    Refuse(ContextOverBudget),
}

/// A turn that fits not even alone, with what would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a prompt of {prompt_tokens} tokens with {requested_tokens} tokens to answer needs {kv_bytes_needed} \
     bytes of KV; {kv_bytes_budget} bytes and {context_cap} tokens are the most there is here \
     ({source_of_limit}); a prompt of {max_prompt_tokens_alone} tokens would fit, and of \
     {max_prompt_tokens_now} now"
)]
pub struct ContextOverBudget {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// The most tokens to answer.
    pub requested_tokens: u64,
    /// The most tokens of prompt and answer together.
    pub context_cap: u64,
    /// Bytes of KV for one token at the precision that running sequences start with.
    pub kv_bytes_per_token: u64,
    /// Bytes of KV for one token at the precision of promises.
    pub kv_bytes_per_token_floor: u64,
    /// The precision of promises.
    pub floor: KvPrecision,
    /// Bytes needed.
    pub kv_bytes_needed: u64,
    /// Bytes that could be promised if nothing else ran.
    pub kv_bytes_budget: u64,
    /// Bytes that can be promised now.
    pub kv_bytes_available: u64,
    /// The longest prompt, with as much to answer, that would be admitted now; 0 if none.
    pub max_prompt_tokens_now: u64,
    /// The longest prompt, with as much to answer, that would be admitted if nothing else ran; 0 if none.
    pub max_prompt_tokens_alone: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Where the limit comes from.
    pub source_of_limit: Source,
    /// How short memory is.
    pub level: Level,
}

/// What becomes of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadVerdict {
    /// It begins.
    Admit {
        /// Bytes to reserve for weights and the smallest scratch.
        reserve: u64,
    },
    /// It fits, but not now.
    Queue {
        /// Bytes it needs.
        need: u64,
        /// Bytes that can be promised now.
        available: u64,
        /// Bytes that idle models have to give up for it.
        unload: u64,
    },
    /// It fits not even alone.
    Refuse(ModelOverBudget),
}

/// A model that fits not even alone, with what would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs {need_bytes} bytes with a context of {context} tokens, and {available_bytes} of \
     {limit_bytes} ({source_of_limit}) are the most it can have; a context of {max_context} tokens would fit"
)]
pub struct ModelOverBudget {
    /// Bytes needed.
    pub need_bytes: u64,
    /// Bytes it could have if nothing else ran.
    pub available_bytes: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Where the limit comes from.
    pub source_of_limit: Source,
    /// Tokens of context that were asked for.
    pub context: u64,
    /// The longest context with which it would be admitted if nothing else ran; 0 if none.
    pub max_context: u64,
}

/// Decides about a turn.
pub fn admit_turn(model: &ModelBytes, turn: Turn, slots: Slots, standing: &Standing) -> TurnVerdict {
    let left = model.context_cap.saturating_sub(turn.prompt_tokens);
    let max_tokens = turn.max_tokens.unwrap_or(turn.default_tokens.min(left));
    let need = model.turn_bytes(turn.prompt_tokens, turn.shared_tokens, max_tokens);
    let available = standing.available();
    let alone = standing.alone(model.stationary(SMALLEST_BATCH, Residency::Resident));
    if left == 0 || max_tokens > left || need > alone {
        return TurnVerdict::Refuse(refusal(model, turn, (max_tokens, need), slots, standing));
    }
    let for_slot = slots.running >= slots.target;
    if for_slot || need > available {
        return TurnVerdict::Queue { need, available, for_slot };
    }
    TurnVerdict::Admit { reserve: need, max_tokens }
}

fn refusal(
    model: &ModelBytes,
    turn: Turn,
    (requested_tokens, kv_bytes_needed): (u64, u64),
    slots: Slots,
    standing: &Standing,
) -> ContextOverBudget {
    let available = standing.available();
    let alone = standing.alone(model.stationary(SMALLEST_BATCH, Residency::Resident));
    let now = if slots.running < slots.target { available.min(alone) } else { 0 };
    ContextOverBudget {
        prompt_tokens: turn.prompt_tokens,
        requested_tokens,
        context_cap: model.context_cap,
        kv_bytes_per_token: model.bytes_per_token(KvPrecision::F16),
        kv_bytes_per_token_floor: model.bytes_per_token(model.floor),
        floor: model.floor,
        kv_bytes_needed,
        kv_bytes_budget: alone,
        kv_bytes_available: available,
        max_prompt_tokens_now: longest_prompt(model, turn, now),
        max_prompt_tokens_alone: longest_prompt(model, turn, alone),
        limit_bytes: standing.limit,
        source_of_limit: standing.source.clone(),
        level: standing.level,
    }
}

/// The longest prompt without shared tokens whose turn needs at most so many bytes.
fn longest_prompt(model: &ModelBytes, turn: Turn, bytes: u64) -> u64 {
    // One token less than the context, at most, since there must be one to answer.
    let most = model.context_cap.saturating_sub(turn.max_tokens.unwrap_or(1).max(1));
    largest(most, |prompt| {
        let answer = turn.max_tokens.unwrap_or(turn.default_tokens.min(model.context_cap - prompt));
        model.turn_bytes(prompt, 0, answer) <= bytes
    })
}

/// The largest number from 1 to `most` for which `fits` holds; 0 if none. What fits must fit if it is
/// smaller, too.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Decides about a load with a context of so many tokens guaranteed to one sequence. `floors` is what the
/// loaded models need with the same guarantee, and `idle` how much of it belongs to models that could be
/// unloaded.
pub fn admit_load(
    model: &ModelBytes,
    residency: Residency,
    context: u64,
    (floors, idle): (u64, u64),
    standing: &Standing,
) -> LoadVerdict {
    let reserve = model.stationary(SMALLEST_BATCH, residency);
    let need = reserve.saturating_add(model.turn_bytes(context, 0, 0));
    let alone = standing.alone(0);
    if need > alone || context > model.context_cap {
        let fits = |context| reserve.saturating_add(model.turn_bytes(context, 0, 0)) <= alone;
        return LoadVerdict::Refuse(ModelOverBudget {
            need_bytes: need,
            available_bytes: alone,
            limit_bytes: standing.limit,
            source_of_limit: standing.source.clone(),
            context,
            max_context: largest(model.context_cap, fits),
        });
    }
    let guaranteed = standing.ceiling.min(standing.limit).saturating_sub(standing.margin);
    let room = guaranteed.saturating_sub(standing.permanent).saturating_sub(floors);
    let available = standing.available().min(room);
    if need <= available && standing.level < Level::Critical {
        return LoadVerdict::Admit { reserve };
    }
    LoadVerdict::Queue { need, available, unload: (need - need.min(available)).min(idle) }
}
