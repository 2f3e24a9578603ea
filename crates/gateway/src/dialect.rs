//! The routes that are passed on, and how each says that something went wrong.

use lichen_api::{
    ChatEncoder, Encoder, Error, MessagesEncoder, ResponseEnvelope, ResponsesEncoder, Sse, anthropic_error,
    anthropic_status,
};
use serde_json::Value;

/// A route that nodes answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Completion,
    Embeddings,
    Responses,
    Messages,
    CountTokens,
}

impl Route {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Chat, Self::Completion, Self::Embeddings, Self::Responses, Self::Messages, Self::CountTokens];

    /// Its path.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completion => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
        }
    }

    /// Whether a server that speaks OpenAI's dialects only has it.
    pub(crate) fn is_openai(self) -> bool {
        !matches!(self, Self::Messages | Self::CountTokens)
    }

    /// What the end of a complete stream has in it, where the dialect has such a mark. Without it a stream that ends is
    /// one that broke off.
    pub(crate) fn end_mark(self) -> Option<&'static [u8]> {
        match self {
            Self::Chat | Self::Completion => Some(b"[DONE]"),
            Self::Messages => Some(b"message_stop"),
            Self::Responses | Self::Embeddings | Self::CountTokens => None,
        }
    }

    /// Status and body of an error.
    pub(crate) fn refusal(self, error: &Error, request_id: &str) -> (u16, Value) {
        if self.is_openai() {
            (error.status(), error.body())
        } else {
            (anthropic_status(error), anthropic_error(error, request_id))
        }
    }

    /// The bytes that report an error in a stream, and end it.
    pub(crate) fn error_events(self, error: &Error, request_id: &str) -> String {
        let events = match self {
            Self::Messages | Self::CountTokens => {
                MessagesEncoder::new(request_id, String::new()).error(error)
            }
            Self::Responses => ResponsesEncoder::new(ResponseEnvelope {
                id: request_id.to_owned(),
                created: 0,
                model: String::new(),
                echo: serde_json::Map::new(),
            })
            .error(error),
            _ => ChatEncoder {
                id: String::new(),
                created: 0,
                model: String::new(),
                choices: 1,
                include_usage: false,
                logprobs: false,
            }
            .error(error),
        };
        events.iter().map(wire).collect()
    }

    /// The bytes that report, in a stream, what a node has answered instead of one.
    pub(crate) fn answer_as_event(self, body: &str) -> String {
        let event = (!self.is_openai()).then_some("error");
        // An event is one line of data; JSON may be written in several.
        let data = serde_json::from_str::<Value>(body)
            .map_or_else(|_| body.replace(['\r', '\n'], " "), |body| body.to_string());
        wire(&Sse { event, data })
    }

    /// A sign of life between two events. A comment, which every reader skips, until an event has gone out.
    pub(crate) fn ping(self, begun: bool) -> &'static str {
        if self == Self::Messages && begun {
            "event: ping\ndata: {\"type\":\"ping\"}\n\n"
        } else {
            ": ping\n\n"
        }
    }
}

/// An event as it is written (WHATWG HTML, section 9.2).
fn wire(event: &Sse) -> String {
    let name = event.event.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {}\n\n", event.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_streams_are_events_of_the_dialect() {
        let error = Error::NodeLost { reason: "reset".into() };
        let chat = Route::Chat.error_events(&error, "req_1");
        assert!(chat.starts_with("data: {\"error\":{") && chat.contains("node_lost"), "{chat}");
        let messages = Route::Messages.error_events(&error, "req_1");
        assert!(
            messages.starts_with("event: error\ndata: {") && messages.contains("\"api_error\""),
            "{messages}"
        );
        let responses = Route::Responses.error_events(&error, "req_1");
        assert!(responses.starts_with("event: error\n") && responses.contains("event: response.failed\n"));
        for events in [chat, messages, responses] {
            assert!(events.ends_with("\n\n"));
        }
    }

    #[test]
    fn what_a_node_answered_instead_of_a_stream_becomes_one_event() {
        assert_eq!(Route::Chat.answer_as_event("{\n \"error\": 1}"), "data: {\"error\":1}\n\n");
        assert_eq!(Route::Messages.answer_as_event("no\nJSON"), "event: error\ndata: no JSON\n\n");
    }
}
