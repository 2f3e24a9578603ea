//! From a checked request to what the engine and the parser of its answer need.

use lichen_api::{CompletionRequest, Error, Format, Prompt, Tool, ToolChoice, Turn};
use lichen_constraint::Grammar;
use lichen_generate::{Constraint, Request, Sampling, Thinking};
use lichen_text::{CallableTool, OutputSetup, ThinkingMarks};
use serde_json::{Map, Value};

use crate::answers::Job;
use crate::exchange::Exchange;
use crate::language::Conversation;
use crate::system_messages::apply_template;
use crate::{Model, sessions};

/// A request that can be submitted.
pub(crate) struct Prepared {
    pub(crate) jobs: Vec<Job>,
    /// How answers are taken apart; `None` leaves them as they are.
    pub(crate) setup: Option<OutputSetup>,
    /// Tokens of all prompts together.
    pub(crate) prompt_tokens: usize,
}

/// Prepares the next message of a conversation.
///
/// # Errors
/// [`Error::InvalidRequest`] naming what the model or its template can't do.
pub(crate) fn turn(model: &Model, exchange: &Exchange, turn: &Turn) -> Result<Prepared, Error> {
    let prompt = render(model, turn)?;
    let language = model.language();
    // The template writes the special tokens itself.
    let tokens = language.encode(&prompt, false, true);
    let style = model.style();
    let thinking = style.thinking.map(|marks| {
        // A message that is continued is past its thinking, and so is one whose template closed it.
        let begun = prompt.trim_end().ends_with(marks.open);
        (marks, begun)
    });
    let tools = offered(turn);
    let mut request = base(model, exchange, &turn.sampling, turn.session.as_deref())?;
    request.logprobs = turn.logprobs;
    request.constraint = constraint(model, turn, &tools)?;
    request.thinking = thinking.map(|(marks, begun)| watch(model, turn, marks, begun));
    if !tools.is_empty() {
        request.visible = visible(model, style.tools.marks());
    }
    if let Some((marks, _)) = thinking {
        request.visible.extend(visible(model, &[marks.open, marks.close]));
    }
    let tools = (!tools.is_empty()).then_some((style.tools, tools));
    let setup = OutputSetup { thinking, tools, calls_or_text: turn.format != Format::Text };
    let prompt_tokens = tokens.len();
    request.prompt = tokens;
    let jobs = several(request, turn.choices, 0).collect();
    Ok(Prepared { jobs, setup: Some(setup), prompt_tokens })
}

/// The prompt of a turn as text.
///
/// # Errors
/// [`Error::InvalidRequest`] with the template's complaint.
pub(crate) fn render(model: &Model, turn: &Turn) -> Result<String, Error> {
    let tools: Vec<Value> = match turn.tool_choice {
        ToolChoice::None => Vec::new(),
        _ => turn.tools.iter().map(Tool::template_form).collect(),
    };
    let forced = matches!(turn.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    if !tools.is_empty() && !forced && !model.style().shows_tools {
        let reason = "are not shown to this model by its chat template; leave them out, force one with \
                      tool_choice, or use another model";
        return Err(Error::invalid("tools", reason));
    }
    let mut variables: Map<String, Value> = Map::new();
    if let Some(enabled) = turn.reasoning.enabled {
        variables.insert("enable_thinking".into(), Value::Bool(enabled));
    }
    variables.extend(turn.template_variables.clone());
    let tools = (!tools.is_empty()).then_some(Value::Array(tools));
    let apply = |messages: &Value, add_generation_prompt: bool| {
        let tools = tools.as_ref();
        let conversation = Conversation { messages, tools, add_generation_prompt, variables: &variables };
        apply_template(model.language(), conversation)
            .map_err(|reason| Error::invalid("messages", format!("the chat template refuses them: {reason}")))
    };
    match turn.messages.as_array().filter(|_| turn.continues).map(Vec::as_slice) {
        // The header as the template opens it, then the beginning as it is: no template ends a message otherwise.
        Some([before @ .., last]) if !before.is_empty() => {
            let opened = apply(&Value::Array(before.to_vec()), true)?;
            Ok(opened + last["content"].as_str().unwrap_or_default())
        }
        _ => apply(&turn.messages, true),
    }
}

/// Prepares text completions.
///
/// # Errors
/// [`Error::InvalidRequest`] naming what the model can't do.
pub(crate) fn completion(
    model: &Model,
    exchange: &Exchange,
    asked: &CompletionRequest,
) -> Result<Prepared, Error> {
    let mut base = base(model, exchange, &asked.sampling, asked.session.as_deref())?;
    base.logprobs = asked.logprobs;
    base.constraint = match format(&asked.format) {
        Some((param, grammar)) => Some(model.constraint(param, &grammar)?),
        None => None,
    };
    let (mut jobs, mut prompt_tokens) = (Vec::new(), 0);
    for (index, prompt) in asked.prompts.iter().enumerate() {
        let tokens = match (prompt, &asked.suffix) {
            (Prompt::Text(text), None) => model.language().encode(text, true, true),
            (Prompt::Tokens(tokens), None) => tokens.clone(),
            (Prompt::Text(text), Some(suffix)) => infill(model, text, suffix)?,
            (Prompt::Tokens(_), Some(_)) => {
                return Err(Error::invalid("suffix", "needs the prompt as text"));
            }
        };
        if tokens.is_empty() {
            return Err(Error::invalid("prompt", "is empty; this model needs at least one token"));
        }
        prompt_tokens += tokens.len();
        let request = Request { prompt: tokens, ..base.clone() };
        jobs.extend(several(request, asked.choices, index));
    }
    Ok(Prepared { jobs, setup: None, prompt_tokens })
}

/// Marks for filling a gap, in the order before, after, gap, as code models write them.
const INFILL: [[&str; 3]; 4] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

fn infill(model: &Model, before: &str, after: &str) -> Result<Vec<u32>, Error> {
    let language = model.language();
    let token = |mark: &str| match language.encode(mark, false, true).as_slice() {
        [token] => Some(*token),
        _ => None,
    };
    for [prefix, suffix, middle] in INFILL {
        if let (Some(prefix), Some(suffix), Some(middle)) = (token(prefix), token(suffix), token(middle)) {
            let text = |text: &str| language.encode(text, false, true);
            return Ok([vec![prefix], text(before), vec![suffix], text(after), vec![middle]].concat());
        }
    }
    Err(Error::invalid("suffix", "needs a model with tokens for filling in the middle; leave it out"))
}

/// The request for each of several answers to one prompt; a given seed counts up, so that they differ.
fn several(request: Request, count: usize, prompt: usize) -> impl Iterator<Item = Job> {
    (0..count).map(move |index| {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        Job { request, prompt }
    })
}

/// What the client said, else the model's defaults.
fn base(
    model: &Model,
    exchange: &Exchange,
    asked: &lichen_api::Sampling,
    session: Option<&str>,
) -> Result<Request, Error> {
    let tokens = model.language().vocabulary_size();
    if let Some((token, _)) = asked.logit_bias.iter().find(|(token, _)| *token as usize >= tokens) {
        let reason =
            format!("names token {token}, and this model has the tokens 0 to {}", tokens.saturating_sub(1));
        return Err(Error::invalid("logit_bias", reason));
    }
    let defaults = model.defaults();
    Ok(Request {
        max_tokens: asked.max_tokens,
        stop: asked.stop.clone(),
        sampling: Sampling {
            temperature: asked.temperature.unwrap_or(defaults.temperature),
            top_k: asked.top_k.unwrap_or(defaults.top_k),
            top_p: asked.top_p.unwrap_or(defaults.top_p),
            min_p: asked.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: asked.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            penalty_window: defaults.penalty_window,
            presence_penalty: asked.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: asked.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: asked.logit_bias.clone(),
            seed: asked.seed.or(defaults.seed),
        },
        ignore_end: asked.ignore_end,
        session: session.map(|session| sessions::number(exchange.key(), session)),
        key: exchange.key(),
        ..Request::default()
    })
}

/// The tools that may be called.
fn offered(turn: &Turn) -> Vec<CallableTool> {
    let may_be_called = |tool: &&Tool| match &turn.tool_choice {
        ToolChoice::None => false,
        ToolChoice::Auto | ToolChoice::Required => {
            turn.allowed_tools.as_ref().is_none_or(|allowed| allowed.contains(&tool.name))
        }
        ToolChoice::Named(name) => tool.name == *name,
    };
    let callable =
        |tool: &Tool| CallableTool { name: tool.name.clone(), parameters: tool.parameters.clone() };
    turn.tools.iter().filter(may_be_called).map(callable).collect()
}

/// What the answer must look like. A forced call leaves no text that could have a format; where the model may choose,
/// the answer is either calls or a text of the format.
fn constraint(
    model: &Model,
    turn: &Turn,
    tools: &[CallableTool],
) -> Result<Option<Box<dyn Constraint>>, Error> {
    let format = format(&turn.format);
    if tools.is_empty() {
        return format.map(|(param, grammar)| model.constraint(param, &grammar)).transpose();
    }
    let dialect = model.style().tools;
    let several = turn.parallel_tool_calls;
    let compiler = model.grammars()?;
    let grammar = |begun| Grammar::Lark(dialect.grammar(tools, several, begun, &|mark| compiler.mark(mark)));
    match (&turn.tool_choice, format, dialect.trigger()) {
        (ToolChoice::Required | ToolChoice::Named(_), ..) => {
            model.constraint("tools", &grammar(false)).map(Some)
        }
        (_, Some((param, format)), _) if dialect.marks_every_call() => {
            // Each by itself first, so that a refusal names the right field. What was compiled is kept.
            model.constraint(param, &format)?;
            model.constraint_any("tools", &[grammar(false), format]).map(Some)
        }
        (_, Some((param, _)), _) => {
            let reason = "can't be enforced together with tools on this model: nothing marks its tool calls, so \
                          that a call can't be told from a text of this format; leave out one of both, or set \
                          tool_choice to none or required";
            Err(Error::invalid(param, reason))
        }
        (_, None, Some(trigger)) => model.constraint_after(trigger, "tools", &grammar(true)).map(Some),
        // Without a mark there is no telling a call from an answer before it is complete.
        (_, None, None) => Ok(None),
    }
}

/// The field and the grammar of a format.
fn format(format: &Format) -> Option<(&'static str, Grammar)> {
    match format {
        Format::Text => None,
        Format::JsonObject => Some(("response_format", Grammar::JsonObject)),
        Format::JsonSchema(schema) => Some(("response_format", Grammar::JsonSchema(schema.clone()))),
        Format::Grammar(source) => Some(("grammar", Grammar::from_text(source))),
    }
}

fn watch(model: &Model, turn: &Turn, marks: ThinkingMarks, begun: bool) -> Thinking {
    Thinking {
        open: marks.open.to_owned(),
        close: marks.close.to_owned(),
        begun,
        budget: turn.reasoning.budget.or_else(|| model.reasoning_budget()),
        closing: model.language().encode(&format!("\n{}\n\n", marks.close), false, true),
    }
}

/// The control tokens among some marks: their text is wanted.
fn visible(model: &Model, marks: &[&str]) -> Vec<u32> {
    let language = model.language();
    let single = |mark: &&str| match language.encode(mark, false, true).as_slice() {
        [token] if language.is_control(*token) => Some(*token),
        _ => None,
    };
    marks.iter().filter_map(single).collect()
}
