//! One generation, watched from a terminal.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use lichen_generate::{Event, Generate, Request, Usage};
use lichen_server::{Conversation, Language};
use serde_json::{Map, Value};

use crate::language::ModelLanguage;
use crate::{machine, output};

/// How often a wait looks at the flag that stops it.
const PATIENCE: Duration = Duration::from_millis(50);

/// A complete answer.
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) usage: Usage,
}

/// Runs a request to its end and gives out text as it comes. Setting `stop` ends it early, with what is there so far.
///
/// # Errors
/// The engine refuses or fails, or the text can't be given out.
pub(crate) fn generate(
    engine: &dyn Generate,
    request: Request,
    stop: &AtomicBool,
    mut show: impl FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let (sender, events) = channel();
    // Sending fails only after this function has returned early, and then nobody wants the event.
    let ticket = engine.submit(request, Box::new(move |event| drop(sender.send(event))))?;
    let mut text = String::new();
    loop {
        match events.recv_timeout(PATIENCE) {
            Ok(Event::Waiting | Event::Prefill { .. } | Event::Embedding(_)) => {}
            Ok(Event::Text { text: piece, .. }) => {
                show(&piece)?;
                text.push_str(&piece);
            }
            Ok(Event::Finished { usage, .. }) => return Ok(Answer { text, usage }),
            Ok(Event::Failed(error)) => bail!(error),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => bail!("the engine ended without an answer"),
        }
        if stop.load(Ordering::Acquire) {
            ticket.cancel();
        }
    }
}

/// The prompt for a conversation, `messages` as in the OpenAI API.
///
/// # Errors
/// The model has no chat template, or its template does not take the conversation.
pub(crate) fn chat_prompt(language: &ModelLanguage, messages: &[Value]) -> Result<Vec<u32>> {
    let messages = Value::Array(messages.to_vec());
    let variables = Map::new();
    let conversation =
        Conversation { messages: &messages, tools: None, add_generation_prompt: true, variables: &variables };
    let prompt = language.apply_template(conversation).map_err(|reason| anyhow!(reason))?;
    // The template writes the special tokens itself.
    Ok(language.encode(&prompt, false, true))
}

/// The closing line on stderr: speeds and peak memory.
pub(crate) fn report(usage: &Usage) {
    let per_second = |tokens: usize, time: Duration| {
        if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
    };
    let prefilled = usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens);
    // The first token of the answer comes out of the prompt's last step, so its time is the prompt's.
    let rate = match usage.completion_tokens {
        0 | 1 => String::new(),
        tokens => format!(", {:.1} tokens/s", per_second(tokens - 1, usage.decode_time)),
    };
    output::note(format_args!(
        "prompt: {} tokens, {:.1} tokens/s; answer: {} tokens{rate}; peak memory: {}",
        usage.prompt_tokens,
        per_second(prefilled, usage.time_to_first_token),
        usage.completion_tokens,
        machine::peak_memory().map_or_else(|| "unknown".to_owned(), output::bytes),
    ));
}
