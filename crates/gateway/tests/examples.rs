//! The example files say what is true.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;

use lichen_gateway::catalogue::Catalogue;
use lichen_gateway::config::Config;

#[test]
fn the_examples_are_read_and_show_the_defaults() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let mut config = Config::read(&folder.join("gateway.example.toml")).unwrap();
    let catalogue = Catalogue::read(&folder.join(config.gateway.models_config.take().unwrap())).unwrap();
    assert_eq!((config.nodes.len(), catalogue.models().len()), (2, 2));
    config.nodes.clear();
    assert_eq!(config, Config::default());
}
