//! The step loop: take jobs, build one ragged batch, run it, sample.

use crate::EngineConfig;
use crate::sequence::Sequence;
use lichen_backend::Executor;
use lichen_generate::{Event, FinishReason, GenerateError, Request, Sink};
use lichen_op::Batch;
use lichen_text::Tokenizer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) submitted: Instant,
    pub(crate) prompt_tokens: usize,
    sink: Sink,
}

impl Job {
    pub(crate) fn new(request: Request, sink: Sink, cancelled: Arc<AtomicBool>) -> Self {
        Self { request, cancelled, submitted: Instant::now(), prompt_tokens: 0, sink }
    }

    pub(crate) fn report(&mut self, event: Event) {
        (self.sink)(event);
    }
}

pub(crate) struct Worker {
    executor: Box<dyn Executor>,
    incoming: Receiver<Job>,
    waiting: Arc<AtomicUsize>,
    config: EngineConfig,
    next_id: u64,
    open: bool,
}

impl Worker {
    pub(crate) fn new(
        executor: Box<dyn Executor>,
        incoming: Receiver<Job>,
        waiting: Arc<AtomicUsize>,
        config: EngineConfig,
    ) -> Self {
        Self { executor, incoming, waiting, config, next_id: 0, open: true }
    }

    pub(crate) fn work(mut self, tokenizer: &Tokenizer) {
        let mut running: Vec<Sequence<'_>> = Vec::new();
        loop {
            self.admit(&mut running, tokenizer);
            if !self.open {
                running.iter_mut().for_each(|sequence| sequence.finish(FinishReason::Cancelled));
                return;
            }
            self.end(&mut running, |sequence| {
                let cancelled = sequence.is_cancelled();
                if cancelled {
                    sequence.finish(FinishReason::Cancelled);
                }
                cancelled
            });
            self.step(&mut running, tokenizer);
        }
    }

    /// Takes waiting jobs while there is room; sleeps only if nothing runs.
    fn admit<'t>(&mut self, running: &mut Vec<Sequence<'t>>, tokenizer: &'t Tokenizer) {
        while self.open && running.len() < self.config.max_running.max(1) {
            let job = if running.is_empty() {
                self.incoming.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.incoming.try_recv()
            };
            match job {
                Ok(job) => {
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                    running.push(Sequence::new(self.next_id, job, tokenizer, self.config.context_cap));
                    self.next_id += 1;
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.open = false,
            }
        }
    }

    /// Removes the sequences for which `is_over` says so, and their state.
    fn end(&mut self, running: &mut Vec<Sequence<'_>>, mut is_over: impl FnMut(&mut Sequence<'_>) -> bool) {
        running.retain_mut(|sequence| {
            let over = is_over(sequence);
            if over {
                self.executor.drop_sequence(sequence.id);
            }
            !over
        });
    }

    /// One step over all running sequences: decoding ones get their token, prompts share the prefill budget.
    fn step(&mut self, running: &mut Vec<Sequence<'_>>, tokenizer: &Tokenizer) {
        let mut batch = Batch::default();
        let mut budget = self.config.prefill_tokens.max(1);
        // Per sequence of the batch: tokens computed, and whether its last row is sampled.
        let mut shares: Vec<(usize, bool)> = Vec::with_capacity(running.len());
        for sequence in running.iter() {
            let pending = sequence.pending();
            let count = if pending.len() == 1 { 1 } else { pending.len().min(budget) };
            if count == 0 {
                shares.push((0, false));
                continue;
            }
            if pending.len() > 1 {
                budget -= count;
            }
            batch.push(sequence.id, sequence.past, &pending[..count], false);
            let sampled = count == pending.len();
            if !sampled {
                batch.outputs.pop();
            }
            shares.push((count, sampled));
        }
        if batch.tokens.is_empty() {
            return;
        }
        match self.executor.run(&batch) {
            Ok(mut logits) => self.hand_out(running, &shares, &mut logits, tokenizer),
            Err(error) => {
                let error = GenerateError::Engine(error.to_string());
                self.end(running, |sequence| {
                    sequence.fail(error.clone());
                    true
                });
            }
        }
    }

    fn hand_out(
        &mut self,
        running: &mut Vec<Sequence<'_>>,
        shares: &[(usize, bool)],
        logits: &mut [f32],
        tokenizer: &Tokenizer,
    ) {
        let mut rows = logits.chunks_exact_mut(self.executor.vocab());
        let mut shares = shares.iter();
        self.end(running, |sequence| {
            let &(computed, sampled) = shares.next().expect("one share per running sequence");
            sequence.advance(computed);
            if !sampled {
                return false;
            }
            let row = rows.next().expect("one row of logits per sampled sequence");
            sequence.take(row, tokenizer)
        });
    }
}
