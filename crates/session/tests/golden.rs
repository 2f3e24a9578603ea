//! A blob of version 1.0 that has to stay readable, and what becomes of it when any of its bytes is lost or
//! changed.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Conversation, RawBlob, conversation};

/// Never to be changed: it stands for the blobs that people have.
const GOLDEN: &[u8] = include_bytes!("data/1.0.session");

#[test]
fn the_golden_blob_is_read() {
    assert_eq!(Conversation::from_blob(GOLDEN).unwrap(), conversation());
}

#[test]
fn the_golden_blob_is_what_is_written_and_what_the_format_says() {
    assert!(conversation().to_blob().unwrap() == GOLDEN, "the writer writes something else");
    assert!(RawBlob::conversation().encode() == GOLDEN, "the format is something else");
}

#[test]
fn each_changed_byte_is_refused() {
    for place in 0..GOLDEN.len() {
        for change in [1, 0x80, 0xff] {
            let mut blob = GOLDEN.to_vec();
            blob[place] ^= change;
            let refused = Conversation::from_blob(&blob).is_err();
            assert!(refused, "a change of byte {place} goes unnoticed");
        }
    }
}

#[test]
fn each_shorter_blob_is_refused() {
    for length in 0..GOLDEN.len() {
        let error = Conversation::from_blob(&GOLDEN[..length]).unwrap_err();
        assert_eq!(error.reason(), "truncated", "{length} bytes: {error}");
    }
}

#[test]
fn longer_blobs_are_refused() {
    for more in [1, 8, 64, 1000] {
        let error = Conversation::from_blob(&[GOLDEN, &vec![0; more]].concat()).unwrap_err();
        assert_eq!(error.reason(), "truncated");
        let twice = [GOLDEN, &GOLDEN[GOLDEN.len() - more.min(GOLDEN.len())..]].concat();
        assert!(Conversation::from_blob(&twice).is_err());
    }
}

#[test]
#[ignore = "writes the golden blob of a new version; older ones stay"]
fn write_golden() {
    std::fs::write("tests/data/1.0.session", RawBlob::conversation().encode()).unwrap();
}
