//! `POST /v1/responses`, and the conversations that later responses continue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use lichen_api::{
    Encoder, Error, Finish, Piece, Reply, ResponseEnvelope, ResponsesEncoder, Sse, Usage, assistant_message,
    parse_responses,
};
use serde_json::Value;

use crate::exchange::{Exchange, unique};
use crate::extract::Body;
use crate::generation::Ask;
use crate::node::unix_time;
use crate::prepare;
use crate::reply::Refusal;
use crate::{Model, Node};

/// Most bytes of kept conversations, as JSON text; the oldest go first.
const MOST_BYTES: usize = 64 << 20;

/// The next message of a conversation that the client sends or that is kept here.
pub(crate) async fn responses(
    State(node): State<Node>,
    Extension(exchange): Extension<Exchange>,
    Body(body): Body,
) -> Result<Response, Refusal> {
    let request = parse_responses(&body)?;
    let kept = node.conversations().clone();
    let earlier = match &request.previous_response_id {
        Some(id) => kept.get(exchange.key(), id).ok_or_else(|| {
            let reason = format!("{id} is not kept here (any more); send the whole conversation as input");
            Error::invalid("previous_response_id", reason)
        })?,
        None => Arc::default(),
    };
    let id = unique("resp");
    let envelope = ResponseEnvelope {
        id: id.clone(),
        created: unix_time(),
        model: request.turn.model.clone().unwrap_or_default(),
        echo: request.echo.clone(),
    };
    let key = exchange.key();
    let (model, session) = (request.turn.model.clone(), request.turn.session.clone());
    let ask = Ask { node, exchange, model, session, streamed: request.turn.delivery.stream };
    let mut turn = request.turn.clone();
    turn.messages = request.conversation(&earlier);
    let said = request.turn.messages.as_array().cloned().unwrap_or_default();
    let keeping =
        request.store.then(|| Keeping { kept, key, id, messages: [earlier.to_vec(), said].concat() });
    let refused = envelope.clone();
    let refusal = move |error: &Error| ResponsesEncoder::new(refused).error(error);
    let encoder = move |model: &Model| Recorder {
        inner: ResponsesEncoder::new(ResponseEnvelope { model: model.id().to_owned(), ..envelope }),
        reply: Reply::default(),
        keeping: Mutex::new(keeping),
    };
    Ok(ask.answered(encoder, refusal, move |model, exchange| prepare::turn(model, exchange, &turn)).await?)
}

/// Conversations by the response that ended them, bounded. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Conversations(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// From the oldest to the newest.
    entries: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    key: u64,
    id: String,
    messages: Arc<Vec<Value>>,
    bytes: usize,
}

impl Conversations {
    /// A conversation of the same asker.
    fn get(&self, key: u64, id: &str) -> Option<Arc<Vec<Value>>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kept.entries.iter().rev().find(|entry| entry.key == key && entry.id == id)?;
        Some(entry.messages.clone())
    }

    fn keep(&self, key: u64, id: String, messages: Vec<Value>) {
        let bytes = messages.iter().map(|message| message.to_string().len()).sum();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.bytes += bytes;
        kept.entries.push_back(Entry { key, id, messages: Arc::new(messages), bytes });
        while kept.bytes > MOST_BYTES {
            let Some(oldest) = kept.entries.pop_front() else { break };
            kept.bytes -= oldest.bytes;
        }
    }
}

/// What is to be kept once the answer is complete.
struct Keeping {
    kept: Conversations,
    key: u64,
    id: String,
    messages: Vec<Value>,
}

impl Keeping {
    fn done(mut self, reply: &Reply) {
        self.messages.push(assistant_message(reply));
        self.kept.keep(self.key, self.id, self.messages);
    }
}

/// An encoder that keeps the conversation when it is through.
struct Recorder {
    inner: ResponsesEncoder,
    reply: Reply,
    keeping: Mutex<Option<Keeping>>,
}

impl Recorder {
    fn keep(&self, reply: &Reply) {
        let keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeping) = keeping {
            keeping.done(reply);
        }
    }
}

impl Encoder for Recorder {
    fn start(&mut self, prompt_tokens: usize) -> Vec<Sse> {
        self.inner.start(prompt_tokens)
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse> {
        self.reply.push(piece.clone());
        self.inner.piece(choice, piece)
    }

    fn end(&mut self, choice: usize, finish: Finish) -> Vec<Sse> {
        self.inner.end(choice, finish)
    }

    fn finish(&mut self, usage: Usage) -> Vec<Sse> {
        self.keep(&self.reply);
        self.inner.finish(usage)
    }

    fn error(&mut self, error: &Error) -> Vec<Sse> {
        self.inner.error(error)
    }

    fn ping(&self) -> Option<Sse> {
        self.inner.ping()
    }

    fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        if let [reply] = replies {
            self.keep(reply);
        }
        self.inner.whole(replies, usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_conversations_go_first_and_nobody_reads_anothers() {
        let kept = Conversations::default();
        let large = || vec![Value::String("x".repeat(MOST_BYTES / 3))];
        for id in ["a", "b", "c"] {
            kept.keep(1, id.to_owned(), large());
        }
        assert!(kept.get(1, "a").is_none());
        assert!(kept.get(1, "b").is_some() && kept.get(1, "c").is_some());
        assert!(kept.get(2, "c").is_none());
    }
}
