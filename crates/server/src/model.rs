//! One loaded model: what generates, what reads and writes its text, and what applies where a request is silent.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lichen_api::Error;
use lichen_constraint::{Grammar, GrammarCompiler, GrammarError, TokenText, Vocabulary};
use lichen_generate::{Constraint, Generate, Pooling, Sampling};
use lichen_text::{ThinkingMarks, ToolDialect};

use crate::Language;
use crate::node::unix_time;
use crate::order::ModelOptions;

/// One loaded model.
pub struct Model {
    id: String,
    created: u64,
    generate: Arc<dyn Generate>,
    language: Arc<dyn Language>,
    defaults: Sampling,
    options: Mutex<ModelOptions>,
    pooling: Pooling,
    style: Style,
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    bytes: u64,
    ttl: Option<Duration>,
    pinned: bool,
    priority: i32,
    change: Option<ChangeLimits>,
    sessions: Option<Arc<dyn Sessions>>,
}

/// Applies new limits to a running model.
pub type ChangeLimits = Box<dyn Fn(&ModelOptions) -> Result<(), String> + Send + Sync>;

/// How the model writes what is more than text, as its chat template shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) tools: ToolDialect,
    /// Whether the template tells the model of its tools.
    pub(crate) shows_tools: bool,
    pub(crate) thinking: Option<ThinkingMarks>,
}

/// What of a conversation has state in its new place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Tokens that need not be computed again.
    pub tokens: usize,
    /// Pages of keys and values by the name of their precision.
    pub pages: Vec<(&'static str, usize)>,
}

/// A session that has state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub session: u64,
    /// Tokens of its conversation that was used last.
    pub tokens: usize,
    /// Bytes of their state; sessions that begin alike share some.
    pub bytes: u64,
}

/// Takes conversations out of a model and puts them in, as bytes whose format the server doesn't know. Calls block.
pub trait Sessions: Send + Sync {
    /// The sessions that have state.
    fn list(&self) -> Vec<Kept>;

    /// Gives up the state of a session. Returns how many bytes that freed, or nothing if it has none.
    fn forget(&self, session: u64) -> Option<u64>;

    /// The conversation of a session that was used last.
    fn export(&self, session: u64) -> Option<Vec<u8>>;

    /// Keeps a conversation for a session, its keys and values in this precision where they are finer.
    ///
    /// # Errors
    /// What is wrong with the bytes or the precision, for the user to read; nothing is changed then.
    fn import(&self, session: u64, bytes: &[u8], kv: Option<&str>) -> Result<Restored, String>;
}

impl Model {
    /// A model under the name that requests use.
    pub fn new(id: impl Into<String>, generate: Arc<dyn Generate>, language: Arc<dyn Language>) -> Self {
        let template = language.template_source().unwrap_or_default();
        let style = Style {
            tools: ToolDialect::of_template(template),
            shows_tools: template.contains("tools"),
            thinking: ThinkingMarks::of_template(template),
        };
        Self {
            id: id.into(),
            created: unix_time(),
            generate,
            language,
            defaults: Sampling::default(),
            options: Mutex::default(),
            pooling: Pooling::default(),
            style,
            grammars: OnceLock::new(),
            bytes: 0,
            ttl: None,
            pinned: false,
            priority: 0,
            change: None,
            sessions: None,
        }
    }

    /// Sets the limits that it was loaded with.
    #[must_use]
    pub fn with_options(mut self, options: ModelOptions) -> Self {
        self.options = Mutex::new(options);
        self
    }

    /// Sets how embeddings are made; the mean over all tokens if not set.
    #[must_use]
    pub fn with_pooling(mut self, pooling: Pooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets how conversations are taken out and put in.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Arc<dyn Sessions>) -> Self {
        self.sessions = Some(sessions);
        self
    }

    pub(crate) fn sessions(&self) -> Option<&Arc<dyn Sessions>> {
        self.sessions.as_ref()
    }

    /// Sets the memory that it takes.
    #[must_use]
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets how long it may stay without a request.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.ttl = ttl;
        self
    }

    /// Has it leave only when told to.
    #[must_use]
    pub fn with_pin(mut self, pinned: bool) -> Self {
        self.pinned = pinned;
        self
    }

    /// Sets its class: it gives way to models of its own class and of higher ones.
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how limits are changed while it runs.
    #[must_use]
    pub fn with_change(mut self, change: ChangeLimits) -> Self {
        self.change = Some(change);
        self
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    pub(crate) fn pinned(&self) -> bool {
        self.pinned
    }

    pub(crate) fn priority(&self) -> i32 {
        self.priority
    }

    /// Changes some of its limits; the others stay.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if they can't be changed, or not to this.
    pub(crate) fn change(&self, asked: &ModelOptions) -> Result<(), Error> {
        let change = self.change.as_ref().ok_or_else(|| Error::invalid("model", "has fixed limits"))?;
        let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = asked.over(&options);
        change(&changed).map_err(|reason| Error::invalid("ctx_cap", reason))?;
        *options = changed;
        Ok(())
    }

    /// Most tokens of thinking where a request doesn't say.
    pub(crate) fn reasoning_budget(&self) -> Option<usize> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).reasoning_budget
    }

    pub(crate) fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    pub(crate) fn generate(&self) -> &dyn Generate {
        &*self.generate
    }

    pub(crate) fn language(&self) -> &dyn Language {
        &*self.language
    }

    /// How tokens are chosen where a request is silent.
    pub(crate) fn defaults(&self) -> &Sampling {
        &self.defaults
    }

    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// The grammar compiler, made when it is first needed: it takes a walk over the whole vocabulary.
    pub(crate) fn grammars(&self) -> Result<&GrammarCompiler, Error> {
        let compiler = self.grammars.get_or_init(|| GrammarCompiler::new(vocabulary(&*self.language)));
        compiler.as_ref().map_err(|error| refusal("response_format", error))
    }

    /// Compiles the grammar that `param` asks for.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] naming what can't be enforced.
    pub(crate) fn constraint(&self, param: &str, grammar: &Grammar) -> Result<Box<dyn Constraint>, Error> {
        self.grammars()?.compile(grammar).map_err(|error| refusal(param, &error))
    }

    /// As [`Model::constraint`], for texts of any one of several grammars.
    pub(crate) fn constraint_any(
        &self,
        param: &str,
        grammars: &[Grammar],
    ) -> Result<Box<dyn Constraint>, Error> {
        self.grammars()?.compile_any(grammars).map_err(|error| refusal(param, &error))
    }

    /// As [`Model::constraint`], from the first `trigger` in the answer on.
    pub(crate) fn constraint_after(
        &self,
        trigger: &str,
        param: &str,
        grammar: &Grammar,
    ) -> Result<Box<dyn Constraint>, Error> {
        self.grammars()?.compile_after(trigger, grammar).map_err(|error| refusal(param, &error))
    }
}

fn refusal(param: &str, error: &GrammarError) -> Error {
    Error::invalid(param, error.to_string())
}

fn vocabulary(language: &dyn Language) -> Vocabulary {
    let size = u32::try_from(language.vocabulary_size()).unwrap_or(u32::MAX);
    let text = |token: u32| {
        let bytes = language.token_bytes(token).to_vec();
        match language.is_control(token) {
            true => TokenText::Control(String::from_utf8_lossy(&bytes).into_owned()),
            false => TokenText::Bytes(bytes),
        }
    };
    Vocabulary { tokens: (0..size).map(text).collect(), end: language.end_tokens() }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("id", &self.id).finish_non_exhaustive()
    }
}
