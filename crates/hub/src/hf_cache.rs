//! A Hugging Face cache that is already there: `models--owner--repo/{refs,snapshots,blobs}`, read only.

use std::fs;
use std::path::{Path, PathBuf};

use crate::part::Expected;
use crate::reference::is_relative_file;
use crate::{Result, digest, hf};

/// Folders looked into when a repository's file is to be chosen.
const MAX_ENTRIES: usize = 1000;

/// The snapshot of a file, or of the file to choose, if the cache has it and it is the expected one.
pub(crate) fn find(
    root: &Path,
    (owner, repo): (&str, &str),
    file: Option<&str>,
    revision: &str,
    expected: &Expected,
) -> Result<Option<PathBuf>> {
    let folder = root.join(format!("models--{owner}--{repo}"));
    let commit = fs::read_to_string(folder.join("refs").join(revision)).ok();
    let commit = commit.as_deref().map(str::trim).filter(|name| is_relative_file(name)).unwrap_or(revision);
    let snapshot = folder.join("snapshots").join(commit);
    let path = match file {
        Some(file) => snapshot.join(file),
        None => match choose(&snapshot) {
            Some(path) => path,
            None => return Ok(None),
        },
    };
    let is_right = path.is_file() && matches(&path, expected)?;
    Ok(is_right.then_some(path))
}

fn choose(snapshot: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(snapshot).ok()?.take(MAX_ENTRIES);
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    hf::choose(&names).map(|name| snapshot.join(name))
}

fn matches(path: &Path, expected: &Expected) -> Result<bool> {
    let length = fs::metadata(path).map(|meta| meta.len()).unwrap_or(0);
    if expected.bytes.is_some_and(|bytes| bytes != length) {
        return Ok(false);
    }
    let Some(sha256) = &expected.sha256 else { return Ok(true) };
    // A snapshot of a large file links to a blob that is named by its digest, which spares reading it.
    let target = fs::read_link(path).ok();
    let blob = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    match blob {
        Some(blob) if digest::is_sha256(blob) => Ok(blob == sha256),
        _ => Ok(digest::of_file(path)? == *sha256),
    }
}
