//! What a node tells about itself again and again.

use serde::{Deserialize, Serialize};

use crate::{Device, ModelStatus};

/// A node at one moment. Pushed to each gateway about once a second and after every change of a model's state, and
/// answered to whoever asks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The node's name, the same over restarts, unique in the fleet.
    pub node_id: String,
    /// Different for every start of the node. A new one voids everything known of the node.
    pub boot_id: String,
    /// Grows with every report of one boot, over all receivers. A report that is not newer than the last one seen is
    /// out of date.
    pub sequence: u64,
    /// Where gateways reach it: `http://HOST:PORT`, no slash at the end. `None` in an answer to somebody who has
    /// reached it already.
    #[serde(default)]
    pub address: Option<String>,
    /// It takes no new requests, because it is about to stop.
    #[serde(default)]
    pub draining: bool,
    /// Memory for models.
    #[serde(default)]
    pub memory: Memory,
    /// Its devices.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Models that are loaded, that are on their way, that failed, and that are known here without being loaded.
    #[serde(default)]
    pub models: Vec<ModelStatus>,
}

/// Memory for models, as the node's ledger has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes that all models together may take.
    #[serde(default)]
    pub budget_bytes: u64,
    /// Bytes of them that no model has or is promised.
    #[serde(default)]
    pub free_bytes: u64,
}

/// What a gateway answers to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The gateway's name.
    #[serde(default)]
    pub gateway_id: String,
    /// Milliseconds after which the next report is expected; 0 leaves it to the node.
    #[serde(default)]
    pub interval_ms: u32,
}
