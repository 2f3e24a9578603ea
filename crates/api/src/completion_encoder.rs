//! Answers of `POST /v1/completions`, whole and in chunks.

use serde_json::{Map, Value, json};

use crate::{Encoder, Error, Finish, Piece, Reply, Sse, TokenLogprob, Usage};

/// What stays the same over all chunks of one answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletionEncoder {
    /// Unique name of the answer.
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Whether chunks carry a `usage` field.
    pub include_usage: bool,
    /// What goes before the text of each choice: the prompt if it is to be echoed. Empty without echo.
    pub echo: Vec<String>,
    /// The log-probabilities, if they were asked for.
    pub logprobs: Option<CompletionLogprobs>,
}

/// Where the log-probabilities of each choice stand: they are reported with offsets into the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompletionLogprobs {
    offsets: Vec<usize>,
}

impl CompletionEncoder {
    fn envelope(&self, choices: Value) -> Value {
        json!({"id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": choices})
    }

    fn chunk(&self, choices: Value, usage: Value) -> Sse {
        let mut chunk = self.envelope(choices);
        if self.include_usage {
            chunk["usage"] = usage;
        }
        Sse::data(&chunk)
    }

    fn text(&self, choice: usize, text: &str, logprobs: Value, finish: Value) -> Sse {
        let choice = json!({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish});
        self.chunk(json!([choice]), Value::Null)
    }

    fn echo(&self, choice: usize) -> &str {
        self.echo.get(choice).map_or("", String::as_str)
    }

    /// The offset up to which log-probabilities of a choice have been reported, moved on by those of `tokens`.
    fn advance(&mut self, choice: usize, tokens: &[TokenLogprob]) -> Option<usize> {
        let echoed = self.echo(choice).chars().count();
        let offsets = &mut self.logprobs.as_mut()?.offsets;
        while offsets.len() <= choice {
            offsets.push(echoed);
        }
        let start = offsets[choice];
        offsets[choice] += tokens.iter().map(|token| token.token.chars().count()).sum::<usize>();
        Some(start)
    }
}

/// The four parallel lists of the older API, from a text offset in characters on.
fn logprobs(tokens: &[TokenLogprob], mut offset: usize) -> Value {
    let mut offsets = Vec::with_capacity(tokens.len());
    for token in tokens {
        offsets.push(offset);
        offset += token.token.chars().count();
    }
    let top = |token: &TokenLogprob| -> Map<String, Value> {
        token.top.iter().map(|(text, _, logprob)| (text.clone(), json!(logprob))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|token| &token.token).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

impl Encoder for CompletionEncoder {
    fn start(&mut self, _prompt_tokens: usize) -> Vec<Sse> {
        let echoes = self.echo.iter().enumerate();
        echoes.map(|(choice, text)| self.text(choice, text, Value::Null, Value::Null)).collect()
    }

    fn piece(&mut self, choice: usize, piece: Piece) -> Vec<Sse> {
        match piece {
            Piece::Text { text, logprobs: tokens } if !text.is_empty() || !tokens.is_empty() => {
                let start = self.advance(choice, &tokens);
                let logprobs = start.map_or(Value::Null, |start| logprobs(&tokens, start));
                vec![self.text(choice, &text, logprobs, Value::Null)]
            }
            // A text completion is not parsed: there is nothing but text.
            _ => Vec::new(),
        }
    }

    fn end(&mut self, choice: usize, finish: Finish) -> Vec<Sse> {
        vec![self.text(choice, "", Value::Null, json!(finish.name()))]
    }

    fn finish(&mut self, usage: Usage) -> Vec<Sse> {
        let usage = self.include_usage.then(|| self.chunk(json!([]), usage.json()));
        usage.into_iter().chain([Sse::done()]).collect()
    }

    fn error(&mut self, error: &Error) -> Vec<Sse> {
        vec![Sse::data(&error.body())]
    }

    fn whole(&self, replies: &[Reply], usage: Usage) -> Value {
        let choices = replies.iter().enumerate().map(|(index, reply)| {
            let echo = self.echo(index);
            let logprobs = match self.logprobs {
                Some(_) => logprobs(&reply.logprobs, echo.chars().count()),
                None => Value::Null,
            };
            json!({"index": index, "text": format!("{echo}{}", reply.text), "logprobs": logprobs,
                "finish_reason": reply.finish.as_ref().map(Finish::name)})
        });
        let mut whole = self.envelope(choices.collect());
        whole["usage"] = usage.json();
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> TokenLogprob {
        TokenLogprob { token: text.into(), bytes: text.into(), logprob: -1.0, top: Vec::new() }
    }

    #[test]
    fn echo_and_offsets_are_the_same_in_chunks_and_as_a_whole() {
        let mut encoder = CompletionEncoder {
            id: "a".into(),
            created: 1,
            model: "m".into(),
            include_usage: false,
            echo: vec!["é!".into()],
            logprobs: Some(CompletionLogprobs::default()),
        };
        let (mut text, mut offsets, mut reply) = (String::new(), Vec::new(), Reply::default());
        let mut events = encoder.start(2);
        for word in ["ab", "c"] {
            let piece = Piece::Text { text: word.into(), logprobs: vec![token(word)] };
            events.extend(encoder.piece(0, piece.clone()));
            reply.push(piece);
        }
        for event in events {
            let chunk: Value = serde_json::from_str(&event.data).unwrap();
            text.push_str(chunk["choices"][0]["text"].as_str().unwrap());
            offsets.extend(
                chunk["choices"][0]["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default(),
            );
        }
        let whole = encoder.whole(&[reply], Usage::default());
        assert_eq!(whole["choices"][0]["text"], text);
        assert_eq!(text, "é!abc");
        assert_eq!(whole["choices"][0]["logprobs"]["text_offset"], json!(offsets));
        assert_eq!(offsets, [2, 4]);
    }
}
