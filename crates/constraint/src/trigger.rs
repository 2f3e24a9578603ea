//! The text that sets a constraint off.

/// Waits for a text at the end of what was generated.
#[derive(Debug, Clone)]
pub(crate) struct Trigger {
    text: Vec<u8>,
    /// The last bytes of what was generated, at most as many as `text` has.
    tail: Vec<u8>,
}

impl Trigger {
    /// `None` if there is nothing to wait for.
    pub(crate) fn new(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self { text: text.as_bytes().to_vec(), tail: Vec::new() })
    }

    /// Takes note of the text of the next token; true if the generated text now ends with the trigger.
    pub(crate) fn observe(&mut self, text: &[u8]) -> bool {
        let kept = &text[text.len().saturating_sub(self.text.len())..];
        self.tail.extend_from_slice(kept);
        let surplus = self.tail.len().saturating_sub(self.text.len());
        self.tail.drain(..surplus);
        self.tail == self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fires_after(trigger: &str, tokens: &[&str]) -> Option<usize> {
        let mut trigger = Trigger::new(trigger)?;
        tokens.iter().position(|token| trigger.observe(token.as_bytes()))
    }

    #[test]
    fn it_fires_when_the_text_ends_with_it_whatever_the_tokens() {
        assert_eq!(fires_after("<call>", &["x <call>"]), Some(0));
        assert_eq!(fires_after("<call>", &["a long text before ", "<", "ca", "ll>"]), Some(3));
        assert_eq!(fires_after("aab", &["a", "a", "a", "b"]), Some(3));
    }

    #[test]
    fn it_does_not_fire_within_a_token() {
        assert_eq!(fires_after("<call>", &["<call>{", "}"]), None);
        assert_eq!(fires_after("", &["x"]), None);
    }
}
