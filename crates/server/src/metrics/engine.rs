//! What engines do now and have done, and what models there are.

use lichen_api::ModelCard;
use lichen_generate::{Admissions, Stats};

use super::exposition::Exposition;
use crate::host::Comings;

/// One metric: its name, kind, help, and how it is read.
type Row<T> = (&'static str, &'static str, &'static str, fn(&T) -> f64);

const MODELS: [Row<ModelCard>; 4] = [
    ("lichen_model_ready", "gauge", "Whether a replica of the model is ready, 0 or 1.", |card| {
        f64::from(u8::from(card.state == "ready"))
    }),
    ("lichen_model_replicas", "gauge", "Replicas of the model, in whatever state.", |card| {
        card.replicas as f64
    }),
    ("lichen_model_bytes", "gauge", "Memory that the model takes or will take.", |card| card.bytes as f64),
    (
        "lichen_requests_in_flight",
        "gauge",
        "Requests that use the model, from parsing to the last byte.",
        |card| card.in_flight as f64,
    ),
];

const ENGINES: [Row<Stats>; 24] = [
    ("lichen_requests_running", "gauge", "Requests being worked on.", |s| s.running as f64),
    ("lichen_requests_waiting", "gauge", "Requests that wait for their turn.", |s| s.waiting as f64),
    ("lichen_requests_paused", "gauge", "Requests that were begun and gave way.", |s| s.paused as f64),
    ("lichen_queue_wait_estimate_seconds", "gauge", "Time until a new request is likely begun.", |s| {
        s.wait_seconds
    }),
    ("lichen_kv_pages", "gauge", "KV pages that exist.", |s| s.pages as f64),
    ("lichen_kv_pages_limit", "gauge", "Most KV pages.", |s| s.page_limit as f64),
    ("lichen_kv_bytes", "gauge", "Bytes of KV pages.", |s| s.pages as f64 * s.page_bytes as f64),
    ("lichen_prefix_cache_pages", "gauge", "KV pages that only the prefix cache holds.", |s| {
        s.cached_pages as f64
    }),
    ("lichen_sessions", "gauge", "Sessions whose state is kept in preference.", |s| s.sessions as f64),
    ("lichen_prompt_tokens_total", "counter", "Prompt tokens taken in.", |s| s.prompt_tokens as f64),
    ("lichen_prefix_tokens_reused_total", "counter", "Tokens whose state was reused.", |s| {
        s.reused_tokens as f64
    }),
    ("lichen_generated_tokens_total", "counter", "Tokens generated.", |s| s.generated_tokens as f64),
    ("lichen_draft_tokens_total", "counter", "Tokens guessed.", |s| s.drafted_tokens as f64),
    ("lichen_draft_tokens_accepted_total", "counter", "Guesses that were right.", |s| {
        s.accepted_tokens as f64
    }),
    ("lichen_pauses_total", "counter", "Times that a request gave way.", |s| s.pauses as f64),
    ("lichen_steps_total", "counter", "Steps run, each on a batch of requests.", |s| s.steps as f64),
    // What routers scrape from model servers.
    ("vllm:num_requests_running", "gauge", "Requests being worked on.", |s| s.running as f64),
    ("vllm:num_requests_waiting", "gauge", "Requests that wait.", |s| (s.waiting + s.paused) as f64),
    ("vllm:kv_cache_usage_perc", "gauge", "Share of KV pages that requests hold, 0 to 1.", |s| {
        let held = s.pages.saturating_sub(s.cached_pages);
        if s.page_limit == 0 { 0.0 } else { held as f64 / s.page_limit as f64 }
    }),
    ("vllm:prompt_tokens_total", "counter", "Prompt tokens taken in.", |s| s.prompt_tokens as f64),
    ("vllm:generation_tokens_total", "counter", "Tokens generated.", |s| s.generated_tokens as f64),
    ("vllm:gpu_prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", |s| {
        s.prompt_tokens as f64
    }),
    ("vllm:gpu_prefix_cache_hits_total", "counter", "Of these, tokens whose state was reused.", |s| {
        s.reused_tokens as f64
    }),
    ("vllm:num_preemptions_total", "counter", "Times that a request gave way.", |s| s.pauses as f64),
];

pub(super) fn write_models(text: &mut Exposition, cards: &[ModelCard]) {
    for (name, kind, help, read) in MODELS {
        text.family(name, kind, help);
        for card in cards {
            text.sample(name, &[("model", &card.id)], read(card));
        }
    }
}

/// How loads ended, and why loaded replicas had to go.
pub(super) fn write_comings(text: &mut Exposition, comings: &Comings) {
    let loads = "lichen_model_loads_total";
    text.family(loads, "counter", "Loads of models that ended, by how they did.");
    comings.loads.iter().for_each(|(result, count)| text.sample(loads, &[("result", result)], *count as f64));
    let unloaded = "lichen_models_unloaded_total";
    text.family(unloaded, "counter", "Loaded replicas that had to go, by why.");
    let each = comings.unloaded.iter();
    each.for_each(|(reason, count)| text.sample(unloaded, &[("reason", reason)], *count as f64));
}

/// Each engine comes with its model's name and the number of the replica.
pub(super) fn write_engines(text: &mut Exposition, engines: &[(String, String, Stats)]) {
    write_admissions(text, engines);
    for (name, kind, help, read) in ENGINES {
        text.family(name, kind, help);
        let label = if name.starts_with("vllm:") { "model_name" } else { "model" };
        for (model, replica, stats) in engines {
            text.sample(name, &[(label, model), ("replica", replica)], read(stats));
        }
    }
}

fn write_admissions(text: &mut Exposition, engines: &[(String, String, Stats)]) {
    let name = "lichen_admission_total";
    text.family(name, "counter", "What became of requests when they came.");
    for (model, replica, stats) in engines {
        for (result, reason, count) in admissions(&stats.admissions) {
            let labels =
                [("model", model.as_str()), ("replica", replica), ("result", result), ("reason", reason)];
            text.sample(name, &labels, count as f64);
        }
    }
}

/// Result, reason and count.
fn admissions(counts: &Admissions) -> [(&'static str, &'static str, u64); 7] {
    [
        ("admitted", "room", counts.admitted),
        ("queued", "slot", counts.queued_for_slot),
        ("queued", "memory", counts.queued_for_memory),
        ("refused", "context_over_budget", counts.over_context),
        ("refused", "memory_impossible", counts.over_memory),
        ("refused", "queue_full", counts.queue_full),
        ("refused", "memory_over_budget", counts.timed_out),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let models = MODELS.iter().map(|(name, kind, help, _)| (name, kind, help));
        let engines = ENGINES.iter().map(|(name, kind, help, _)| (name, kind, help));
        for (name, kind, help) in models.chain(engines) {
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
            assert!(help.ends_with('.'), "{help}");
        }
    }
}
