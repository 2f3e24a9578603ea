//! SHA-256 in lower-case hex.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{HubError, Result};

/// Bytes read at a time.
pub(crate) const CHUNK: usize = 1 << 18;

/// Hex of a finished digest.
pub(crate) fn finish(hasher: Sha256) -> String {
    hasher.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Digest of a short text, for file names.
pub(crate) fn of_text(text: &str) -> String {
    finish(Sha256::new().chain_update(text))
}

/// Whether `text` is a SHA-256 digest in lower-case hex.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Feeds a whole file to `hasher`; returns its length in bytes.
pub(crate) fn update_from_file(hasher: &mut Sha256, path: &Path) -> Result<u64> {
    let mut file = File::open(path).map_err(HubError::io("open", path))?;
    let mut buffer = vec![0; CHUNK];
    let mut length = 0;
    loop {
        let read = file.read(&mut buffer).map_err(HubError::io("read", path))?;
        if read == 0 {
            return Ok(length);
        }
        hasher.update(&buffer[..read]);
        length += read as u64;
    }
}

/// Digest of a file.
pub(crate) fn of_file(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    update_from_file(&mut hasher, path)?;
    Ok(finish(hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_text_has_the_known_digest() {
        // FIPS 180-4 test value of the empty message.
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of_text(""), expected);
        assert!(is_sha256(expected));
        assert!(!is_sha256(&expected.to_uppercase()));
    }
}
