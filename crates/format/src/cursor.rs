//! Reads fields from foreign bytes without trusting a length.

use crate::error::Fault;

/// A place in the bytes of a file.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], Fault> {
        let truncated = Fault::Truncated { what, at: self.at, needed: len, left: self.left() };
        let Ok(len) = usize::try_from(len) else { return Err(truncated) };
        if len > self.left() {
            return Err(truncated);
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    /// The next `N` bytes, for `from_le_bytes`.
    pub(crate) fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Fault> {
        let taken = self.take(N as u64, what)?;
        Ok(*taken.first_chunk().expect("N bytes were taken"))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Fault> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, Fault> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// `count` as a length, if that many things of at least `smallest` bytes can follow.
    pub(crate) fn fits(&self, count: u64, smallest: u64, what: &'static str) -> Result<usize, Fault> {
        let fault = Fault::Count { what, count, at: self.at, left: self.left() };
        match count.checked_mul(smallest) {
            Some(bytes) if bytes <= self.left() as u64 => usize::try_from(count).map_err(|_| fault),
            _ => Err(fault),
        }
    }

    /// A length and that many bytes of UTF-8.
    pub(crate) fn string(&mut self, what: &'static str) -> Result<&'a str, Fault> {
        let len = self.u64(what)?;
        let at = self.at;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| Fault::Utf8 { what, at })
    }

    /// A string of at most `max` bytes.
    pub(crate) fn name(&mut self, what: &'static str, max: usize) -> Result<&'a str, Fault> {
        let at = self.at;
        let name = self.string(what)?;
        if name.len() > max {
            return Err(Fault::NameLength { what, at, len: name.len(), max });
        }
        Ok(name)
    }
}
