//! The metadata of a blob: a small JSON map, for names and settings that no state depends on.

use serde_json::{Map, Value};

use super::BlobError;

/// Largest encoding, in bytes.
pub(super) const MAX_METADATA: u64 = 1 << 16;
/// Deepest nesting, the map itself counted.
const MAX_DEPTH: usize = 8;

pub(super) fn encode(map: &Map<String, Value>) -> Result<Vec<u8>, BlobError> {
    check_depth(map)?;
    serde_json::to_vec(map).map_err(|error| BlobError::Metadata { reason: error.to_string() })
}

/// Reads at most [`MAX_METADATA`] bytes, which the caller has checked.
pub(super) fn decode(bytes: &[u8]) -> Result<Map<String, Value>, BlobError> {
    let map =
        serde_json::from_slice(bytes).map_err(|error| BlobError::Metadata { reason: error.to_string() })?;
    check_depth(&map)?;
    Ok(map)
}

fn check_depth(map: &Map<String, Value>) -> Result<(), BlobError> {
    if map.values().all(|value| fits(value, MAX_DEPTH - 1)) {
        return Ok(());
    }
    Err(BlobError::Metadata { reason: format!("nested deeper than {MAX_DEPTH}") })
}

/// Whether a value nests at most `depth` levels; deeper ones are not looked into.
fn fits(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(|item| fits(item, depth - 1)),
        Value::Object(map) => depth > 0 && map.values().all(|item| fits(item, depth - 1)),
        _ => true,
    }
}
