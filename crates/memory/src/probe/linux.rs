//! The sensors of Linux: `/proc` and the control groups.

use super::cgroup::{Hierarchy, hierarchies, parse_stall};
use super::{MemorySource, text};
use crate::{Origin, Refaults, Sample};
use std::path::{Path, PathBuf};

/// After how many samples our control group is looked up again: somebody may have moved us.
const LOOK_UP_EVERY: u32 = 64;
/// The key of the page size in the auxiliary vector.
const AT_PAGESZ: usize = 6;
const SMALLEST_PAGE: usize = 4096;
const LARGEST_PAGE: usize = 1 << 20;

/// Reads `/proc` and the control groups. On another system everything is absent.
#[derive(Debug)]
pub struct Linux {
    root: PathBuf,
    page: u64,
    hierarchies: Vec<Hierarchy>,
    samples: u32,
}

impl Linux {
    /// Sensors below a root folder, which is `/` but for tests.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self { page: page_bytes(&root), hierarchies: hierarchies(&root), samples: 0, root }
    }

    fn read(&self, path: &str) -> Option<String> {
        text::read(&self.root.join(path))
    }

    fn refaults(&self) -> Option<Refaults> {
        let own = self.hierarchies.iter().find_map(|hierarchy| hierarchy.refaults(self.page));
        own.or_else(|| {
            let pages = self.read("proc/vmstat").and_then(|stat| {
                let value = text::value(&stat, "workingset_refault_file")?;
                text::count(value)
            })?;
            Some(Refaults { origin: Origin::System, bytes: pages.checked_mul(self.page)? })
        })
    }
}

impl MemorySource for Linux {
    fn sample(&mut self) -> Sample {
        self.samples += 1;
        if self.samples >= LOOK_UP_EVERY {
            (self.samples, self.hierarchies) = (0, hierarchies(&self.root));
        }
        let machine = self.read("proc/meminfo").unwrap_or_default();
        let process = self.read("proc/self/status").unwrap_or_default();
        let total = text::kibibytes(&machine, "MemTotal:").filter(|total| *total > 0);
        let possible = |bytes: &u64| total.is_none_or(|total| *bytes <= total);
        let own_stall = self.hierarchies.iter().find_map(Hierarchy::stall);
        Sample {
            total,
            available: text::kibibytes(&machine, "MemAvailable:").filter(possible),
            anonymous: text::kibibytes(&process, "RssAnon:").filter(possible),
            file: text::kibibytes(&process, "RssFile:").filter(possible),
            groups: self.hierarchies.iter().flat_map(Hierarchy::groups).collect(),
            stall: own_stall.or_else(|| parse_stall(&self.read("proc/pressure/memory")?, Origin::System)),
            refaulted: self.refaults(),
            major_faults: self.read("proc/self/stat").and_then(|stat| text::major_faults(&stat)),
        }
    }
}

/// The size of a page, from the auxiliary vector: pairs of a key and a value.
fn page_bytes(root: &Path) -> u64 {
    const WORD: usize = size_of::<usize>();
    let vector = text::read_bytes(&root.join("proc/self/auxv")).unwrap_or_default();
    let word = |word: &[u8]| word.try_into().map_or(0, usize::from_ne_bytes);
    let size = vector
        .chunks_exact(2 * WORD)
        .map(|pair| (word(&pair[..WORD]), word(&pair[WORD..])))
        .find_map(|(key, value)| (key == AT_PAGESZ).then_some(value));
    size.filter(|size| size.is_power_of_two() && (SMALLEST_PAGE..=LARGEST_PAGE).contains(size))
        .unwrap_or(SMALLEST_PAGE) as u64
}
