//! From a grammar to a constraint.

use crate::grammar_constraint::GrammarConstraint;
use crate::trigger::Trigger;
use crate::{GrammarError, Vocabulary, gbnf, json_schema, lark};
use lichen_generate::Constraint;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Compiled grammars that are kept.
const CACHED: usize = 64;
/// The grammar engine recurses over rules and properties; on a stack of its own it can't exhaust the
/// caller's.
const STACK_BYTES: usize = 256 << 20;

/// What an answer must look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid under a JSON Schema (drafts 4 to 2020-12; 2020-12 unless `$schema` says otherwise).
    JsonSchema(Value),
    /// A Lark grammar in llguidance's dialect; `%json {…}` holds a JSON Schema.
    Lark(String),
    /// A GBNF grammar, as llama.cpp has it; starts at `root`.
    Gbnf(String),
}

impl Grammar {
    /// A grammar from text: GBNF if it defines rules with `::=`, else Lark.
    pub fn from_text(source: &str) -> Self {
        if source.contains("::=") { Self::Gbnf(source.to_owned()) } else { Self::Lark(source.to_owned()) }
    }
}

/// A grammar in a language of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Lark(String),
    /// JSON text of a schema. Text and not a value, because the order of properties counts.
    JsonSchema(String),
}

impl Source {
    fn of(grammar: &Grammar) -> Result<Self, GrammarError> {
        Ok(match grammar {
            Grammar::JsonObject => Self::JsonSchema(json_schema::lower(&json!({"type": "object"}))?),
            Grammar::JsonSchema(schema) => Self::JsonSchema(json_schema::lower(schema)?),
            Grammar::Lark(source) => Self::Lark(lark::check(source)?),
            Grammar::Gbnf(source) => Self::Lark(gbnf::to_lark(source)?),
        })
    }

    fn grammar(&self) -> TopLevelGrammar {
        match self {
            Self::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
            Self::JsonSchema(text) => TopLevelGrammar::from_json_schema(
                serde_json::from_str(text).expect("a value that was written as JSON reads as JSON"),
            ),
        }
    }
}

/// Compiles grammars for one model. Clones share what was compiled.
#[derive(Clone)]
pub struct GrammarCompiler {
    shared: Arc<Shared>,
}

struct Shared {
    vocabulary: Arc<Vocabulary>,
    control_tokens: HashMap<String, u32>,
    factory: ParserFactory,
    /// Compiled grammars, the least recently used first.
    cache: Mutex<Vec<(Source, Matcher)>>,
}

impl GrammarCompiler {
    /// Prepares a vocabulary; for 150 000 tokens this takes a second or two.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`].
    pub fn new(vocabulary: Vocabulary) -> Result<Self, GrammarError> {
        let environment = vocabulary.environment()?;
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|reason| GrammarError::Vocabulary(reason.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        let control_tokens = vocabulary.control_tokens();
        let cache = Mutex::new(Vec::new());
        Ok(Self {
            shared: Arc::new(Shared { vocabulary: Arc::new(vocabulary), control_tokens, factory, cache }),
        })
    }

    /// A constraint that follows `grammar` from the first token on.
    ///
    /// # Errors
    /// The grammar is not valid, is over a limit, or says something that can't be enforced.
    pub fn compile(&self, grammar: &Grammar) -> Result<Box<dyn Constraint>, GrammarError> {
        self.compile_after("", grammar)
    }

    /// A constraint that is idle until the generated text ends with `trigger` at the end of a token, and then
    /// follows `grammar`. Idle, its mask does nothing at all. A control token counts with its name.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`].
    pub fn compile_after(
        &self,
        trigger: &str,
        grammar: &Grammar,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        self.constraint(std::slice::from_ref(grammar), Trigger::new(trigger))
    }

    /// A constraint that follows any one of `grammars` from the first token on. They needn't differ in their first
    /// token: each counts until the text no longer fits it.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`], for each of them and if there are none.
    pub fn compile_any(&self, grammars: &[Grammar]) -> Result<Box<dyn Constraint>, GrammarError> {
        if grammars.is_empty() {
            return Err(GrammarError::invalid("there is none to choose from"));
        }
        self.constraint(grammars, None)
    }

    fn constraint(
        &self,
        grammars: &[Grammar],
        trigger: Option<Trigger>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let matcher = |grammar| self.matcher(Source::of(grammar)?);
        let matchers = grammars.iter().map(matcher).collect::<Result<_, _>>()?;
        let vocabulary = Arc::clone(&self.shared.vocabulary);
        Ok(Box::new(GrammarConstraint::new(vocabulary, matchers, trigger)))
    }

    /// How a mark such as `<tool_call>` is written in Lark: by number if it is one control token, else as a
    /// string.
    pub fn mark(&self, text: &str) -> String {
        match self.shared.control_tokens.get(text) {
            Some(token) => format!("<[{token}]>"),
            None => lark::string(text),
        }
    }

    fn matcher(&self, source: Source) -> Result<Matcher, GrammarError> {
        if let Some(matcher) = self.cached(&source) {
            return Ok(matcher);
        }
        let matcher = self.build(&source)?;
        let mut cache = self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHED {
            cache.remove(0);
        }
        // A deep clone: what one answer adds to the lexer's tables must not add up over all answers.
        cache.push((source, matcher.deep_clone()));
        Ok(matcher)
    }

    fn cached(&self, source: &Source) -> Option<Matcher> {
        let mut cache = self.shared.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let place = cache.iter().position(|(cached, _)| cached == source)?;
        let entry = cache.remove(place);
        let matcher = entry.1.deep_clone();
        cache.push(entry);
        Some(matcher)
    }

    fn build(&self, source: &Source) -> Result<Matcher, GrammarError> {
        let compile = || {
            let mut matcher = Matcher::new(self.shared.factory.create_parser(source.grammar()));
            // The first mask shows now what would else be an error in the middle of an answer.
            match matcher.compute_mask_or_eos() {
                Ok(_) => Ok(matcher),
                Err(reason) => Err(GrammarError::from_engine(&reason.to_string())),
            }
        };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, compile);
            let thread =
                thread.map_err(|reason| GrammarError::invalid(format!("no thread for it: {reason}")))?;
            thread.join().unwrap_or_else(|_| Err(GrammarError::invalid("the grammar engine gave up on it")))
        })
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.shared.vocabulary.tokens.len();
        formatter.debug_struct("GrammarCompiler").field("tokens", &tokens).finish_non_exhaustive()
    }
}

fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
