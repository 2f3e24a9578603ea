//! Cutting generated text at the first stop string.

/// What [`StopMatcher::push`] gives out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Text that may be shown: it can not be the start of a stop string any more.
    pub text: String,
    /// A stop string was completed; the text before it is in `text`, and nothing more follows.
    pub stopped: bool,
}

/// Finds stop strings in text that arrives in pieces, and holds back what may be the start of one.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher for these stop strings; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of text. After a stop it gives nothing.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped {
            return StopMatch { text: String::new(), stopped: true };
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = first {
            self.stopped = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return StopMatch { text, stopped: true };
        }
        let kept = self.stops.iter().map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - kept);
        StopMatch { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// The text that was held back, at the end of a generation.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes of the longest end of `text` that is a proper start of `stop`.
fn begun(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    let fits = |&len: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..len]);
    // Both are UTF-8, so an end that equals a start begins and ends with whole characters or is no start at all.
    (1..=longest).rev().filter(|&len| stop.is_char_boundary(len)).find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()))
    }

    fn got(text: &str, stopped: bool) -> StopMatch {
        StopMatch { text: text.to_owned(), stopped }
    }

    #[test]
    fn holds_back_a_start_and_cuts_at_the_stop() {
        let mut stops = matcher(&["\nUser:", "###", ""]);
        assert_eq!(stops.push("Hi\nUs"), got("Hi", false));
        assert_eq!(stops.push("ual #"), got("\nUsual ", false));
        assert_eq!(stops.push("#"), got("", false));
        assert_eq!(stops.push("# x"), got("", true));
        assert_eq!(stops.push("more"), got("", true));
        assert_eq!(stops.flush(), "");
    }

    #[test]
    fn gives_back_what_was_held_at_the_end() {
        let mut stops = matcher(&["é🙂"]);
        assert_eq!(stops.push("aé"), got("a", false));
        assert_eq!(stops.flush(), "é");
    }

    #[test]
    fn the_earliest_of_several_stops_wins() {
        assert_eq!(matcher(&["c", "b"]).push("abc"), got("a", true));
    }
}
