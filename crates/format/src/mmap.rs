//! Maps files into memory.
#![expect(unsafe_code, reason = "mapping a file is unsafe: nothing stops others from changing it meanwhile")]

use std::fs::File;
use std::io;

use lichen_tensor::SharedBytes;
use memmap2::Mmap;

/// Maps a whole file, read-only. Pages are read when they are first touched.
///
/// # Errors
///
/// If the system refuses the mapping.
pub(crate) fn map_file(file: &File) -> io::Result<SharedBytes> {
    // SAFETY: the mapping is read-only, and `SharedBytes` keeps it alive for as long as slices of it exist. What
    // remains is that nobody changes or truncates the file meanwhile. No system call can rule that out, so it is
    // a documented condition of `Checkpoint::open`; model files are written once and then only read.
    let map = unsafe { Mmap::map(file)? };
    Ok(SharedBytes::new(map))
}
