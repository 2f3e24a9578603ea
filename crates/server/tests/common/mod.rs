//! A scripted engine, a toy language and a small HTTP client over loopback.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub, missing_docs)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lichen_generate::{
    Constraint, Event, FinishReason, Generate, GenerateError, Request, Sink, Stats, Ticket, Usage,
};
use lichen_server::{Conversation, Info, Language, Model, Node, Settings};
use lichen_text::ChatTemplate;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One byte a token.
pub struct Bytes;

impl Language for Bytes {
    fn encode(&self, text: &str, add_special: bool, _parse_special: bool) -> Vec<u32> {
        let start = add_special.then_some(256);
        start.into_iter().chain(text.bytes().map(u32::from)).collect()
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn apply_template(&self, conversation: Conversation<'_>) -> Result<String, String> {
        let mut prompt = String::new();
        for message in conversation.messages.as_array().ok_or("no messages")? {
            if message["role"] == "tool" {
                return Err("tools are unknown to this template".into());
            }
            let (role, content) =
                (message["role"].as_str().unwrap_or(""), message["content"].as_str().unwrap_or(""));
            prompt.push_str(&format!("<{role}>{content}\n"));
        }
        if conversation.add_generation_prompt {
            prompt.push_str("<assistant>");
        }
        Ok(prompt)
    }

    fn template_source(&self) -> Option<&str> {
        Some("<think> <tool_call> {{ tools }}")
    }

    fn vocabulary_size(&self) -> usize {
        258
    }

    fn token_bytes(&self, token: u32) -> &[u8] {
        static ALL: [u8; 256] = {
            let mut all = [0; 256];
            let mut byte = 0;
            while byte < 256 {
                all[byte] = byte as u8;
                byte += 1;
            }
            all
        };
        ALL.get(token as usize..token as usize + 1).unwrap_or(b"<end>")
    }

    fn is_control(&self, token: u32) -> bool {
        token > 255
    }

    fn end_tokens(&self) -> Vec<u32> {
        vec![257]
    }
}

/// The same tokens under a real chat template.
pub struct Templated(pub ChatTemplate);

impl Templated {
    pub fn new(source: &str) -> Self {
        Self(ChatTemplate::new(source, "", "").unwrap())
    }
}

impl Language for Templated {
    fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u32> {
        Bytes.encode(text, add_special, parse_special)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        Bytes.decode(tokens)
    }

    fn apply_template(&self, conversation: Conversation<'_>) -> Result<String, String> {
        let Conversation { messages, tools, add_generation_prompt, variables } = conversation;
        self.0.render(messages, tools, add_generation_prompt, variables).map_err(|error| error.to_string())
    }

    fn template_source(&self) -> Option<&str> {
        Some(self.0.source())
    }

    fn vocabulary_size(&self) -> usize {
        Bytes.vocabulary_size()
    }

    fn token_bytes(&self, token: u32) -> &[u8] {
        Bytes.token_bytes(token)
    }

    fn is_control(&self, token: u32) -> bool {
        Bytes.is_control(token)
    }

    fn end_tokens(&self) -> Vec<u32> {
        Bytes.end_tokens()
    }
}

/// Whether an answer under `constraint` may consist of `text`.
pub fn follows(mut constraint: Box<dyn Constraint>, text: &str) -> bool {
    let mut allows = |token: u32| {
        let mut logits = vec![0.0; Bytes.vocabulary_size()];
        constraint.mask(&mut logits).unwrap();
        logits[token as usize] == 0.0 && constraint.accept(token).is_ok()
    };
    text.bytes().map(u32::from).chain(Bytes.end_tokens()).all(&mut allows)
}

/// What the scripted engine does with a request.
#[derive(Debug, Clone)]
pub enum Act {
    Say(&'static str),
    Sleep(Duration),
    Finish(FinishReason),
    Fail(GenerateError),
    /// Works until cancelled.
    Forever,
    /// Goes away without a last event.
    Vanish,
    Panic,
}

#[derive(Default)]
pub struct Scripted {
    pub acts: Vec<Act>,
    pub refusal: Option<GenerateError>,
    /// It doesn't tell that it begins.
    pub silent: bool,
    /// What every answer used; by default the prompt and two tokens.
    pub usage: Option<Usage>,
    pub stats: Stats,
    pub requests: Mutex<Vec<Request>>,
    pub submitted: AtomicUsize,
    pub cancelled: Arc<AtomicBool>,
}

impl Scripted {
    pub fn new(acts: impl Into<Vec<Act>>) -> Arc<Self> {
        Arc::new(Self { acts: acts.into(), ..Self::default() })
    }

    pub fn refusing(error: GenerateError) -> Arc<Self> {
        Arc::new(Self { refusal: Some(error), ..Self::default() })
    }

    /// Waits until the request was cancelled; false after two seconds.
    pub async fn was_cancelled(&self) -> bool {
        wait_for(|| self.cancelled.load(Ordering::Acquire)).await
    }

    /// The request that was submitted last.
    pub fn last(&self) -> Request {
        self.requests.lock().unwrap().last().unwrap().clone()
    }

    /// Its prompt as text.
    pub fn last_prompt(&self) -> String {
        Bytes.decode(&self.last().prompt)
    }

    pub async fn was_submitted(&self) -> bool {
        wait_for(|| self.submitted.load(Ordering::Acquire) > 0).await
    }
}

async fn wait_for(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > Duration::from_secs(2) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

impl Generate for Scripted {
    fn context_cap(&self) -> usize {
        128
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn submit(&self, request: Request, mut sink: Sink) -> Result<Ticket, GenerateError> {
        if let Some(error) = &self.refusal {
            return Err(error.clone());
        }
        assert!(!self.acts.iter().any(|act| matches!(act, Act::Panic)), "a scripted panic");
        let usual = Usage { prompt_tokens: request.prompt.len(), completion_tokens: 2, ..Usage::default() };
        let usage = self.usage.unwrap_or(usual);
        self.requests.lock().unwrap().push(request);
        let (ticket, flag) = Ticket::new();
        let (acts, cancelled, silent) = (self.acts.clone(), self.cancelled.clone(), self.silent);
        std::thread::spawn(move || {
            if !silent {
                sink(Event::Prefill { done: 1, total: 2 });
            }
            for act in acts {
                match act {
                    Act::Say(text) => sink(Event::Text { text: text.into(), logprobs: Vec::new() }),
                    Act::Sleep(time) => std::thread::sleep(time),
                    Act::Finish(reason) => sink(Event::Finished { reason, usage }),
                    Act::Fail(error) => sink(Event::Failed(error)),
                    Act::Forever => {
                        while !flag.load(Ordering::Acquire) {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        cancelled.store(true, Ordering::Release);
                    }
                    Act::Vanish | Act::Panic => return,
                }
            }
        });
        self.submitted.fetch_add(1, Ordering::Release);
        Ok(ticket)
    }
}

pub struct Server {
    pub address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    pub done: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub async fn start(engine: &Arc<Scripted>) -> Self {
        Self::with(engine, Settings::default(), &["org/toy"]).await
    }

    pub async fn with(engine: &Arc<Scripted>, settings: Settings, names: &[&str]) -> Self {
        let models = names.iter().map(|name| Model::new(*name, engine.clone(), Arc::new(Bytes))).collect();
        Self::serving(models, settings).await
    }

    /// One model under a real chat template.
    pub async fn templated(engine: &Arc<Scripted>, template: &str) -> Self {
        let model = Model::new("org/toy", engine.clone(), Arc::new(Templated::new(template)));
        Self::serving(vec![model], Settings::default()).await
    }

    async fn serving(models: Vec<Model>, settings: Settings) -> Self {
        let info = Info { name: "test".into(), backend: "cpu".into(), ..Info::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let done = tokio::spawn(lichen_server::serve(
            listener,
            Node::new(info, settings, models).unwrap(),
            async move {
                let _ = stopped.await;
            },
        ));
        Self { address, stop: Some(stop), done }
    }

    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub async fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body.as_bytes()).await.unwrap();
        socket
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Reply {
        let mut socket = self.open(method, path, headers, body).await;
        let mut raw = Vec::new();
        tokio::time::timeout(Duration::from_secs(10), socket.read_to_end(&mut raw)).await.unwrap().unwrap();
        Reply::parse(&raw)
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, "", "").await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.ask("POST", path, "", &body.to_string()).await
    }
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    fn parse(raw: &[u8]) -> Self {
        let text = String::from_utf8(raw.to_vec()).unwrap();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap();
        let head = head.to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let chunked = head.contains("transfer-encoding: chunked");
        Self { status, body: if chunked { unchunk(rest) } else { rest.to_owned() }, head }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// Payloads of the events.
    pub fn events(&self) -> Vec<&str> {
        self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect()
    }
}

fn unchunk(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, tail)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body.push_str(&tail[..size]);
        rest = tail.get(size + 2..).unwrap_or("");
    }
    body
}
