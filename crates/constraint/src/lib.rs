//! Structured output: which tokens may come next so that the text follows a grammar.
//!
//! A [`GrammarCompiler`] turns a [`Grammar`] (JSON, JSON Schema, Lark, GBNF) into a
//! [`lichen_generate::Constraint`] for one vocabulary. What can't be enforced is refused by name: a text that
//! was finished under a constraint follows the whole grammar.

mod compiler;
mod error;
mod gbnf;
mod grammar_constraint;
mod json_schema;
mod lark;
mod trigger;
mod vocabulary;

pub use compiler::{Grammar, GrammarCompiler};
pub use error::GrammarError;
pub use vocabulary::{TokenText, Vocabulary};
