//! Cuts a stream of server-sent events between events.

use bytes::{Bytes, BytesMut};

/// Largest part of an event that is held back until the rest of it is there.
const LARGEST_HELD: usize = 256 << 10;
/// How much of the end of the stream is remembered.
const TAIL: usize = 64;

/// Passes whole events on, as many at once as there are. A part of an event is held back: a client can't use it yet, and
/// after a whole one anything may follow, a sign of life or an error.
#[derive(Debug, Default)]
pub(crate) struct Events {
    held: BytesMut,
    /// A part was too large to be held and went out.
    cut: bool,
    tail: Vec<u8>,
}

impl Events {
    /// Takes a read in and gives what can go out; empty if nothing can.
    pub(crate) fn push(&mut self, read: Bytes) -> Bytes {
        // The end of an event may be cut in two.
        let known = self.held.len().saturating_sub(3);
        let whole = if self.held.is_empty() {
            end_of_events(&read)
        } else {
            self.held.extend_from_slice(&read);
            end_of_events(&self.held[known..]).map(|end| known + end)
        };
        let out = match whole {
            Some(end) if self.held.is_empty() => {
                self.held.extend_from_slice(&read[end..]);
                read.slice(..end)
            }
            Some(end) => self.held.split_to(end).freeze(),
            None if self.held.is_empty() => {
                self.held.extend_from_slice(&read);
                Bytes::new()
            }
            None => Bytes::new(),
        };
        if whole.is_some() {
            self.cut = false;
        }
        if self.held.len() > LARGEST_HELD {
            self.cut = true;
            let rest = self.held.split().freeze();
            return self.note([out, rest].concat().into());
        }
        self.note(out)
    }

    fn note(&mut self, out: Bytes) -> Bytes {
        let end = &out[out.len().saturating_sub(TAIL)..];
        self.tail.extend_from_slice(end);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
        out
    }

    /// What is held back, at the end of the stream.
    pub(crate) fn rest(&mut self) -> Bytes {
        let rest = self.held.split().freeze();
        self.note(rest)
    }

    /// Whether something else may be written now.
    pub(crate) fn between(&self) -> bool {
        !self.cut
    }

    /// Whether the end of what has gone out has this in it.
    pub(crate) fn ends_with(&self, mark: &[u8]) -> bool {
        self.tail.windows(mark.len()).any(|window| window == mark)
    }
}

/// Where the last whole event ends: after an empty line, with whatever ends lines.
fn end_of_events(bytes: &[u8]) -> Option<usize> {
    // Nearly every read ends where an event ends, so this looks from the end.
    (0..bytes.len()).rev().filter(|&at| bytes[at] == b'\n' || bytes[at] == b'\r').find_map(|at| {
        let before = &bytes[..at];
        let ends = match bytes[at] {
            b'\n' => before.ends_with(b"\n") || before.ends_with(b"\n\r") || before.ends_with(b"\r\r"),
            // The start of a line end that is cut in two also looks like this; the next read decides then.
            _ => before.ends_with(b"\r"),
        };
        ends.then_some(at + 1)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn whole_events_go_out_at_once_and_parts_wait() {
        let mut events = Events::default();
        assert_eq!(events.push(Bytes::from_static(b"data: 1\n\ndata: 2\n\nda")), "data: 1\n\ndata: 2\n\n");
        assert_eq!(events.push(Bytes::from_static(b"ta: 3\n")), "");
        assert_eq!(events.push(Bytes::from_static(b"\n")), "data: 3\n\n");
        assert!(events.ends_with(b"3") && !events.ends_with(b"[DONE]"));
    }

    #[test]
    fn lines_may_end_as_they_like() {
        for stream in ["data: 1\r\n\r\nx", "data: 1\n\nx", "data: 1\r\rx"] {
            let mut events = Events::default();
            assert_eq!(events.push(Bytes::copy_from_slice(stream.as_bytes())), stream[..stream.len() - 1]);
            assert_eq!(events.rest(), "x");
        }
    }

    #[test]
    fn an_event_of_megabytes_is_passed_on_in_parts() {
        let event = [b"data: ".as_slice(), &vec![b'x'; 5 << 20], b"\n\n"].concat();
        let mut events = Events::default();
        let mut out = Vec::new();
        for read in event.chunks(16 << 10) {
            out.extend_from_slice(&events.push(Bytes::copy_from_slice(read)));
        }
        assert!(out == event && events.between());
    }

    proptest! {
        #[test]
        fn however_a_stream_is_cut_it_comes_out_as_it_was_and_cut_between_events(
            events in prop::collection::vec("[a-z\r\n]{0,9}", 0..9), cuts in prop::collection::vec(1_usize..9, 1..40),
        ) {
            let stream: String = events.iter().map(|event| format!("{event}\n\n")).collect();
            let (mut passed, mut rest, mut cuts) = (Events::default(), stream.as_bytes(), cuts.iter().cycle());
            let mut out = Vec::new();
            while !rest.is_empty() {
                let (read, more) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                rest = more;
                out.extend_from_slice(&passed.push(Bytes::copy_from_slice(read)));
                prop_assert!(out.is_empty() || out.ends_with(b"\n") || out.ends_with(b"\r"));
            }
            out.extend_from_slice(&passed.rest());
            prop_assert_eq!(out, stream.as_bytes());
        }
    }
}
