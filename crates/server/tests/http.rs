//! The routes over real loopback HTTP, against a scripted engine.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Act, Scripted, Server};
use lichen_generate::{FinishReason, GenerateError, Sampling, TurnSize};
use lichen_server::Settings;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const STOP: Act = Act::Finish(FinishReason::Stop);

fn hello(stream: bool) -> Value {
    json!({"model": "org/toy", "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn a_chat_answer_as_a_whole() {
    let engine = Scripted::new([Act::Say("Hel"), Act::Say("lo"), STOP]);
    let server = Server::start(&engine).await;
    let reply = server.post(CHAT, hello(false)).await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("x-request-id").is_some());
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["choices"][0]["message"]["content"], "Hello");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["total_tokens"], 22);
    let prompt = engine.requests.lock().unwrap()[0].prompt.clone();
    assert_eq!(prompt, "<user>hi\n<assistant>".bytes().map(u32::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_chat_answer_as_a_stream() {
    let engine = Scripted::new([Act::Say("a\nb"), Act::Say("c"), Act::Finish(FinishReason::Length)]);
    let server = Server::start(&engine).await;
    let mut body = hello(true);
    body["stream_options"] = json!({"include_usage": true});
    let reply = server.post(CHAT, body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let events = reply.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert_eq!(chunks.len(), 5);
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks[1]["choices"][0]["delta"]["content"], "a\nb");
    assert_eq!(chunks[1].get("usage"), Some(&Value::Null));
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[4]["choices"], json!([]));
    assert_eq!(chunks[4]["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn text_completions_in_both_modes() {
    let engine = Scripted::new([Act::Say("x"), STOP]);
    let server = Server::start(&engine).await;
    let whole =
        server.post("/v1/completions", json!({"prompt": [7, 8], "max_tokens": 3, "seed": 5})).await.json();
    assert_eq!((&whole["object"], &whole["choices"][0]["text"]), (&json!("text_completion"), &json!("x")));
    let streamed = server.post("/v1/completions", json!({"prompt": "a", "stream": true})).await;
    let events = streamed.events();
    assert_eq!(events.len(), 3);
    assert_eq!(serde_json::from_str::<Value>(events[0]).unwrap()["choices"][0]["text"], "x");
    let requests = engine.requests.lock().unwrap();
    assert_eq!((&requests[0].prompt, requests[0].max_tokens), (&vec![7, 8], Some(3)));
    assert_eq!(requests[0].sampling.seed, Some(5));
    assert_eq!(requests[1].prompt, [256, 97]);
}

#[tokio::test]
async fn errors_have_the_openai_shape() {
    let engine = Scripted::new([STOP]);
    let server = Server::start(&engine).await;
    let cases = [
        (server.get("/nowhere").await, 404, "not_found", Value::Null),
        (server.get(CHAT).await, 405, "method_not_allowed", Value::Null),
        (
            server.post(CHAT, json!({"model": "other", "messages": [{"role": "user", "content": ""}]})).await,
            404,
            "model_not_found",
            json!("model"),
        ),
        (server.ask("POST", CHAT, "", "{").await, 400, "invalid_request", json!("body")),
        (
            server.post(CHAT, json!({"messages": [{"role": "tool", "content": ""}]})).await,
            400,
            "invalid_request",
            json!("messages"),
        ),
        (
            server.post("/v1/completions", json!({"prompt": ["a", 1]})).await,
            400,
            "invalid_request",
            json!("prompt"),
        ),
        (
            server.post(CHAT, json!({"tools": [{}], "messages": [{"role": "user", "content": ""}]})).await,
            400,
            "invalid_request",
            json!("tools[0].type"),
        ),
        (server.get("/v1/models/gone").await, 404, "model_not_found", json!("model")),
    ];
    for (reply, status, kind, param) in cases {
        let error = reply.error();
        assert_eq!(
            (reply.status, &error["type"], &error["param"]),
            (status, &json!(kind), &param),
            "{error}"
        );
        assert!(error["message"].is_string() && error["details"].is_object());
        assert!(reply.header("x-request-id").is_some());
    }
    let unknown = server.get("/v1/models/gone").await.error();
    assert_eq!(unknown["details"]["loaded"], json!(["org/toy"]));
}

#[tokio::test]
async fn refusals_of_the_engine_come_with_their_status() {
    let size = TurnSize { prompt_tokens: 200, requested_tokens: 1, context_cap: 128, ..TurnSize::default() };
    let long = GenerateError::ContextOverBudget(Box::new(size.clone()));
    let large = GenerateError::MemoryImpossible(Box::new(size));
    let full = GenerateError::QueueFull { queued: 8, limit: 8, estimate: Duration::from_millis(6500) };
    let cases = [
        (long, 400, "context_length_exceeded"),
        (large, 400, "memory_impossible"),
        (full, 429, "queue_full"),
        (GenerateError::Engine("x".into()), 500, "engine_fault"),
    ];
    for (error, status, code) in cases {
        let server = Server::start(&Scripted::refusing(error)).await;
        for stream in [false, true] {
            let reply = server.post(CHAT, hello(stream)).await;
            assert_eq!((reply.status, &reply.error()["code"]), (status, &json!(code)));
            assert_eq!(reply.header("retry-after").is_some(), status == 429);
        }
    }
}

#[tokio::test]
async fn a_wait_for_memory_in_vain_has_a_status_in_every_dialect() {
    let error = GenerateError::MemoryOverBudget {
        need_bytes: 9,
        available_bytes: 4,
        level: "tight",
        largest: vec![("chat".into(), 7)],
        waited: Duration::from_secs(2),
        estimate: Duration::from_secs(600),
    };
    // It comes before the request has begun.
    let acts = vec![Act::Sleep(Duration::from_millis(20)), Act::Fail(error)];
    let engine = Arc::new(Scripted { acts, silent: true, ..Scripted::default() });
    let server = Server::start(&engine).await;
    for stream in [false, true] {
        let reply = server.post(CHAT, hello(stream)).await;
        assert_eq!((reply.status, &reply.error()["type"]), (503, &json!("memory_over_budget")));
        assert_eq!(reply.header("retry-after"), Some("60"));
        let details = json!({
            "need_bytes": 9, "available_bytes": 4, "level": "tight", "waited_s": 2,
            "largest_owners": [{"owner": "chat", "bytes": 7}],
        });
        assert_eq!(reply.error()["details"], details);
        let mut body = hello(stream);
        body["max_tokens"] = json!(4);
        let reply = server.post("/v1/messages", body).await;
        assert_eq!((reply.status, &reply.error()["type"]), (529, &json!("overloaded_error")));
        assert_eq!(reply.error()["details"], details);
    }
}

#[tokio::test]
async fn an_engine_that_breaks_is_reported() {
    for act in [Act::Fail(GenerateError::Engine("x".into())), Act::Vanish] {
        let server = Server::start(&Scripted::new([Act::Say("a"), act])).await;
        let whole = server.ask("POST", CHAT, "x-request-id: abc\r\n", &hello(false).to_string()).await;
        assert_eq!((whole.status, &whole.error()["details"]["request_id"]), (500, &json!("abc")));
        let streamed = server.post(CHAT, hello(true)).await;
        let last: Value = serde_json::from_str(streamed.events().last().unwrap()).unwrap();
        assert_eq!((streamed.status, &last["error"]["type"]), (200, &json!("engine_fault")));
    }
    let server = Server::start(&Scripted::new([Act::Panic])).await;
    assert_eq!(server.post(CHAT, hello(true)).await.status, 500);
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_large_body_is_refused_in_json() {
    let settings = Settings { body_limit: 1000, ..Settings::default() };
    let server = Server::with(&Scripted::new([STOP]), settings, &["m"]).await;
    let reply = server.post(CHAT, json!({"messages": "x".repeat(2000)})).await;
    assert_eq!((reply.status, &reply.error()["details"]["limit_bytes"]), (413, &json!(1000)));
    // Above the default of the HTTP library, below ours.
    let server = Server::start(&Scripted::new([STOP])).await;
    let mut body = hello(false);
    body["messages"][0]["content"] = json!("x".repeat(3 << 20));
    assert_eq!(server.post(CHAT, body).await.status, 200);
}

#[tokio::test]
async fn the_node_describes_itself() {
    let engine = Scripted::new([STOP]);
    let server = Server::with(&engine, Settings::default(), &["org/a", "b"]).await;
    assert_eq!(server.get("/").await.json()["backend"], "cpu");
    assert_eq!(server.ask("HEAD", "/", "", "").await.status, 200);
    let health = server.get("/health").await.json();
    assert_eq!((&health["status"], &health["models"][1]["id"]), (&json!("ok"), &json!("b")));
    let list = server.get("/v1/models?limit=1000").await.json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("org/a")));
    let one = server.get("/v1/models/org/a").await.json();
    assert_eq!(one["limit"], json!({"context": 128, "output": 128}));
    let unnamed = server.post(CHAT, json!({"messages": [{"role": "user", "content": ""}]})).await;
    assert_eq!((unnamed.status, &unnamed.error()["param"]), (400, &json!("model")));
}

#[tokio::test]
async fn tokens_and_templates() {
    let server = Server::start(&Scripted::new([STOP])).await;
    let tokens = server.post("/tokenize", json!({"content": "ab", "add_special": true})).await.json();
    assert_eq!(tokens["tokens"], json!([256, 97, 98]));
    let pieces = server.post("/tokenize", json!({"content": "a", "with_pieces": true})).await.json();
    assert_eq!(pieces["tokens"], json!([{"id": 97, "piece": "a"}]));
    assert_eq!(server.post("/detokenize", json!({"tokens": [97, 98]})).await.json()["content"], "ab");
    assert_eq!(server.post("/detokenize", json!({"tokens": "ab"})).await.status, 400);
    let rendered =
        server.post("/apply-template", json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert_eq!(rendered.json()["prompt"], "<user>a\n<assistant>");
}

#[tokio::test]
async fn browsers_are_let_in() {
    let server = Server::start(&Scripted::new([STOP])).await;
    let headers = "origin: http://a\r\naccess-control-request-headers: x-stainless-os, authorization\r\n";
    let reply = server.ask("OPTIONS", CHAT, headers, "").await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    assert_eq!(reply.header("access-control-allow-headers"), Some("x-stainless-os, authorization"));
    let error = server.get("/nowhere").await;
    assert_eq!(error.header("access-control-expose-headers"), Some("x-request-id, request-id, retry-after"));
}

#[tokio::test]
async fn defaults_apply_where_the_request_is_silent() {
    let engine = Scripted::new([STOP]);
    let server = Server::start(&engine).await;
    let mut body = hello(false);
    body["temperature"] = json!(0);
    body["stop"] = json!(["x", "y"]);
    server.post(CHAT, body).await;
    let request = engine.requests.lock().unwrap()[0].clone();
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.0, 1.0));
    assert_eq!(request.stop, ["x", "y"]);
}

#[tokio::test]
async fn every_field_of_sampling_reaches_the_engine_on_both_routes() {
    let engine = Scripted::new([STOP]);
    let server = Server::start(&engine).await;
    let fields = json!({
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repeat_penalty": 1.5,
        "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"65": -100}, "seed": 3, "stop": "x",
        "max_tokens": 9, "max_completion_tokens": 5, "ignore_eos": true, "session_id": "s",
    });
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 4});
    for (path, mut body) in [(CHAT, chat), ("/v1/completions", json!({"prompt": "hi", "logprobs": 4}))] {
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        let request = engine.last();
        let expected = Sampling {
            temperature: 0.5,
            top_k: 7,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: 1.0,
            frequency_penalty: -1.0,
            logit_bias: vec![(65, -100.0)],
            seed: Some(3),
            ..Sampling::default()
        };
        assert_eq!(request.sampling, expected, "{path}");
        assert_eq!((request.max_tokens, request.logprobs, request.ignore_end), (Some(5), Some(4), true));
        assert_eq!((request.stop, request.session.is_some()), (vec!["x".to_owned()], true));
        body["logit_bias"] = json!({"258": 1});
        let error = server.post(path, body).await.error();
        assert_eq!((&error["code"], &error["param"]), (&json!("invalid_request"), &json!("logit_bias")));
    }
}

#[tokio::test]
async fn what_is_known_and_not_supported_is_refused_and_what_is_unknown_is_ignored() {
    let server = Server::start(&Scripted::new([STOP])).await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (path, body) in [(CHAT, chat), ("/v1/completions", json!({"prompt": "hi"}))] {
        let with = |name: &str, value: Value| {
            let mut body = body.clone();
            body[name] = value;
            server.post(path, body)
        };
        for name in ["guided_json", "structured_outputs", "min_tokens", "kv", "truncate_prompt_tokens"] {
            let reply = with(name, json!(1)).await;
            assert_eq!((reply.status, &reply.error()["param"]), (400, &json!(name)), "{path}");
        }
        for name in ["user", "metadata", "store", "never_heard_of"] {
            assert_eq!(with(name, json!({"a": 1})).await.status, 200, "{path} {name}");
        }
    }
}

#[tokio::test]
async fn every_described_route_is_there() {
    let server = Server::start(&Scripted::new([STOP])).await;
    let description = server.get("/openapi.json").await.json();
    let mut routes = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let reply = server.ask(&method.to_uppercase(), &path.replace("{id}", "org/toy"), "", "").await;
            assert!(!matches!(reply.status, 404 | 405), "{method} {path}: {reply:?}");
            routes += 1;
        }
    }
    assert!(routes >= 20, "{routes}");
}

#[tokio::test]
async fn a_key_is_needed_where_there_are_keys() {
    let settings = Settings { api_keys: lichen_server::ApiKeys::parse("secret"), ..Settings::default() };
    let server = Server::with(&Scripted::new([STOP]), settings, &["org/toy"]).await;
    let body = hello(false).to_string();
    assert_eq!(server.post(CHAT, hello(false)).await.status, 401);
    assert_eq!(server.ask("POST", CHAT, "authorization: Bearer secret\r\n", &body).await.status, 200);
    let anthropic = server.ask("POST", "/v1/messages", "x-api-key: wrong\r\n", "{}").await;
    assert_eq!((anthropic.status, &anthropic.json()["type"]), (401, &json!("error")));
    assert_eq!(anthropic.error()["type"], "authentication_error");
    for open in ["/", "/health", "/metrics"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
}

#[tokio::test]
async fn the_access_log_tells_how_long_the_answer_took() {
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = lines.clone();
    let log = move |line: &str| taken.lock().unwrap().push(serde_json::from_str::<Value>(line).unwrap());
    let settings = Settings { access_log: Some(Arc::new(log)), ..Settings::default() };
    let server = Server::with(&Scripted::new([Act::Say("x"), STOP]), settings, &["org/toy"]).await;
    for stream in [false, true] {
        server.post(CHAT, hello(stream)).await;
    }
    server.ask("POST", CHAT, "x-request-id: mine\r\n", "{").await;
    server.get("/health").await;
    let lines = lines.lock().unwrap();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines[..2] {
        assert_eq!(
            (&line["path"], &line["status"], &line["model"]),
            (&json!(CHAT), &json!(200), &json!("org/toy"))
        );
        assert!(
            line["ttft_s"].is_number() && line["itl_s"].is_number() && line["duration_s"].is_number(),
            "{line}"
        );
        assert_eq!((&line["completion_tokens"], &line["finish_reason"]), (&json!(2), &json!("stop")));
    }
    assert_eq!((&lines[2]["request_id"], &lines[2]["status"]), (&json!("mine"), &json!(400)));
}

#[tokio::test]
async fn several_answers_come_under_their_numbers() {
    let engine = Scripted::new([Act::Say("Hel"), Act::Say("lo"), STOP]);
    let server = Server::start(&engine).await;
    let mut body = hello(false);
    (body["n"], body["seed"]) = (json!(3), json!(5));
    let whole = server.post(CHAT, body.clone()).await.json();
    for index in 0..3 {
        let choice = &whole["choices"][index];
        assert_eq!((&choice["index"], &choice["message"]["content"]), (&json!(index), &json!("Hello")));
    }
    assert_eq!(whole["usage"]["completion_tokens"], 6);
    let seeds: Vec<_> = engine.requests.lock().unwrap().iter().map(|r| r.sampling.seed.unwrap()).collect();
    assert_eq!(seeds, [5, 6, 7]);
    body["stream"] = json!(true);
    let streamed = server.post(CHAT, body).await;
    assert_eq!(streamed.events().last(), Some(&"[DONE]"));
    let ends = streamed.events().iter().filter(|event| event.contains("\"finish_reason\":\"stop\"")).count();
    assert_eq!(ends, 3);
}

#[tokio::test]
async fn thinking_and_calls_are_told_apart_in_every_dialect() {
    let said = "<think>hm</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let server = Server::start(&Scripted::new([Act::Say(said), STOP])).await;
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let mut body = hello(false);
    body["tools"] = json!([{"type": "function", "function": {"name": "add", "parameters": parameters}}]);
    let chat = server.post(CHAT, body).await.json();
    let (message, reason) = (&chat["choices"][0]["message"], &chat["choices"][0]["finish_reason"]);
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("Let me see.")));
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "add", "arguments": "{\"a\": 1}"}));
    assert_eq!(reason, "tool_calls");

    let tools = json!([{"name": "add", "input_schema": parameters}]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let body = json!({"model": "org/toy", "max_tokens": 50, "messages": messages, "tools": tools});
    let anthropic = server.post("/v1/messages", body).await.json();
    let kinds: Vec<_> = anthropic["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"], "{anthropic}");
    assert_eq!(
        (&anthropic["content"][2]["input"], &anthropic["stop_reason"]),
        (&json!({"a": 1}), &json!("tool_use"))
    );

    let tools = json!([{"type": "function", "name": "add", "parameters": parameters}]);
    let body = json!({"model": "org/toy", "input": "hi", "tools": tools});
    let responses = server.post("/v1/responses", body).await.json();
    let kinds: Vec<_> = responses["output"].as_array().unwrap().iter().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"], "{responses}");
}
