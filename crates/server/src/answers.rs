//! The answers to one request, parsed as they come: one or several, all from engines that run on.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use lichen_api::{Error, Finish, Piece, Reply, TokenLogprob, Usage};
use lichen_generate::{Event, FinishReason, Request};
use lichen_text::{OutputEvent, OutputParser, OutputSetup};

use crate::exchange::{Exchange, unique};
use crate::host::Lease;
use crate::running::{Running, usage};

/// One answer that is wanted.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Which of the request's prompts it answers: answers to one prompt share its state.
    pub(crate) prompt: usize,
}

/// One step of the answers.
#[derive(Debug)]
pub(crate) enum Step {
    Piece(usize, Piece),
    End(usize, Finish),
    /// All have ended.
    Finish(Usage),
}

enum Progress {
    /// Starts when the first answer to the same prompt has read it.
    Waiting(Box<Request>),
    Running(Running),
    Ended,
}

struct Choice {
    progress: Progress,
    prompt: usize,
    parser: Option<OutputParser>,
    called_tools: bool,
}

/// The answers to one request. Dropping it cancels them.
pub(crate) struct Answers {
    model: Lease,
    exchange: Exchange,
    choices: Vec<Choice>,
    stop: Vec<String>,
    usage: Usage,
    steps: VecDeque<Step>,
    finished: bool,
}

impl Answers {
    /// Submits the first job of each prompt; the others follow. Without a setup answers are plain text.
    ///
    /// # Errors
    /// What the engine refuses at once.
    pub(crate) fn start(
        model: Lease,
        exchange: Exchange,
        jobs: Vec<Job>,
        setup: Option<&OutputSetup>,
    ) -> Result<Self, Error> {
        let stop = jobs.first().map(|job| job.request.stop.clone()).unwrap_or_default();
        let mut choices: Vec<Choice> = Vec::with_capacity(jobs.len());
        for Job { request, prompt } in jobs {
            let first = choices.last().is_none_or(|before| before.prompt != prompt);
            let progress = match first {
                true => Progress::Running(Running::start(&model, exchange.clone(), request)?),
                false => Progress::Waiting(Box::new(request)),
            };
            let parser = setup.map(|setup| OutputParser::new(setup.clone()));
            choices.push(Choice { progress, prompt, parser, called_tools: false });
        }
        let (usage, steps) = (Usage::default(), VecDeque::new());
        Ok(Self { model, exchange, choices, stop, usage, steps, finished: false })
    }

    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Waits until the first answer has begun, or waits for others to end: until then a refusal can still have a status.
    ///
    /// # Errors
    /// It was refused instead.
    pub(crate) async fn begun(&mut self) -> Result<(), Error> {
        match self.choices.first_mut().map(|choice| &mut choice.progress) {
            Some(Progress::Running(running)) => running.begun().await,
            _ => Ok(()),
        }
    }

    /// The next step, or why there is none.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Step, Error>> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Poll::Ready(Ok(step));
            }
            let mut moved = false;
            for index in 0..self.choices.len() {
                let Progress::Running(running) = &mut self.choices[index].progress else { continue };
                if let Poll::Ready(event) = running.poll_next(context) {
                    moved = true;
                    let taken = event.and_then(|event| self.take(index, event));
                    if let Err(error) = taken {
                        return Poll::Ready(Err(error));
                    }
                }
            }
            let ended = self.choices.iter().all(|choice| matches!(choice.progress, Progress::Ended));
            if ended && self.steps.is_empty() && !self.finished {
                self.finished = true;
                return Poll::Ready(Ok(Step::Finish(self.usage)));
            }
            if !moved {
                return Poll::Pending;
            }
        }
    }

    /// All answers as a whole.
    pub(crate) async fn whole(mut self) -> Result<(Vec<Reply>, Usage), Error> {
        let mut replies = vec![Reply::default(); self.choices.len()];
        loop {
            match std::future::poll_fn(|context| self.poll_next(context)).await? {
                Step::Piece(choice, piece) => replies[choice].push(piece),
                Step::End(choice, finish) => replies[choice].finish = Some(finish),
                Step::Finish(usage) => return Ok((replies, usage)),
            }
        }
    }

    fn take(&mut self, index: usize, event: Event) -> Result<(), Error> {
        match event {
            Event::Text { text, logprobs } => {
                self.parse(index, &text, &logprobs);
                self.start_others(index)
            }
            Event::Finished { reason, usage: used } => {
                let choice = &mut self.choices[index];
                choice.progress = Progress::Ended;
                if let Some(mut parser) = choice.parser.take() {
                    let rest = parser.finish();
                    self.push(index, rest, Vec::new());
                }
                let finish = self.finish(index, reason);
                self.exchange.note("finish_reason", finish.name());
                self.steps.push_back(Step::End(index, finish));
                self.count(index, &used);
                self.start_others(index)
            }
            // Not of a generation, or of no interest here.
            Event::Waiting | Event::Prefill { .. } | Event::Embedding(_) | Event::Failed(_) => Ok(()),
        }
    }

    fn parse(&mut self, index: usize, text: &str, logprobs: &[lichen_generate::TokenLogprob]) {
        let language = self.model.language();
        let named = |token: u32| {
            let bytes = language.token_bytes(token).to_vec();
            (String::from_utf8_lossy(&bytes).into_owned(), bytes)
        };
        let logprobs: Vec<TokenLogprob> = logprobs
            .iter()
            // The token that ends an answer is no part of its text.
            .filter(|entry| !language.is_control(entry.token))
            .map(|entry| {
                let (token, bytes) = named(entry.token);
                let top = entry.top.iter().map(|(token, logprob)| {
                    let (text, bytes) = named(*token);
                    (text, bytes, *logprob)
                });
                TokenLogprob { token, bytes, logprob: entry.logprob, top: top.collect() }
            })
            .collect();
        match &mut self.choices[index].parser {
            None => {
                let piece = Piece::Text { text: text.to_owned(), logprobs };
                self.steps.push_back(Step::Piece(index, piece));
            }
            Some(parser) => {
                let events = parser.push(text);
                let logprobs = if parser.in_text() { logprobs } else { Vec::new() };
                self.push(index, events, logprobs);
            }
        }
    }

    /// Queues what the parser found. The log-probabilities go with the last text.
    fn push(&mut self, index: usize, events: Vec<OutputEvent>, mut logprobs: Vec<TokenLogprob>) {
        let last_text = events.iter().rposition(|event| matches!(event, OutputEvent::Text(_)));
        for (at, event) in events.into_iter().enumerate() {
            let piece = match event {
                OutputEvent::Reasoning(text) => Piece::Reasoning(text),
                OutputEvent::Text(text) => {
                    let logprobs =
                        if last_text == Some(at) { std::mem::take(&mut logprobs) } else { Vec::new() };
                    Piece::Text { text, logprobs }
                }
                OutputEvent::ToolStart { index: call, name } => {
                    self.choices[index].called_tools = true;
                    Piece::ToolStart { index: call, id: unique("call"), name }
                }
                OutputEvent::ToolArguments { index, fragment } => Piece::ToolArguments { index, fragment },
            };
            self.steps.push_back(Step::Piece(index, piece));
        }
        if !logprobs.is_empty() {
            let piece = Piece::Text { text: String::new(), logprobs };
            self.steps.push_back(Step::Piece(index, piece));
        }
    }

    fn finish(&self, index: usize, reason: FinishReason) -> Finish {
        match reason {
            FinishReason::Length => Finish::Length,
            _ if self.choices[index].called_tools => Finish::ToolCalls,
            FinishReason::StopText(number) => {
                Finish::StopText(self.stop.get(number).cloned().unwrap_or_default())
            }
            FinishReason::Stop | FinishReason::Cancelled => Finish::Stop,
        }
    }

    /// The prompt counts once, with what its first answer found in the cache.
    fn count(&mut self, index: usize, used: &lichen_generate::Usage) {
        self.exchange.note_usage(used);
        let mut used = usage(used);
        let first = index == 0 || self.choices[index - 1].prompt != self.choices[index].prompt;
        if first {
            self.usage.prompt += used.prompt;
            self.usage.cached += used.cached;
        }
        (used.prompt, used.cached) = (0, 0);
        self.usage.add_answer(used);
    }

    /// Starts the other answers to the prompt that this one has read.
    fn start_others(&mut self, index: usize) -> Result<(), Error> {
        let prompt = self.choices[index].prompt;
        for choice in self.choices.iter_mut().filter(|choice| choice.prompt == prompt) {
            if let Progress::Waiting(request) = &mut choice.progress {
                let request = std::mem::take(&mut **request);
                let running = Running::start(&self.model, self.exchange.clone(), request)?;
                choice.progress = Progress::Running(running);
            }
        }
        Ok(())
    }
}
