//! What keeps a hostile chat template from exhausting the stack.
//!
//! The template engine counts steps and bytes, and how deep brackets and calls nest. It does not count how deep values
//! nest, nor chains such as `a.b.c…` or `elif … elif …`, and it walks both by recursion, so that a deep one ends the
//! process. Hence three measures: [`bounded_source`] limits chains, and passes every assigned value through the filter
//! [`AssignmentLimit`], since deep and cyclic values come about by assignment; all work is done [`on_a_large_stack`].

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Longest source, in bytes; templates in use have a few thousand.
const MAX_SOURCE: usize = 256 << 10;
/// Most tokens of one tag, and so the longest chain; templates in use have up to some hundred.
const MAX_TAG_TOKENS: usize = 2000;
/// Most `elif` of a template, each of which nests in the one before.
const MAX_ELIF: usize = 500;
/// How deep an assigned value may nest. JSON of a request nests up to 128 deep.
const MAX_DEPTH: usize = 200;
/// Address space for a stack; memory is taken only as far as it is used.
const STACK: usize = 64 << 20;

/// What computing a value costs, in values looked at: it takes memory too.
const MATERIALISED: u64 = 16;

/// Name of the filter for assigned values. Templates can't replace a filter.
pub(crate) const FILTER: &str = "_assigned";
/// The same for values that become part of a namespace.
pub(crate) const NAMESPACE_FILTER: &str = "_assigned_to_namespace";

/// A tag that is being read.
#[derive(Default)]
struct Tag {
    tokens: usize,
    brackets: usize,
    /// A `set` tag, and where the keyword ends.
    set: bool,
    dotted: bool,
    assigned_at: Option<usize>,
    filtered: bool,
}

/// The template with each assigned value passed through a filter.
///
/// # Errors
/// The source is no template, or it exceeds a limit.
pub(crate) fn bounded_source(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    if source.len() > MAX_SOURCE {
        return Err(refused(format!("it has {} bytes, more than {MAX_SOURCE}", source.len())));
    }
    let mut out = String::with_capacity(source.len() + 256);
    let (mut copied, mut tag, mut elifs) = (0, Tag::default(), 0);
    let mut copy = |out: &mut String, to: usize| {
        out.push_str(&source[copied..to]);
        copied = to;
    };
    // The end of the token before, since that of a tag's end includes the `-` of `-%}`.
    let mut before = 0;
    for item in tokenize(source, false, syntax) {
        let (token, span) = item?;
        tag.tokens += 1;
        match token {
            Token::BlockStart | Token::VariableStart => tag = Tag::default(),
            Token::Ident("set") if tag.tokens == 1 => tag.set = true,
            Token::Ident("elif") if tag.tokens == 1 => elifs += 1,
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => tag.brackets += 1,
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                tag.brackets = tag.brackets.saturating_sub(1);
            }
            Token::Dot if tag.assigned_at.is_none() => tag.dotted = true,
            Token::Pipe if tag.brackets == 0 => tag.filtered = true,
            Token::Assign if tag.set && tag.brackets == 0 && tag.assigned_at.is_none() => {
                let at = span.end_offset as usize;
                tag.assigned_at = Some(at);
                copy(&mut out, at);
                out.push_str(" (");
            }
            Token::BlockEnd if tag.set && (tag.assigned_at.is_some() || tag.filtered) => {
                copy(&mut out, before);
                out.push_str(if tag.assigned_at.is_some() { " ) | " } else { " | " });
                out.push_str(if tag.dotted { NAMESPACE_FILTER } else { FILTER });
                out.push(' ');
            }
            _ => {}
        }
        if tag.tokens > MAX_TAG_TOKENS {
            return Err(refused(format!("a tag has more than {MAX_TAG_TOKENS} parts")));
        }
        before = span.end_offset as usize;
    }
    if elifs > MAX_ELIF {
        return Err(refused(format!("it has more than {MAX_ELIF} elif")));
    }
    copy(&mut out, source.len());
    Ok(out)
}

fn refused(reason: String) -> Error {
    Error::new(ErrorKind::SyntaxError, reason)
}

/// Checks assigned values during one rendering.
pub(crate) struct AssignmentLimit {
    /// Values that may still be looked at.
    budget: AtomicU64,
}

impl AssignmentLimit {
    /// A check that looks at so many values before it runs out of fuel.
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget: AtomicU64::new(budget) }
    }

    /// The value; what is computed on demand is computed, since chains of such values are deep too.
    ///
    /// # Errors
    /// It nests too deep, or, with `into_namespace`, it has a namespace, which could then contain itself.
    pub(crate) fn check(&self, value: Value, into_namespace: bool) -> Result<Value, Error> {
        let value = if value.kind() == ValueKind::Iterable {
            let mut items = Vec::new();
            for item in value.try_iter()? {
                self.spend(MATERIALISED)?;
                items.push(item);
            }
            Value::from(items)
        } else {
            value
        };
        self.walk(&value, 0, into_namespace)?;
        Ok(value)
    }

    fn walk(&self, value: &Value, depth: usize, no_namespace: bool) -> Result<(), Error> {
        self.spend(1)?;
        let Some(object) = value.as_object() else { return Ok(()) };
        let kind = value.kind();
        if !matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            return Ok(());
        }
        if depth >= MAX_DEPTH {
            let reason = format!("a value nests more than {MAX_DEPTH} deep");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        if no_namespace && object.type_name().ends_with("::Namespace") {
            let reason = "a namespace can't be put into a namespace";
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        if kind == ValueKind::Map {
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                self.walk(&key, depth + 1, no_namespace)?;
                self.walk(&item, depth + 1, no_namespace)?;
            }
        } else {
            for item in value.try_iter()? {
                self.walk(&item, depth + 1, no_namespace)?;
            }
        }
        Ok(())
    }

    fn spend(&self, cost: u64) -> Result<(), Error> {
        let spend = |left: u64| left.checked_sub(cost);
        let spent = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        spent.map(drop).map_err(|_| Error::from(ErrorKind::OutOfFuel))
    }
}

/// Runs work on a thread of its own with a stack that all limits together can't exhaust.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn on_a_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("lichen-template".to_owned()).stack_size(STACK);
        let result = thread.spawn_scoped(scope, work)?.join();
        Ok(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounded(source: &str) -> String {
        bounded_source(source, SyntaxConfig::default()).unwrap()
    }

    #[test]
    fn assigned_values_pass_through_a_filter() {
        assert_eq!(bounded("{%- set a = f(x=1) -%}"), "{%- set a = ( f(x=1) ) | _assigned  -%}");
        assert_eq!(bounded("{% set n.a=[1], 2%}"), "{% set n.a= ([1], 2 ) | _assigned_to_namespace %}");
        assert_eq!(bounded("{% set a | upper %}"), "{% set a | upper | _assigned  %}");
        for same in [
            "{% set a %}b{% endset %}",
            "{{ f(a=1) }}",
            "{% raw %}{% set a = 1 %}{% endraw %}",
            "{# {% set a = 1 %} #}",
        ] {
            assert_eq!(bounded(same), same);
        }
    }
}
