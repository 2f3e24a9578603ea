//! Which requests are taken, and when they begin.
//!
//! A request is promised the bytes of its prompt and its longest answer before it begins; one that doesn't say how long
//! its answer may be gets a reserve, and another one whenever that is used up. If there is no room for another, it
//! pauses until there is: what was begun is never cut.

use crate::memory::Member;
use crate::sequence::Sequence;
use crate::worker::Worker;
use crate::{Engine, EngineConfig, lock};
use lichen_generate::{FinishReason, GenerateError, Request, Task, TurnMemory, TurnSize};
use lichen_memory::{KvPrecision, ModelBytes, Reach, Slots, Turn, TurnOverBudget, TurnVerdict, admit_turn};
use lichen_sched::State;
use std::time::Instant;

impl Engine {
    /// Refuses what can't be served, whatever else runs.
    pub(crate) fn check(&self, request: &Request, config: &EngineConfig) -> Result<(), GenerateError> {
        let invalid = |reason: String| GenerateError::Invalid { param: "prompt", reason };
        if request.prompt.is_empty() {
            return Err(invalid("it has no tokens; give at least one".to_owned()));
        }
        if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= self.vocab) {
            return Err(invalid(format!("token {token} is outside the vocabulary of {}", self.vocab)));
        }
        match &self.member {
            Some(member) => self.check_memory(member, request, config),
            None => check_context(request, config),
        }
    }

    fn check_memory(
        &self,
        member: &Member,
        request: &Request,
        config: &EngineConfig,
    ) -> Result<(), GenerateError> {
        let wants_answer = request.task == Task::Generate;
        let max_tokens = if wants_answer { request.max_tokens.map(|tokens| tokens as u64) } else { Some(0) };
        let turn = Turn {
            prompt_tokens: request.prompt.len() as u64,
            shared_tokens: 0,
            max_tokens,
            default_tokens: config.answer_reserve as u64,
        };
        let slots = Slots { running: lock(&self.shared).stats.running, target: config.max_running.max(1) };
        let model = ModelBytes { context_cap: config.context_cap as u64, ..member.model() };
        let TurnVerdict::Refuse(refusal) = admit_turn(&model, turn, slots, &member.standing()) else {
            return Ok(());
        };
        let exceeds_context = refusal.exceeds_context();
        let size = Box::new(size(request, config, &refusal, member.limit_source()));
        let refused = &mut lock(&self.shared).refused;
        if exceeds_context {
            refused.over_context += 1;
            return Err(GenerateError::ContextOverBudget(size));
        }
        refused.over_memory += 1;
        Err(GenerateError::MemoryImpossible(size))
    }
}

fn check_context(request: &Request, config: &EngineConfig) -> Result<(), GenerateError> {
    let least = usize::from(request.task == Task::Generate);
    let size = TurnSize {
        prompt_tokens: request.prompt.len(),
        requested_tokens: request.max_tokens.unwrap_or(least),
        context_cap: config.context_cap,
        kv_bytes_per_token: config.kv_bytes_per_token,
        memory: None,
    };
    if size.prompt_tokens.saturating_add(size.requested_tokens) > size.context_cap {
        return Err(GenerateError::ContextOverBudget(Box::new(size)));
    }
    Ok(())
}

fn size(
    request: &Request,
    config: &EngineConfig,
    refusal: &TurnOverBudget,
    limit_source: String,
) -> TurnSize {
    TurnSize {
        prompt_tokens: request.prompt.len(),
        requested_tokens: usize::try_from(refusal.requested_tokens).unwrap_or(usize::MAX),
        context_cap: config.context_cap,
        kv_bytes_per_token: config.kv_bytes_per_token,
        memory: Some(TurnMemory {
            kv_bytes_needed: refusal.kv_bytes_needed,
            kv_bytes_available: refusal.kv_bytes_available,
            kv_bytes_alone: refusal.kv_bytes_alone,
            kv_bytes_per_token_floor: refusal.kv_bytes_per_token_floor,
            floor: match refusal.floor {
                KvPrecision::F16 => "f16",
                KvPrecision::Q8 => "q8",
                KvPrecision::Q5 => "q5",
                KvPrecision::Q4 => "q4",
            },
            max_prompt_tokens_now: refusal.max_prompt_tokens_now,
            max_prompt_tokens_alone: refusal.max_prompt_tokens_alone,
            max_requested_tokens_alone: refusal.max_answer_tokens_alone,
            limit_bytes: refusal.limit_bytes,
            limit_source,
            level: refusal.level.name(),
        }),
    }
}

impl Worker<'_> {
    /// Lets waiting sequences begin and paused ones come back, while there is room.
    pub(crate) fn begin(&mut self) {
        self.held = false;
        while let Some(id) = self.scheduler.candidate(self.now(), usize::MAX) {
            let tokens = self.sequences[&id].reserve(self.config.answer_reserve);
            self.settle(0);
            if self.scheduler.candidate(self.now(), self.room()) != Some(id)
                || !self.promise(tokens)
                || self.restore(id) && !self.promise(tokens)
            {
                self.held = true;
                break;
            }
            let sequence = self.sequences.get_mut(&id).expect("the scheduler knows living sequences");
            sequence.promised = tokens;
            let cached = match sequence.pooling() {
                Some(_) => 0,
                None => {
                    let tokens = &sequence.tokens()[..sequence.tokens().len() - 1];
                    self.cache.adopt(&mut *self.executor, id, tokens)
                }
            };
            self.totals.reused_tokens += cached as u64;
            self.totals.admissions.admitted += u64::from(sequence.is_new());
            sequence.begin(cached);
            self.scheduler.begin(id, cached);
            self.settle(0);
        }
        if self.scheduler.count(State::Waiting) > 0 {
            self.tell_waiting();
        }
    }

    /// Reads back what the cold tier knows of a sequence that is about to begin, and the cache doesn't. Returns whether
    /// it has settled the account, and with it given back what was promised.
    fn restore(&mut self, id: u64) -> bool {
        let sequence = &self.sequences[&id];
        let (tokens, session) = (sequence.tokens(), sequence.session);
        if sequence.pooling().is_some() {
            return false;
        }
        let Some(found) = self.cache.colder(&tokens[..tokens.len() - 1]) else { return false };
        let tokens = tokens[..found].to_vec();
        self.make_room(found.div_ceil(self.executor.page_tokens()));
        let ceiling = self.account.ceiling();
        self.cache.restore(&mut *self.executor, &tokens, session, ceiling);
        self.settle(0);
        true
    }

    /// Promises bytes for a sequence of so many tokens, if there is room beside what is promised. What would run alone
    /// in the whole process may reach into the margin.
    fn promise(&mut self, tokens: usize) -> bool {
        let Some(member) = self.account.member() else { return true };
        let reach = if member.ledger().totals().kv_promised == 0 { Reach::Margin } else { Reach::Budget };
        let turn =
            Turn { prompt_tokens: tokens as u64, shared_tokens: 0, max_tokens: Some(0), default_tokens: 0 };
        let slots = Slots { running: self.scheduler.running().count(), target: self.limits().max_running };
        // The cap may have been lowered since it was taken.
        let model = ModelBytes { context_cap: u64::MAX, ..member.model() };
        let need = match admit_turn(&model, turn, slots, &member.standing()) {
            TurnVerdict::Admit { reserve, .. } => reserve,
            TurnVerdict::Queue { need, .. } if reach == Reach::Margin => need,
            TurnVerdict::Queue { .. } | TurnVerdict::Refuse(_) => return false,
        };
        self.account.promise(self.promised() + need, reach)
    }

    /// Gives those whose reserve is used up another one. Where there is no room for it, who began last pauses; who is
    /// alone goes on page by page.
    pub(crate) fn extend(&mut self) {
        if self.account.member().is_none() {
            return;
        }
        let short = |worker: &Self, id: u64| worker.sequences[&id].outgrows_promise();
        let ids: Vec<u64> = self.scheduler.running().filter(|&id| short(self, id)).collect();
        for id in ids {
            while self.sequences[&id].outgrows_promise() && self.scheduler.state(id) != Some(State::Paused) {
                let before = self.sequences[&id].promised;
                let tokens = self.sequences[&id].reserve(self.config.answer_reserve);
                self.set_promised(id, tokens);
                if self.account.promise(self.promised(), Reach::Budget) {
                    continue;
                }
                self.set_promised(id, before);
                let running = self.scheduler.running().count();
                let parked = self.scheduler.park(running.saturating_sub(1).max(1));
                if parked.is_empty() {
                    let next = self.sequences[&id].tokens().len() + 1;
                    self.set_promised(id, next);
                }
                self.pause(&parked);
                self.settle(0);
            }
        }
    }

    fn set_promised(&mut self, id: u64, tokens: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.promised = tokens;
        }
    }

    /// Counts those that wait, and tells them if it is for others to end.
    fn tell_waiting(&mut self) {
        let (scheduler, held) = (&self.scheduler, self.held);
        let waiting = |id: &u64| scheduler.state(*id) == Some(State::Waiting);
        for (_, sequence) in self.sequences.iter_mut().filter(|(id, _)| waiting(id)) {
            if sequence.note_queued() {
                let counts = &mut self.totals.admissions;
                *(if held { &mut counts.queued_for_memory } else { &mut counts.queued_for_slot }) += 1;
            }
            if !held {
                sequence.tell_waiting();
            }
        }
    }

    pub(crate) fn end_cancelled(&mut self) {
        let cancelled = self.sequences.iter().filter(|(_, sequence)| sequence.is_cancelled());
        for id in cancelled.map(|(&id, _)| id).collect::<Vec<_>>() {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.finish(FinishReason::Cancelled);
            }
            self.remove(id);
        }
    }

    /// Ends those whose deadline has passed, and those that have waited too long for memory.
    pub(crate) fn end_expired(&mut self) {
        for id in self.scheduler.expire(self.now()) {
            if self.held && self.sequences.get(&id).is_some_and(Sequence::is_waiting) {
                self.time_out(id);
            } else if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.expire();
            }
            self.remove(id);
        }
        if !self.held {
            return;
        }
        let (now, timeout) = (Instant::now(), self.config.queue_timeout);
        let late = |sequence: &Sequence| sequence.is_waiting() && sequence.waited(now) >= timeout;
        let late: Vec<u64> = self.sequences.iter().filter(|(_, s)| late(s)).map(|(&id, _)| id).collect();
        for id in late {
            self.time_out(id);
            self.forget(id);
        }
    }

    fn time_out(&mut self, id: u64) {
        let (Some(member), Some(sequence)) = (self.account.member(), self.sequences.get_mut(&id)) else {
            return;
        };
        let tokens = sequence.reserve(self.config.answer_reserve);
        let owners = member.ledger().snapshot().largest.into_iter();
        let error = GenerateError::MemoryOverBudget {
            need_bytes: member.model().turn_bytes(tokens as u64, 0, 0),
            available_bytes: member.standing().available(),
            level: member.level().name(),
            largest: owners.map(|(owner, bytes)| (owner.to_string(), bytes)).collect(),
            waited: sequence.waited(Instant::now()),
            estimate: self.scheduler.estimate_wait(),
        };
        self.totals.admissions.timed_out += 1;
        sequence.fail(error);
    }
}
