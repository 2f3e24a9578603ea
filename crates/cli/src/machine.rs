//! What the system says about this machine and this process (Linux's `/proc`; elsewhere nothing is known).

use std::fs;

/// Name of the processor.
pub(crate) fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The host's name; `lichen` if it isn't known.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "lichen".to_owned() } else { name.trim().to_owned() }
}

/// Hardware threads that this process may use.
pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory of the machine, all and available.
pub(crate) fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some((kibibytes(&text, "MemTotal:")?, kibibytes(&text, "MemAvailable:")?))
}

/// Largest resident size that this process has had, in bytes.
pub(crate) fn peak_memory() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// The value of a line `key   123 kB`, in bytes.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_the_line_of_their_key() {
        let text = "VmPeak:\t  9 kB\nVmHWM:\t   12 kB\n";
        assert_eq!(kibibytes(text, "VmHWM:"), Some(12 * 1024));
        assert_eq!(kibibytes(text, "VmRSS:"), None);
    }
}
