//! A model as its node sees it.

use serde::{Deserialize, Serialize};

/// Where a model is on its way into memory and out of it. In JSON the name stands in `state`, beside its fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ModelState {
    /// Known here and not in memory; a load may bring it.
    #[default]
    Absent,
    /// Its files are being fetched or read off a slow place; no memory is taken yet.
    Staging {
        /// The share done, 0 to 1.
        #[serde(default)]
        progress: f32,
        /// Seconds until it will be ready, if that can be told.
        #[serde(default)]
        eta_s: Option<u32>,
    },
    /// Its memory is reserved and it is being loaded, or waits for its turn.
    Loading {
        /// The share done, 0 to 1.
        #[serde(default)]
        progress: f32,
        /// Seconds until it will be ready, if that can be told.
        #[serde(default)]
        eta_s: Option<u32>,
    },
    /// It takes requests.
    Ready,
    /// It takes no new requests and goes when the last one ends.
    Draining,
    /// Its load failed, or it broke later. Another load may be asked for.
    Failed {
        /// What happened, for people.
        #[serde(default)]
        cause: String,
    },
    /// A state that this version doesn't know. Nothing is sent to such a model.
    #[serde(other)]
    Unknown,
}

/// A model with what runs on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// The name that requests use on this node.
    pub id: String,
    /// Where it is. Of several replicas the best state counts.
    #[serde(flatten)]
    pub state: ModelState,
    /// Requests that it is answering, over all replicas.
    #[serde(default)]
    pub in_flight: u32,
    /// Requests that wait for their turn, not counted in `in_flight`.
    #[serde(default)]
    pub queued: u32,
    /// The share of its key-value memory that is in use, 0 to 1; the fullest replica counts.
    #[serde(default)]
    pub kv_use: f32,
    /// Bytes that it takes now or, while it loads, will take; of an absent one the estimate, 0 if unknown.
    #[serde(default)]
    pub bytes: u64,
    /// It leaves only when told to.
    #[serde(default)]
    pub pinned: bool,
    /// Its class: a model may displace those of its own class and of lower ones.
    #[serde(default)]
    pub priority: i32,
    /// Seconds since a request last started or ended on it; `None` if there was none.
    #[serde(default)]
    pub idle_s: Option<u32>,
    /// Seconds that its last load took, if it was loaded since the node started.
    #[serde(default)]
    pub load_s: Option<u32>,
    /// Most tokens of prompt and answer together, once that is known.
    #[serde(default)]
    pub context_cap: Option<u32>,
}
