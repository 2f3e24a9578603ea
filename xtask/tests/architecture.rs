//! Dependencies point one way, and only along the edges of `architecture.toml`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::BTreeSet;

fn table(path: &std::path::Path) -> toml::Table {
    std::fs::read_to_string(path)
        .unwrap()
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn strings(value: &toml::Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

#[test]
fn manifests_have_exactly_the_listed_edges() {
    let listed = table(&xtask::root().join("architecture.toml"));
    let listed = listed["crates"].as_table().unwrap();
    let mut seen = BTreeSet::new();
    for folder in xtask::crates() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = table(&folder.join("Cargo.toml"));
        assert_eq!(manifest["package"]["name"].as_str(), Some(format!("lichen-{name}").as_str()));
        assert_eq!(
            manifest["lints"]["workspace"].as_bool(),
            Some(true),
            "{name} must take the workspace lints"
        );
        let edges: BTreeSet<String> = manifest
            .get("dependencies")
            .and_then(|dependencies| dependencies.as_table())
            .into_iter()
            .flat_map(|dependencies| dependencies.keys())
            .filter_map(|key| key.strip_prefix("lichen-").map(str::to_owned))
            .collect();
        let allowed =
            strings(listed.get(&name).unwrap_or_else(|| panic!("{name} is not in architecture.toml")));
        assert_eq!(edges, allowed, "edges of {name}");
        seen.insert(name);
    }
    assert_eq!(seen, listed.keys().cloned().collect(), "crates on disk and in architecture.toml");
}

#[test]
fn unsafe_stays_in_its_places() {
    let listed = table(&xtask::root().join("architecture.toml"));
    let listed = listed["unsafe"].as_table().unwrap();
    for folder in xtask::crates() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let places: Vec<_> = listed
            .get(&name)
            .map(strings)
            .unwrap_or_default()
            .iter()
            .map(|place| folder.join(place))
            .collect();
        for file in xtask::rust_files(&folder) {
            let allowed = places.iter().any(|place| file.starts_with(place));
            let text = std::fs::read_to_string(&file).unwrap();
            let uses = text.lines().any(|line| line.contains("unsafe {") || line.contains("unsafe impl"));
            assert!(allowed || !uses, "{} uses unsafe", file.display());
        }
    }
}
