//! Reading small text files that may be missing, huge or full of nonsense.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// No file that is read here has more bytes.
const LONGEST: u64 = 1 << 20;
/// Byte counts from here on mean "no limit" or are nonsense.
const ABSURD: u64 = 1 << 60;

/// The file's text; `None` if it isn't a regular, readable file of UTF-8 and of sensible size.
pub(super) fn read(path: &Path) -> Option<String> {
    String::from_utf8(read_bytes(path)?).ok()
}

/// The file's bytes; `None` if it isn't a regular, readable file of sensible size.
pub(super) fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    // A pipe would block; the check comes before the open.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    let read = File::open(path).ok()?.take(LONGEST + 1).read_to_end(&mut bytes).ok()?;
    (read as u64 <= LONGEST).then_some(bytes)
}

/// A number of bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < ABSURD)
}

/// A count of events.
pub(super) fn count(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The twelfth field of `/proc/self/stat`. The second is a name in brackets, which may hold anything.
pub(super) fn major_faults(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    count(rest.split_ascii_whitespace().nth(9)?)
}

/// The value in a line `key value`.
pub(super) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix([' ', '\t']).map(str::trim))
}

/// The bytes in a line `key value kB`.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let number: u64 = value(text, key)?.strip_suffix("kB")?.trim().parse().ok()?;
    number.checked_mul(1024).filter(|bytes| *bytes < ABSURD)
}
