//! How a transfer tells its caller what it does.

use std::io::Write;
use std::time::Duration;

use indicatif::ProgressStyle;

/// Receiver of the progress of a pull.
pub trait Progress: Send + Sync {
    /// A transfer begins: its size in bytes if known, and the bytes that are there already.
    fn total(&self, bytes: Option<u64>, done: u64);
    /// So many more bytes have arrived.
    fn advance(&self, bytes: u64);
    /// One line worth showing, such as a source that could not be reached.
    fn message(&self, line: &str);
}

/// Progress that nobody looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn total(&self, _bytes: Option<u64>, _done: u64) {}
    fn advance(&self, _bytes: u64) {}
    fn message(&self, _line: &str) {}
}

/// Progress bar on stderr; messages only where stderr is not a terminal.
#[derive(Debug)]
pub struct ProgressBar {
    bar: indicatif::ProgressBar,
}

impl ProgressBar {
    /// A bar that appears with the first transfer.
    pub fn new() -> Self {
        let bar = indicatif::ProgressBar::no_length();
        let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar }
    }
}

impl Default for ProgressBar {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for ProgressBar {
    fn total(&self, bytes: Option<u64>, done: u64) {
        match bytes {
            Some(bytes) => self.bar.set_length(bytes),
            None => self.bar.unset_length(),
        }
        self.bar.set_position(done);
        // The rate must not count what was on disk before.
        self.bar.reset_eta();
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn message(&self, line: &str) {
        // A closed stderr is no reason to stop a transfer, so a failed write is let go.
        self.bar.suspend(|| {
            let _ = writeln!(std::io::stderr(), "{line}");
        });
    }
}
