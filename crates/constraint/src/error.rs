//! Why a grammar was refused.

/// Why a grammar can't be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It says something that can't be enforced token by token.
    #[error("{construct} can't be enforced: {reason}")]
    Unsupported {
        /// The keyword or operator.
        construct: String,
        /// What is missing, and the way out where there is one.
        reason: String,
    },
    /// It is not a grammar of its kind, or nothing follows it.
    #[error("the grammar is not valid: {reason}")]
    Invalid {
        /// What is wrong, and where.
        reason: String,
    },
    /// It is over a limit that keeps compilation and masks fast.
    #[error("the grammar is too large: {what} may be at most {limit}")]
    TooLarge {
        /// What is over the limit.
        what: String,
        /// The limit.
        limit: usize,
    },
    /// The vocabulary can't be used.
    #[error("the vocabulary can't be used for grammars: {0}")]
    Vocabulary(String),
}

/// Words in the grammar engine's messages that tell which construct it gave up on.
const UNSUPPORTED: [(&str, &str, &str); 8] = [
    (
        "oneOf constraints",
        "oneOf",
        "its options may overlap; use anyOf, or a property with a different const in each",
    ),
    ("min/maxProperties", "minProperties/maxProperties", "some properties are optional"),
    ("not disjoint", "patternProperties", "two patterns may match the same name"),
    ("are disjoint", "patternProperties", "two patterns may match the same name"),
    ("circular references", "$ref", "it refers to itself next to other keywords"),
    ("lookarounds", "pattern", "an anchor is neither at the beginning nor at the end"),
    ("regex is empty", "pattern", "it is too complex"),
    ("multipleOf", "multipleOf", "the number has too many digits"),
];

/// How the engine says that no token goes on.
const NO_TOKEN: &str = "NoExtensionBias";

/// Words in the grammar engine's messages that tell that a limit was reached.
const TOO_LARGE: [&str; 6] = ["too large", "too big", "too complex", "fuel", "limit", "stack level"];

impl GrammarError {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid { reason: reason.into() }
    }

    pub(crate) fn unsupported(construct: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { construct: construct.into(), reason: reason.into() }
    }

    pub(crate) fn too_large(what: impl Into<String>, limit: usize) -> Self {
        Self::TooLarge { what: what.into(), limit }
    }

    /// What the grammar engine's `message` means to the author of the grammar.
    pub(crate) fn from_engine(message: &str) -> Self {
        let known = UNSUPPORTED.iter().find(|(words, ..)| message.contains(words));
        if let Some((_, construct, reason)) = known {
            return Self::unsupported(*construct, *reason);
        }
        if TOO_LARGE.iter().any(|words| message.contains(words)) {
            return Self::unsupported("a grammar of this size", engine_reason(message));
        }
        let reason = message.split("\n<").next().unwrap_or(message).trim();
        if reason == NO_TOKEN {
            return Self::invalid("no text follows it");
        }
        Self::invalid(reason)
    }
}

/// The first line of the engine's `message`: after it come backtraces and states.
pub(crate) fn engine_reason(message: &str) -> String {
    match message.lines().next().unwrap_or_default() {
        NO_TOKEN => "the grammar allows no token of this vocabulary here".to_owned(),
        line => line.to_owned(),
    }
}
