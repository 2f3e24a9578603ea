//! Maps files into memory, and says which of their pages are wanted there.
#![expect(unsafe_code, reason = "mapping a file is unsafe: nothing stops others from changing it meanwhile")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use lichen_tensor::SharedBytes;
use memmap2::Mmap;

/// A model file in memory, read-only. Pages are read when they are first touched, unless somebody asks before.
///
/// A clone is another name for the same mapping. Ranges count bytes from the start of the file. On systems other than
/// Linux pages can't be steered: the calls check their ranges and do nothing.
#[derive(Debug, Clone)]
pub struct Mapping {
    pages: Arc<Pages>,
}

#[derive(Debug)]
struct Pages {
    map: Mmap,
    #[cfg(target_os = "linux")]
    file: File,
}

struct Whole(Arc<Pages>);

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.0.map
    }
}

impl Mapping {
    /// Maps a whole file.
    ///
    /// # Errors
    /// If the system refuses the mapping.
    pub(crate) fn of(file: File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only, and both this value and slices of its bytes keep it alive. What remains is
        // that nobody changes or truncates the file meanwhile. No system call can rule that out, so it is a documented
        // condition of `Checkpoint::open`; model files are written once and then only read.
        let map = unsafe { Mmap::map(&file)? };
        #[cfg(target_os = "linux")]
        let pages = Pages { map, file };
        #[cfg(not(target_os = "linux"))]
        let pages = Pages { map };
        Ok(Self { pages: Arc::new(pages) })
    }

    /// The bytes of the file, which keep the mapping alive.
    pub fn bytes(&self) -> SharedBytes {
        SharedBytes::new(Whole(self.pages.clone()))
    }

    /// Bytes of the file.
    pub fn len(&self) -> usize {
        self.pages.map.len()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where in the file these bytes are, or `None` if they are elsewhere in memory.
    pub fn range_of(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = bytes.as_ptr().addr().checked_sub(self.pages.map.as_ptr().addr())?;
        let end = start.checked_add(bytes.len())?;
        (end <= self.len()).then_some(start..end)
    }

    /// Asks the system to read the pages of a range, without waiting for them.
    ///
    /// # Errors
    /// The range is outside of the file, or the system refuses.
    pub fn prefetch(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range)?;
        self.pages.prefetch(range)
    }

    /// Reads the pages of a range and waits until they are in memory. What can't be read, because the file was cut
    /// off meanwhile, is an error and no signal.
    ///
    /// # Errors
    /// The range is outside of the file, the file can't be read, or the system is too old to be asked.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range)?;
        self.pages.prefetch(range.clone())?;
        self.pages.populate(range)
    }

    /// Drops the pages that lie wholly in a range from memory, at once. They are read again when they are touched, so
    /// this is never wrong, only slow. Pages that another process maps stay.
    ///
    /// # Errors
    /// The range is outside of the file, or the system refuses.
    pub fn release(&self, range: Range<usize>) -> io::Result<()> {
        self.check(&range)?;
        self.pages.release(range)
    }

    /// Drops all pages from memory: for a model that nobody uses for a while.
    ///
    /// # Errors
    /// The system refuses.
    pub fn page_out(&self) -> io::Result<()> {
        self.release(0..self.len())
    }

    fn check(&self, range: &Range<usize>) -> io::Result<()> {
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        let text = format!("bytes {range:?} are outside of a mapped file of {} bytes", self.len());
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }
}

#[cfg(not(target_os = "linux"))]
impl Pages {
    fn prefetch(&self, _range: Range<usize>) -> io::Result<()> {
        Ok(())
    }

    fn populate(&self, _range: Range<usize>) -> io::Result<()> {
        Ok(())
    }

    fn release(&self, _range: Range<usize>) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
impl Pages {
    /// The system reads at most its readahead window a call; this is the usual one.
    const READAHEAD: usize = 128 << 10;

    fn prefetch(&self, range: Range<usize>) -> io::Result<()> {
        let end = range.end;
        for start in range.step_by(Self::READAHEAD) {
            let part = start..end.min(start + Self::READAHEAD);
            self.advise_file(&part, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_WILLNEED)?;
        }
        Ok(())
    }

    fn populate(&self, range: Range<usize>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len())
    }

    fn release(&self, range: Range<usize>) -> io::Result<()> {
        let page = page_bytes();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        // The last page of a file is a whole one, though the file ends in it.
        let end = if range.end == self.map.len() { range.end } else { end };
        if start >= end {
            return Ok(());
        }
        // SAFETY: the mapping is of a file and read-only, so nothing is lost with its pages: what is read later is
        // read from the file again, the same bytes.
        unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)? };
        // With nothing mapped the system lets go of the pages, and keeps no note that they were in use: reading them
        // again is not taken for a lack of memory, as it would be after `MADV_PAGEOUT`, which asks for more rights too.
        let end = end.next_multiple_of(page);
        self.advise_file(&(start..end), nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED)
    }

    fn advise_file(&self, range: &Range<usize>, advice: nix::fcntl::PosixFadviseAdvice) -> io::Result<()> {
        let offset = |bytes: usize| i64::try_from(bytes).map_err(io::Error::other);
        Ok(nix::fcntl::posix_fadvise(&self.file, offset(range.start)?, offset(range.len())?, advice)?)
    }
}

/// Bytes of a page of memory.
#[cfg(target_os = "linux")]
fn page_bytes() -> usize {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).filter(|size| size.is_power_of_two()).unwrap_or(64 << 10)
}
