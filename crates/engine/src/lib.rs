//! From requests to tokens: one thread owns a model, batches the requests that run, samples and reports.

mod sampler;
mod sequence;
mod worker;

pub use sampler::Sampler;

use lichen_backend::Executor;
use lichen_generate::{Generate, GenerateError, Request, Sink, Ticket};
use lichen_text::Tokenizer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use worker::Job;

/// Limits of one engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Most tokens of prompt and answer together.
    pub context_cap: usize,
    /// Most prompt tokens that one step works on.
    pub prefill_tokens: usize,
    /// Most requests that run at once; others wait.
    pub max_running: usize,
    /// Most requests that wait; others are refused.
    pub queue_limit: usize,
    /// Bytes of keys and values that one token takes; errors and the account of memory tell it.
    pub kv_bytes_per_token: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            context_cap: 4096,
            prefill_tokens: 256,
            max_running: 8,
            queue_limit: 64,
            kv_bytes_per_token: 0,
        }
    }
}

/// A model and the thread that runs it. Dropping it ends the thread; requests then are reported as cancelled.
pub struct Engine {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    waiting: Arc<AtomicUsize>,
    vocab: usize,
    config: EngineConfig,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        executor: Box<dyn Executor>,
        tokenizer: Arc<Tokenizer>,
        config: EngineConfig,
    ) -> std::io::Result<Self> {
        let (jobs, incoming) = std::sync::mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let vocab = executor.vocab();
        let worker = worker::Worker::new(executor, incoming, waiting.clone(), config.clone());
        let thread = std::thread::Builder::new()
            .name("lichen-engine".to_owned())
            .spawn(move || worker.work(&tokenizer))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), waiting, vocab, config })
    }

    fn check(&self, request: &Request) -> Result<(), GenerateError> {
        let invalid = |reason: String| GenerateError::Invalid { param: "prompt", reason };
        if request.prompt.is_empty() {
            return Err(invalid("it has no tokens; give at least one".to_owned()));
        }
        if let Some(token) = request.prompt.iter().find(|&&token| token as usize >= self.vocab) {
            return Err(invalid(format!("token {token} is outside the vocabulary of {}", self.vocab)));
        }
        let (prompt_tokens, context_cap) = (request.prompt.len(), self.config.context_cap);
        let kv_bytes_per_token = self.config.kv_bytes_per_token;
        let requested_tokens = request.max_tokens.unwrap_or(1);
        if prompt_tokens.saturating_add(requested_tokens) > context_cap {
            return Err(GenerateError::ContextOverBudget {
                prompt_tokens,
                requested_tokens,
                context_cap,
                kv_bytes_per_token,
            });
        }
        Ok(())
    }
}

impl Generate for Engine {
    fn context_cap(&self) -> usize {
        self.config.context_cap
    }

    fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, GenerateError> {
        self.check(&request)?;
        let limit = self.config.queue_limit;
        self.waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |queued| {
                (queued < limit).then_some(queued + 1)
            })
            .map_err(|queued| GenerateError::QueueFull { queued, limit })?;
        let (ticket, cancelled) = Ticket::new();
        let jobs = self.jobs.as_ref().expect("the sender lives until the engine is dropped");
        jobs.send(Job::new(request, sink, cancelled))
            .map_err(|_| GenerateError::Engine("the engine's thread has ended".to_owned()))?;
        Ok(ticket)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook; there is nothing to add here.
            let _ = thread.join();
        }
    }
}
