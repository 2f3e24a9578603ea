//! Splitting text into words before byte-level BPE.

use regex::Regex;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+";

/// The names that [`PreTokenizer::from_gguf`] knows, for error messages.
pub(crate) const SUPPORTED: &str =
    "default, gpt-2, llama-bpe, llama3, qwen2, deepseek-r1-qwen, qwen35, smollm, tekken";

/// Splits text into the words within which BPE merges.
///
/// The published patterns end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the word after it.
/// Here the pattern is without the look-ahead, so that it runs in linear time, and [`PreTokenizer::split`] gives the
/// last character back.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    pattern: Regex,
    /// The pattern has `\s*[\r\n]+`, so a match that ends in a line break keeps it.
    line_breaks_apart: bool,
    /// Each number character is split off before the pattern sees the text.
    digits_apart: bool,
    /// Text is brought to normalization form C first.
    pub(crate) nfc: bool,
    /// A word that is a token as a whole is not merged step by step.
    pub(crate) whole_words: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer for a value of `tokenizer.ggml.pre`, or `None` if the name is not known.
    pub(crate) fn from_gguf(name: &str) -> Option<Self> {
        let (pattern, line_breaks_apart) = match name {
            "" | "default" | "gpt-2" | "gpt2" | "smollm" => (GPT2, false),
            "llama-bpe" | "llama3" | "llama-v3" => (LLAMA3, true),
            "qwen2" | "deepseek-r1-qwen" => (QWEN2, true),
            "qwen35" => (QWEN35, true),
            "tekken" => (TEKKEN, true),
            _ => return None,
        };
        Some(Self {
            pattern: Regex::new(pattern).expect("the patterns are constants and valid"),
            line_breaks_apart,
            digits_apart: name == "smollm",
            nfc: matches!(name, "qwen2" | "qwen35"),
            whole_words: matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "tekken"),
        })
    }

    /// Calls `word` with each word of `text`, in order; together they are the text.
    pub(crate) fn split<'t>(&self, text: &'t str, mut word: impl FnMut(&'t str)) {
        if !self.digits_apart {
            return self.split_by_pattern(text, &mut word);
        }
        let mut start = 0;
        for (at, c) in text.char_indices() {
            if c.is_numeric() {
                self.split_by_pattern(&text[start..at], &mut word);
                start = at + c.len_utf8();
                word(&text[at..start]);
            }
        }
        self.split_by_pattern(&text[start..], &mut word);
    }

    fn split_by_pattern<'t>(&self, text: &'t str, word: &mut impl FnMut(&'t str)) {
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(text, at) {
            if found.start() > at {
                word(&text[at..found.start()]);
            }
            let matched = found.as_str();
            let end = found.end() - self.given_back(matched, found.end() == text.len());
            word(&text[found.start()..end]);
            at = end;
        }
        if at < text.len() {
            word(&text[at..]);
        }
    }

    /// How many bytes at the end of a match belong to the next word: what `\s+(?!\S)` would have left.
    fn given_back(&self, matched: &str, at_end: bool) -> usize {
        let keeps_all = at_end
            || (self.line_breaks_apart && matched.ends_with(['\r', '\n']))
            || !matched.chars().all(char::is_whitespace);
        match matched.char_indices().next_back() {
            Some((before_last, last)) if !keeps_all && before_last > 0 => last.len_utf8(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<'t>(pre: &str, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        PreTokenizer::from_gguf(pre).unwrap().split(text, |word| words.push(word));
        words
    }

    #[test]
    fn leaves_the_last_space_of_a_run_to_the_next_word() {
        assert_eq!(words("gpt-2", "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words("llama-bpe", "a \n\n  b12345"), ["a", " \n\n", " ", " b", "123", "45"]);
    }

    #[test]
    fn smollm_splits_digits_one_by_one() {
        assert_eq!(words("smollm", "in 2024!"), ["in", " ", "2", "0", "2", "4", "!"]);
    }
}
