//! Whether a turn or a model fits: now, later, or never.

use crate::model_bytes::{ModelBytes, Residency};
use crate::{KvPrecision, Level};

/// What admission knows about memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Bytes that are ours at best.
    pub limit: u64,
    /// Bytes that are ours now.
    pub ceiling: u64,
    /// Bytes kept free.
    pub margin: u64,
    /// Bytes committed now; caches and whatever else can be revoked are none.
    pub committed: u64,
    /// Bytes that stay whatever ends. For a turn: all that is no KV, its own model included. For a load: what stays
    /// when every model is gone.
    pub permanent: u64,
    /// How short memory is.
    pub level: Level,
}

impl Standing {
    /// Bytes that can be promised now.
    pub fn available(&self) -> u64 {
        self.guaranteed().saturating_sub(self.committed)
    }

    /// Bytes that could be promised if nothing else ran and nobody else took memory.
    pub fn alone(&self) -> u64 {
        self.limit.saturating_sub(self.margin).saturating_sub(self.permanent)
    }

    /// Bytes that may be committed now, to all.
    fn guaranteed(&self) -> u64 {
        self.ceiling.min(self.limit).saturating_sub(self.margin)
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
    /// It fits, but not now: after others have ended.
    Queue {
        /// Bytes it needs.
        need: u64,
        /// Bytes that can be promised now.
        available: u64,
        /// Whether it waits for a slot; otherwise it waits for memory.
        for_slot: bool,
    },
    /// It fits not even alone.
    Refuse(Box<TurnOverBudget>),
}

/// A turn that fits not even alone, with what would fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a prompt of {prompt_tokens} tokens with {requested_tokens} tokens to answer needs {kv_bytes_needed} \
     bytes of KV; {kv_bytes_alone} bytes and {context_cap} tokens are the most there is here; a prompt of \
     {max_prompt_tokens_alone} tokens would fit, and of {max_prompt_tokens_now} now"
)]
pub struct TurnOverBudget {
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
    pub kv_bytes_alone: u64,
    /// Bytes that can be promised now.
    pub kv_bytes_available: u64,
    /// The longest prompt, with as much to answer, that would be admitted now; 0 if none.
    pub max_prompt_tokens_now: u64,
    /// The longest prompt, with as much to answer, that would be admitted if nothing else ran; 0 if none.
    pub max_prompt_tokens_alone: u64,
    /// The longest answer to this prompt that would be admitted if nothing else ran; 0 if none.
    pub max_answer_tokens_alone: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// How short memory is.
    pub level: Level,
}

impl TurnOverBudget {
    /// Whether it is too long for the context; otherwise it is too large for the memory.
    pub fn exceeds_context(&self) -> bool {
        self.prompt_tokens.saturating_add(self.requested_tokens) > self.context_cap
    }
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
     {limit_bytes} are the most it can have; a context of {max_context} tokens would fit"
)]
pub struct ModelOverBudget {
    /// Bytes needed.
    pub need_bytes: u64,
    /// Bytes it could have if nothing else ran.
    pub available_bytes: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Tokens of context that were asked for.
    pub context: u64,
    /// The longest context with which it would be admitted if nothing else ran; 0 if none.
    pub max_context: u64,
}

/// Decides about a turn.
pub fn admit_turn(model: &ModelBytes, turn: Turn, slots: Slots, standing: &Standing) -> TurnVerdict {
    let max_tokens = turn.answer(model, turn.prompt_tokens);
    let need = model.turn_bytes(turn.prompt_tokens, turn.shared_tokens, max_tokens);
    let (available, alone) = (standing.available(), standing.alone());
    if turn.prompt_tokens.saturating_add(max_tokens) > model.context_cap || need > alone {
        return TurnVerdict::Refuse(Box::new(refusal(model, turn, (max_tokens, need), slots, standing)));
    }
    let for_slot = slots.running >= slots.target;
    if for_slot || need > available {
        return TurnVerdict::Queue { need, available, for_slot };
    }
    TurnVerdict::Admit { reserve: need, max_tokens }
}

impl Turn {
    /// The most tokens to answer a prompt of so many tokens; at least one where the request doesn't say.
    fn answer(&self, model: &ModelBytes, prompt: u64) -> u64 {
        let left = model.context_cap.saturating_sub(prompt);
        self.max_tokens.unwrap_or(self.default_tokens.min(left).max(1))
    }
}

fn refusal(
    model: &ModelBytes,
    turn: Turn,
    (requested_tokens, kv_bytes_needed): (u64, u64),
    slots: Slots,
    standing: &Standing,
) -> TurnOverBudget {
    let (available, alone) = (standing.available(), standing.alone());
    let now = if slots.running < slots.target { available.min(alone) } else { 0 };
    let left = model.context_cap.saturating_sub(turn.prompt_tokens);
    let fits = |answer| model.turn_bytes(turn.prompt_tokens, turn.shared_tokens, answer) <= alone;
    TurnOverBudget {
        prompt_tokens: turn.prompt_tokens,
        requested_tokens,
        context_cap: model.context_cap,
        kv_bytes_per_token: model.bytes_per_token(KvPrecision::F16),
        kv_bytes_per_token_floor: model.bytes_per_token(model.floor),
        floor: model.floor,
        kv_bytes_needed,
        kv_bytes_alone: alone,
        kv_bytes_available: available,
        max_prompt_tokens_now: longest_prompt(model, turn, now),
        max_prompt_tokens_alone: longest_prompt(model, turn, alone),
        max_answer_tokens_alone: largest(left, fits),
        limit_bytes: standing.limit,
        level: standing.level,
    }
}

/// The longest prompt without shared tokens whose turn needs at most so many bytes.
fn longest_prompt(model: &ModelBytes, turn: Turn, bytes: u64) -> u64 {
    let most = model.context_cap.saturating_sub(turn.max_tokens.unwrap_or(1));
    largest(most, |prompt| model.turn_bytes(prompt, 0, turn.answer(model, prompt)) <= bytes)
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
    let reserve = model.stationary(residency);
    let need = model.with_context(residency, context);
    let alone = standing.alone();
    if need > alone || context > model.context_cap {
        return LoadVerdict::Refuse(ModelOverBudget {
            need_bytes: need,
            available_bytes: alone,
            limit_bytes: standing.limit,
            context,
            max_context: longest_context(model, residency, alone),
        });
    }
    let available = load_room(floors, standing);
    if need <= available && standing.level < Level::Critical {
        return LoadVerdict::Admit { reserve };
    }
    LoadVerdict::Queue { need, available, unload: (need - need.min(available)).min(idle) }
}

/// Bytes that a load could have now beside the floors of the loaded models.
pub fn load_room(floors: u64, standing: &Standing) -> u64 {
    let room = standing.guaranteed().saturating_sub(standing.permanent).saturating_sub(floors);
    standing.available().min(room)
}

/// The longest context with which a model needs at most so many bytes; 0 if none.
pub fn longest_context(model: &ModelBytes, residency: Residency, bytes: u64) -> u64 {
    largest(model.context_cap, |context| model.with_context(residency, context) <= bytes)
}
