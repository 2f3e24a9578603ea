//! The models that a node knows by name before anybody asks for them: those of its configuration, and the files in its
//! folders.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lichen_server::{LoadOrder, Loader, ModelOptions};

use crate::node_config::{ModelConfig, NodeConfig};
use crate::output;

/// The known models, each name once. A folder that can't be read is told and left out.
pub(crate) fn known_models(config: &NodeConfig) -> Vec<LoadOrder> {
    let mut known: Vec<LoadOrder> = config.models.iter().map(of_config).collect();
    for folder in &config.node.model_folders {
        match files(folder) {
            Ok(files) => {
                for order in files {
                    if !known.iter().any(|before| before.name == order.name) {
                        known.push(order);
                    }
                }
            }
            Err(error) => {
                output::note(format_args!("cannot list the models in {}: {error}", folder.display()))
            }
        }
    }
    known
}

/// The order of a default model: a known name, or else a reference.
pub(crate) fn default_model(known: &[LoadOrder], model: &str, loader: &dyn Loader) -> LoadOrder {
    let declared = known.iter().find(|order| order.name == model);
    declared.cloned().unwrap_or_else(|| plain(model.to_owned(), loader.name(model)))
}

fn plain(reference: String, name: String) -> LoadOrder {
    LoadOrder { reference, name, options: ModelOptions::default(), ttl: None, pinned: false, priority: 0 }
}

fn of_config(model: &ModelConfig) -> LoadOrder {
    LoadOrder {
        reference: model.model.clone(),
        name: model.name.get_ref().clone(),
        options: ModelOptions {
            ctx_cap: model.ctx_cap.map(std::num::NonZeroU32::get),
            max_sessions: model.max_sessions,
            max_concurrent: model.max_concurrent,
            reasoning_budget: model.reasoning_budget,
        },
        ttl: model.ttl_s.map(Duration::from_secs),
        pinned: model.pin,
        priority: model.priority,
    }
}

/// The model files in a folder, by name.
fn files(folder: &Path) -> Result<Vec<LoadOrder>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "gguf")
            && let Some(name) = path.file_stem()
        {
            found.push(plain(path.to_string_lossy().into_owned(), name.to_string_lossy().into_owned()));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
