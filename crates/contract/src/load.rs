//! Bringing models in and out.

use serde::{Deserialize, Serialize};

/// Asks a node to have a model. A model that is there or on its way is left as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadRequest {
    /// A path on the node, a name from its catalogue, or a reference such as `hf:OWNER/NAME`.
    pub model_id: String,
    /// The name that requests will use; `None` lets the node choose.
    #[serde(default)]
    pub name: Option<String>,
    /// Which quantisation of the reference, if it has several.
    #[serde(default)]
    pub quant: Option<String>,
    /// Devices that share one copy of the weights; `None` for one.
    #[serde(default)]
    pub tensor_parallel: Option<u32>,
    /// Devices to use; empty lets the node choose.
    #[serde(default)]
    pub devices: Vec<u32>,
    /// Most tokens of prompt and answer together; `None` for what the model and the memory allow.
    #[serde(default)]
    pub ctx_cap: Option<u32>,
    /// Seconds without a request after which it may go; `None` for as long as nobody needs the room.
    #[serde(default)]
    pub ttl_s: Option<u64>,
    /// It shall leave only when told to.
    #[serde(default)]
    pub pin: bool,
    /// Its class: it may displace models of its own class and of lower ones.
    #[serde(default)]
    pub priority: i32,
    /// Models of this node that may go for it, the least valuable first. The node takes as many of them as it needs,
    /// none that is busy or pinned. Empty lets the node choose.
    #[serde(default)]
    pub evict: Vec<String>,
}

/// What becomes of a load request. In JSON the name stands in `verdict`, beside its fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Ensured {
    /// It takes requests.
    Ready,
    /// It is on its way; the job goes on whatever becomes of who asked.
    Loading {
        /// The share done, 0 to 1.
        #[serde(default)]
        progress: f32,
        /// Seconds until it will be ready, if that can be told.
        #[serde(default)]
        eta_s: Option<u32>,
    },
    /// It is larger than this node, whatever goes for it. Asking again is of no use.
    NeverFits {
        /// Bytes needed.
        needs_bytes: u64,
        /// Bytes that all models of the node may take together.
        has_bytes: u64,
    },
    /// It would fit if it were not for models that don't give way: pinned ones, or those of a higher class.
    PinnedOut {
        /// Their names.
        by: Vec<String>,
    },
    /// It would fit if it were not for models that are answering requests, or the node has no time for it now.
    Busy {
        /// Seconds after which asking again makes sense.
        retry_after_s: u32,
    },
    /// It can't be found, read or loaded, or a load failed so lately that the next one has to wait.
    Failed {
        /// What happened, for people.
        cause: String,
        /// Seconds after which asking again makes sense; `None` if it doesn't.
        #[serde(default)]
        retry_after_s: Option<u32>,
    },
}

impl Ensured {
    /// The HTTP status that this answer comes with.
    pub fn status(&self) -> u16 {
        match self {
            Self::Ready => 200,
            Self::Loading { .. } => 202,
            Self::PinnedOut { .. } => 409,
            Self::NeverFits { .. } => 413,
            Self::Busy { .. } | Self::Failed { .. } => 503,
        }
    }
}

/// Asks a node to give a model up. Requests that run end first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnloadRequest {
    /// The name that requests use.
    pub model_id: String,
}

/// The answer to an unload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloading {
    /// The model.
    pub model_id: String,
    /// Requests that must end before it goes.
    #[serde(default)]
    pub in_flight: u32,
}

/// Where a model's inference goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The model.
    pub model_id: String,
    /// The base that `/v1/…` is appended to: `http://HOST:PORT`, no slash at the end.
    pub url: String,
}
