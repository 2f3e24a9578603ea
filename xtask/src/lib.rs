//! Checks of the source tree that the compiler doesn't make. They run as tests: `cargo test -p xtask`.

use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every `.rs` file under `folder`, sorted.
///
/// # Panics
/// If a folder can't be read: the checks have no meaning on half a tree.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).expect("a folder of the source tree is readable");
        for entry in entries {
            let path = entry.expect("an entry of the source tree is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The folders under `crates/`, sorted.
///
/// # Panics
/// If the folder can't be read.
pub fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("crates")).expect("the folder of crates is readable");
    let mut crates: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry of the source tree is readable").path()).collect();
    crates.sort();
    crates
}
