//! Chat templates: the Jinja programs in model files that turn a conversation into a prompt.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Jinja;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use regex::Regex;
use serde_json::{Map, Value};

use crate::python_json::tojson;
use crate::strftime::strftime;
use crate::template_guard::{self, AssignmentLimit, on_a_large_stack};

/// The one template of an environment.
const NAME: &str = "chat_template";

/// Steps that a template may take before it has seen the conversation; 64 bytes of text count as one more step. Templates
/// in use take thousands. An endless loop has to end, and text that doubles must not fill the memory.
const FUEL: u64 = 400_000;
/// Steps more per byte of the conversation.
const FUEL_PER_BYTE: u64 = 8;

/// Values that the check of assignments may look at, per step; looking at one is quicker than a step.
const CHECKED_PER_STEP: u64 = 16;
/// How deep calls may nest, in the engine's own measure, where a call of a macro counts 4.
const MAX_RECURSION: usize = 200;

/// Why a chat template failed.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    /// The template is not valid Jinja.
    #[error("the chat template of the model can not be parsed; give another one: {0}")]
    Parse(#[source] Error),
    /// The template stopped, often on purpose: it does not take this conversation.
    #[error("the chat template of the model does not take this conversation: {0}")]
    Render(#[source] Error),
    /// Templates run on a thread of their own.
    #[error("the system gives no thread for the chat template: {0}")]
    Thread(#[source] std::io::Error),
}

/// A chat template, set up as the environment of Hugging Face transformers.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Parses a template; `bos` and `eos` are the texts of these tokens, empty if the model has none.
    ///
    /// # Errors
    ///
    /// [`ChatTemplateError::Parse`] if it is not valid Jinja, or larger and more nested than any in use.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatTemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(ChatTemplateError::Parse)?;
        environment.set_syntax(syntax.clone());
        environment.set_recursion_limit(MAX_RECURSION);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_filter("e", escape);
        environment.add_filter("escape", escape);
        environment.add_test("sameas", is_same);
        environment.add_function("raise_exception", |message: String| -> Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let parsed = on_a_large_stack(|| {
            let source = template_guard::bounded_source(&without_generation_blocks(source), syntax)?;
            environment.add_template_owned(NAME, source)
        });
        parsed.map_err(ChatTemplateError::Thread)?.map_err(ChatTemplateError::Parse)?;
        let template =
            Self { environment, source: source.to_owned(), bos: bos.to_owned(), eos: eos.to_owned() };
        Ok(template
            .with_clock(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())))
    }

    /// The template as the model file has it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Takes the time for `strftime_now` from `clock`, in seconds since 1970 UTC, instead of the system.
    pub fn with_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| strftime(format, clock()));
        self
    }

    /// The prompt for a conversation.
    ///
    /// `messages` and `tools` are JSON as the OpenAI API has them, `variables` further variables of the template such
    /// as `enable_thinking`; they can replace all others.
    ///
    /// # Errors
    ///
    /// [`ChatTemplateError::Render`] if the template refuses the conversation or fails.
    pub fn render(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, ChatTemplateError> {
        let rendered = on_a_large_stack(|| {
            let mut context: BTreeMap<&str, Jinja> = BTreeMap::new();
            context.insert("messages", jinja(&with_reasoning_aliases(messages)));
            context.insert("tools", tools.map_or(Jinja::from(()), jinja));
            context.insert("documents", Jinja::from(()));
            context.insert("add_generation_prompt", Jinja::from(add_generation_prompt));
            context.insert("bos_token", Jinja::from(self.bos.as_str()));
            context.insert("eos_token", Jinja::from(self.eos.as_str()));
            for (name, value) in variables {
                context.insert(name, jinja(value));
            }
            let given = [Some(messages), tools].into_iter().flatten().chain(variables.values());
            let bytes: u64 = given.map(|value| value.to_string().len() as u64).sum();
            let environment = self.with_fuel(FUEL.saturating_add(bytes.saturating_mul(FUEL_PER_BYTE)));
            environment.get_template(NAME)?.render(Jinja::from_pairs(context))
        });
        rendered.map_err(ChatTemplateError::Thread)?.map_err(ChatTemplateError::Render)
    }

    /// The environment for one rendering, which may take so many steps.
    fn with_fuel(&self, fuel: u64) -> Environment<'static> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let limit = Arc::new(AssignmentLimit::new(fuel.saturating_mul(CHECKED_PER_STEP)));
        let namespace_limit = limit.clone();
        environment.add_filter(template_guard::FILTER, move |value: Jinja| limit.check(value, false));
        environment.add_filter(template_guard::NAMESPACE_FILTER, move |value: Jinja| {
            namespace_limit.check(value, true)
        });
        environment
    }
}

/// HTML escapes as Jinja2 spells them.
fn escape(value: &Jinja) -> String {
    let text = value.to_string();
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

/// Python's `is`: equal strings are the same only if they are one object, and `1` is not `1.0` or `true`.
fn is_same(left: &Jinja, right: &Jinja) -> bool {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => std::ptr::eq(left, right),
        _ => left.kind() == right.kind() && left.is_integer() == right.is_integer() && left == right,
    }
}

/// JSON as a value of the template language.
fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(value) => Jinja::from(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Jinja::from(value),
            (None, Some(value)) => Jinja::from(value),
            (None, None) => Jinja::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Jinja::from(text.as_str()),
        Value::Array(items) => items.iter().map(jinja).collect(),
        Value::Object(entries) => {
            Jinja::from_pairs(entries.iter().map(|(key, value)| (key.as_str(), jinja(value))))
        }
    }
}

/// Turns `{% generation %}` blocks, which mark what a model is trained on, into blocks that are always there.
fn without_generation_blocks(source: &str) -> String {
    let tag = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
        .expect("the pattern is a constant and valid");
    let replace = |found: &regex::Captures<'_>| {
        let statement = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {statement} {}%}}", &found[1], &found[3])
    };
    tag.replace_all(source, replace).into_owned()
}

/// The messages with `reasoning_content` as `thinking` too and the other way round: templates read either.
fn with_reasoning_aliases(messages: &Value) -> Value {
    let mut messages = messages.clone();
    for message in messages.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        for (from, to) in [("reasoning_content", "thinking"), ("thinking", "reasoning_content")] {
            if let Some(value) = message.get(from).filter(|_| !message.contains_key(to)) {
                // The alias comes first, as in the reference: templates that print a message show the order.
                let alias = (to.to_owned(), value.clone());
                *message = std::iter::once(alias).chain(std::mem::take(message)).collect();
            }
        }
    }
    messages
}
