//! Control groups: where ours is mounted, and what it and its ancestors allow. Versions 1 and 2, and both at
//! once.

use super::text;
use crate::{Group, Origin, Refaults, Stall};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// More ancestors than any machine has.
const DEEPEST: usize = 64;

/// Our group in one hierarchy, and its ancestors.
#[derive(Debug)]
pub(super) struct Hierarchy {
    version: Version,
    /// The folder of our group.
    own: PathBuf,
    /// The folder of the root group, or of as much as we can see.
    mount: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The hierarchies that this process is in and that tell about memory.
pub(super) fn hierarchies(root: &Path) -> Vec<Hierarchy> {
    let own = text::read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = text::read(&root.join("proc/self/mountinfo")).unwrap_or_default();
    mounts.lines().filter_map(Mount::parse).filter_map(|mount| mount.hierarchy(root, &own)).collect()
}

/// A line of `mountinfo` that is about control groups.
struct Mount {
    version: Version,
    /// What of the hierarchy is mounted.
    part: String,
    /// Where.
    point: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (part, point) = (unescape(place.next()?), unescape(place.next()?));
        let mut kind = kind.split(' ');
        let version = match kind.next()? {
            "cgroup2" => Version::Two,
            "cgroup" if kind.nth(1)?.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Self { version, part, point })
    }

    /// The hierarchy, if a line `number:controllers:path` says which group of it is ours.
    fn hierarchy(self, root: &Path, own: &str) -> Option<Hierarchy> {
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let ours = match self.version {
                Version::One => controllers.split(',').any(|controller| controller == "memory"),
                Version::Two => number == "0" && controllers.is_empty(),
            };
            ours.then_some(path)
        })?;
        let mount = inside(root, &self.point)?;
        // In a container the mount may show only a part of the hierarchy.
        let below = path.strip_prefix(self.part.trim_end_matches('/')).unwrap_or(path);
        let own = inside(&mount, below).filter(|own| own.is_dir()).unwrap_or_else(|| mount.clone());
        Some(Hierarchy { version: self.version, own, mount })
    }
}

/// A path below a folder; `None` if it would lead out of it.
fn inside(folder: &Path, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let stays = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    stays.then(|| folder.join(relative))
}

/// Undoes the octal escapes of `mountinfo`.
fn unescape(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(field.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

impl Hierarchy {
    /// Our group and its ancestors, as far as they have a limit; the innermost first.
    pub(super) fn groups(&self) -> Vec<Group> {
        let folders = self.own.ancestors().take_while(|folder| folder.starts_with(&self.mount));
        folders.take(DEEPEST).filter_map(|folder| self.group(folder)).collect()
    }

    fn group(&self, folder: &Path) -> Option<Group> {
        let limit = |name: &str| text::read(&folder.join(name)).as_deref().and_then(text::bytes);
        let event = |file: &str, key: &str| {
            text::read(&folder.join(file))
                .as_deref()
                .and_then(|events| text::count(text::value(events, key)?))
        };
        let limits = match self.version {
            Version::One => [limit("memory.limit_in_bytes"), None],
            Version::Two => [limit("memory.max"), limit("memory.high")],
        };
        let limit_bytes = limits.into_iter().flatten().min()?;
        let (usage, limit_hits, out_of_memory) = match self.version {
            Version::One => (
                limit("memory.usage_in_bytes"),
                text::read(&folder.join("memory.failcnt")).as_deref().and_then(text::count),
                event("memory.oom_control", "oom_kill"),
            ),
            Version::Two => (
                limit("memory.current"),
                event("memory.events", "max"),
                event("memory.events", "oom").max(event("memory.events", "oom_kill")),
            ),
        };
        Some(Group {
            name: self.name(folder),
            limit: limit_bytes,
            usage,
            file: self.files(folder),
            limit_hits,
            out_of_memory,
        })
    }

    fn name(&self, folder: &Path) -> String {
        let path = folder.strip_prefix(&self.mount).unwrap_or(folder);
        format!("/{}", path.display())
    }

    /// Bytes of files charged to a group and its descendants.
    fn files(&self, folder: &Path) -> Option<u64> {
        let stat = text::read(&folder.join("memory.stat"))?;
        let bytes = |key: &str| text::value(&stat, &self.total(key)).and_then(text::bytes);
        bytes("inactive_file")?.checked_add(bytes("active_file")?)
    }

    /// The key of a sum over a group and its descendants. In version 2 every sum is one.
    fn total(&self, key: &str) -> String {
        match self.version {
            Version::One => format!("total_{key}"),
            Version::Two => key.to_owned(),
        }
    }

    /// Stalls of our group. The root group has none of its own.
    pub(super) fn stall(&self) -> Option<Stall> {
        let pressure = text::read(&self.own.join("memory.pressure"))?;
        parse_stall(&pressure, Origin::Group)
    }

    /// Refaults of our group.
    pub(super) fn refaults(&self, page: u64) -> Option<Refaults> {
        let stat = text::read(&self.own.join("memory.stat"))?;
        let pages = text::value(&stat, &self.total("workingset_refault_file")).and_then(text::count)?;
        Some(Refaults { origin: Origin::Group, bytes: pages.checked_mul(page)? })
    }
}

/// Reads a file of pressure stall information.
pub(super) fn parse_stall(pressure: &str, origin: Origin) -> Option<Stall> {
    let total = |kind: &str| {
        let line = text::value(pressure, kind)?;
        let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
        text::count(total).map(Duration::from_micros)
    };
    let some = total("some")?;
    // Old kernels have no line for full stalls of the machine.
    Some(Stall { origin, some, full: total("full").unwrap_or(Duration::ZERO) })
}
