//! `GET /openapi.json`: the routes for tools that read OpenAPI 3.1.

use axum::Json;
use serde_json::{Map, Value, json};

/// One route: method, path, what it does, and the fields of its body with their JSON types (`|` between several).
pub(crate) struct Route {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    fields: &'static [(&'static str, &'static str)],
    required: &'static [&'static str],
}

const SAMPLING: [(&str, &str); 14] = [
    ("max_tokens", "integer"),
    ("temperature", "number"),
    ("top_p", "number"),
    ("top_k", "integer"),
    ("min_p", "number"),
    ("repeat_penalty", "number"),
    ("presence_penalty", "number"),
    ("frequency_penalty", "number"),
    ("logit_bias", "object"),
    ("seed", "integer"),
    ("stop", "string|array"),
    ("ignore_eos", "boolean"),
    ("session_id", "string"),
    ("stream", "boolean"),
];

const fn get(path: &'static str, summary: &'static str) -> Route {
    Route { method: "get", path, summary, fields: &[], required: &[] }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    required: &'static [&'static str],
    fields: &'static [(&'static str, &'static str)],
) -> Route {
    Route { method: "post", path, summary, fields, required }
}

const LIMITS: [(&str, &str); 4] = [
    ("ctx_cap", "integer"),
    ("max_concurrent", "integer"),
    ("max_sessions", "integer"),
    ("reasoning_budget", "integer"),
];

pub(crate) const ROUTES: [Route; 30] = [
    get("/", "What this node is"),
    get("/health", "Whether it lives and which models are ready"),
    get("/metrics", "Metrics in Prometheus' text format"),
    get("/openapi.json", "This description"),
    get("/v1/models", "The models, in a shape that OpenAI's and Anthropic's clients read"),
    get("/v1/models/{id}", "One model"),
    post(
        "/v1/chat/completions",
        "The next message of a conversation (OpenAI Chat Completions)",
        &["messages"],
        &[
            ("model", "string"),
            ("messages", "array"),
            ("tools", "array"),
            ("tool_choice", "string|object"),
            ("parallel_tool_calls", "boolean"),
            ("max_completion_tokens", "integer"),
            ("response_format", "object"),
            ("grammar", "string"),
            ("n", "integer"),
            ("logprobs", "boolean"),
            ("top_logprobs", "integer"),
            ("reasoning_effort", "string"),
            ("reasoning_budget", "integer"),
            ("chat_template_kwargs", "object"),
            ("stream_options", "object"),
        ],
    ),
    post(
        "/v1/completions",
        "The continuation of a text (OpenAI Completions)",
        &["prompt"],
        &[
            ("model", "string"),
            ("suffix", "string"),
            ("echo", "boolean"),
            ("n", "integer"),
            ("logprobs", "integer"),
            ("response_format", "object"),
            ("grammar", "string"),
            ("stream_options", "object"),
        ],
    ),
    post(
        "/v1/responses",
        "The next message of a conversation (OpenAI Responses)",
        &["input"],
        &[
            ("model", "string"),
            ("instructions", "string"),
            ("previous_response_id", "string"),
            ("store", "boolean"),
            ("tools", "array"),
            ("text", "object"),
            ("reasoning", "object"),
            ("max_output_tokens", "integer"),
        ],
    ),
    post(
        "/v1/messages",
        "The next message of a conversation (Anthropic Messages)",
        &["messages", "max_tokens"],
        &[
            ("model", "string"),
            ("messages", "array"),
            ("tools", "array"),
            ("tool_choice", "object"),
            ("thinking", "object"),
            ("stop_sequences", "array"),
        ],
    ),
    post(
        "/v1/messages/count_tokens",
        "The tokens of a conversation",
        &["messages"],
        &[("model", "string"), ("messages", "array"), ("tools", "array")],
    ),
    post(
        "/v1/embeddings",
        "Vectors of texts",
        &["input"],
        &[("model", "string"), ("encoding_format", "string")],
    ),
    post(
        "/tokenize",
        "The tokens of a text",
        &["content"],
        &[
            ("content", "string"),
            ("add_special", "boolean"),
            ("parse_special", "boolean"),
            ("with_pieces", "boolean"),
        ],
    ),
    post("/detokenize", "The text of tokens", &["tokens"], &[("tokens", "array")]),
    post(
        "/apply-template",
        "A conversation as the model reads it",
        &["messages"],
        &[("messages", "array"), ("tools", "array"), ("add_generation_prompt", "boolean")],
    ),
    get("/models", "The node with its models, as gateways read it"),
    post(
        "/models/load",
        "Have a model, unless it is here or on its way; answers before the load is done",
        &["model_id"],
        &[
            ("model_id", "string"),
            ("name", "string"),
            ("quant", "string"),
            ("tensor_parallel", "integer"),
            ("devices", "array"),
            ("ctx_cap", "integer"),
            ("ttl_s", "integer"),
            ("pin", "boolean"),
            ("priority", "integer"),
            ("evict", "array"),
        ],
    ),
    post(
        "/models/unload",
        "Give a model up once its requests have ended; it stays known",
        &["model_id"],
        &[("model_id", "string")],
    ),
    get("/models/{id}/endpoint", "Where the inference of a model that is ready goes"),
    get("/discovery", "What the node is made of: cores, memory, devices, backend, build"),
    get("/admin/memory", "Limits, the ledger, how short memory is and what was done about it"),
    get("/admin/sessions", "The sessions that have state"),
    Route {
        method: "delete",
        path: "/admin/sessions/{id}",
        summary: "Give up the state of a session",
        fields: &[],
        required: &[],
    },
    get("/admin/sessions/{id}", "The state of a session as a blob"),
    Route {
        method: "put",
        path: "/admin/sessions/{id}",
        summary: "Keep the state of a session from a blob; kv=q8, q5 or q4 makes it smaller",
        fields: &[],
        required: &[],
    },
    get("/admin/models", "The models with state, progress, use and memory"),
    post(
        "/admin/models/load",
        "Start to load a model, or one more replica of it",
        &["model"],
        &[
            ("model", "string"),
            ("name", "string"),
            ("ctx_cap", "integer"),
            ("max_concurrent", "integer"),
            ("max_sessions", "integer"),
            ("reasoning_budget", "integer"),
            ("ttl", "integer"),
            ("pin", "boolean"),
        ],
    ),
    post(
        "/admin/models/unload",
        "Unload a model, or one replica of it, once its requests have ended",
        &[],
        &[("model", "string"), ("id", "string")],
    ),
    Route {
        method: "patch",
        path: "/admin/models/{id}",
        summary: "Change the limits of a loaded model",
        fields: &LIMITS,
        required: &[],
    },
    Route { method: "head", path: "/", summary: "Whether anybody answers", fields: &[], required: &[] },
];

/// Routes that take the fields of [`SAMPLING`].
const SAMPLED: [&str; 4] = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];

pub(crate) async fn openapi() -> Json<Value> {
    let mut paths: Map<String, Value> = Map::new();
    for route in &ROUTES {
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method] = operation(route);
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "Lichen", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": error_schema()},
        },
    }))
}

fn operation(route: &Route) -> Value {
    let error = json!({"description": "Why not", "content": {"application/json": {"schema":
        {"$ref": "#/components/schemas/Error"}}}});
    let mut operation = json!({
        "summary": route.summary,
        "responses": {"200": {"description": "The answer"}, "default": error},
    });
    if route.path.contains("{id}") {
        let schema = json!({"type": "string"});
        operation["parameters"] = json!([{"name": "id", "in": "path", "required": true, "schema": schema}]);
    }
    if matches!(route.method, "post" | "patch") {
        let sampling: &[_] = if SAMPLED.contains(&route.path) { &SAMPLING } else { &[] };
        let fields = route.fields.iter().chain(sampling);
        let properties: Map<String, Value> =
            fields.map(|(name, kind)| ((*name).to_owned(), json!({"type": types(kind)}))).collect();
        let schema = json!({"type": "object", "required": route.required, "properties": properties});
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// One type, or several with a bar between them.
fn types(kind: &str) -> Value {
    match kind.split('|').collect::<Vec<_>>().as_slice() {
        [one] => json!(one),
        several => json!(several),
    }
}

fn error_schema() -> Value {
    let text = || json!({"type": "string"});
    json!({"type": "object", "properties": {"error": {"type": "object", "properties":
        {"message": text(), "type": text(), "code": text(), "param": {"type": ["string", "null"]},
            "details": {"type": "object"}}}}})
}
