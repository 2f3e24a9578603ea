//! Cutting generated text at the first stop string.

/// What [`StopMatcher::push`] gives out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopMatch {
    /// Text that may be shown: it can not be the start of a stop string any more.
    pub text: String,
    /// The stop string of this number was completed; the text before it is in `text`, and nothing more follows.
    pub stopped: Option<usize>,
}

/// Finds stop strings in text that arrives in pieces, and holds back what may be the start of one.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these stop strings; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self { stops: stops.into_iter().collect(), held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. After a stop it gives nothing.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped.is_some() {
            return StopMatch { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(text);
        let found = |(number, stop): (usize, &String)| Some((self.held.find(stop.as_str())?, number));
        let stops = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let first = stops.filter_map(found).min();
        if let Some((at, number)) = first {
            self.stopped = Some(number);
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return StopMatch { text, stopped: self.stopped };
        }
        let stops = self.stops.iter().filter(|stop| !stop.is_empty());
        let kept = stops.map(|stop| begun(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - kept);
        StopMatch { text: std::mem::replace(&mut self.held, kept), stopped: None }
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

    fn got(text: &str, stopped: Option<usize>) -> StopMatch {
        StopMatch { text: text.to_owned(), stopped }
    }

    #[test]
    fn holds_back_a_start_and_cuts_at_the_stop() {
        let mut stops = matcher(&["\nUser:", "###", ""]);
        assert_eq!(stops.push("Hi\nUs"), got("Hi", None));
        assert_eq!(stops.push("ual #"), got("\nUsual ", None));
        assert_eq!(stops.push("#"), got("", None));
        assert_eq!(stops.push("# x"), got("", Some(1)));
        assert_eq!(stops.push("more"), got("", Some(1)));
        assert_eq!(stops.flush(), "");
    }

    #[test]
    fn gives_back_what_was_held_at_the_end() {
        let mut stops = matcher(&["é🙂"]);
        assert_eq!(stops.push("aé"), got("a", None));
        assert_eq!(stops.flush(), "é");
    }

    #[test]
    fn the_earliest_of_several_stops_wins() {
        assert_eq!(matcher(&["c", "b"]).push("abc"), got("a", Some(1)));
    }
}
