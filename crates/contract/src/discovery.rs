//! What a node is made of. It changes only when the node starts anew.

use serde::{Deserialize, Serialize};

/// The hardware of a node and what it computes with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Discovery {
    /// The node's name, the same over restarts.
    pub node_id: String,
    /// Different for every start of the node.
    pub boot_id: String,
    /// Cores that it may use, those of its control group if that has fewer.
    #[serde(default)]
    pub cores: u32,
    /// Memory of the host in bytes.
    #[serde(default)]
    pub ram_bytes: u64,
    /// Limit of its control group in bytes; `None` without one.
    #[serde(default)]
    pub cgroup_limit_bytes: Option<u64>,
    /// Bytes that its models may take together.
    #[serde(default)]
    pub budget_bytes: u64,
    /// What it computes with, `cpu` or `cuda` for example.
    #[serde(default)]
    pub backend: String,
    /// Version and build of the program.
    #[serde(default)]
    pub build: String,
    /// Its devices; a node that computes on the CPU has the CPU as its one device.
    #[serde(default)]
    pub devices: Vec<Device>,
}

/// A device that holds models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its number on this node, as `devices` of a load has it.
    #[serde(default)]
    pub index: u32,
    /// The backend that drives it.
    #[serde(default)]
    pub backend: String,
    /// Its name for people.
    #[serde(default)]
    pub name: String,
    /// What it can compute: an instruction set such as `avx512-vnni`, or a compute capability such as `9.0`.
    #[serde(default)]
    pub capability: String,
    /// Its memory in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Bytes of it that nothing is promised to.
    #[serde(default)]
    pub free_bytes: u64,
}
