//! Reads any bytes as a blob, as they are and with their checksums put right; crates/session/tests/data makes
//! a good first corpus.
#![no_main]

use std::io::Cursor;
use std::ops::Range;

use lichen_session::{BlobError, BlobReader, BlobWriter, ModelTag, NumericsTag, Profile, read_tokens};

const HEADER: usize = 128;
const ENTRY: usize = 72;
const TRAILER: usize = 64;

/// That of the golden blob.
fn profile() -> Profile {
    Profile {
        model: ModelTag::from_bytes([1; 32]),
        numerics: NumericsTag::from_bytes([2; 32]),
        vocabulary: 1000,
        max_tokens: 4096,
        max_bytes: 1 << 20,
        page_bytes: [(0, 100), (7, 40)].into(),
        state_bytes: [(1, 24)].into(),
    }
}

/// A number of the blob as a place in it.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let (number, _) = bytes.get(at..)?.split_first_chunk()?;
    usize::try_from(u64::from_le_bytes(*number)).ok()
}

fn section(bytes: &[u8], entry: usize) -> Option<Range<usize>> {
    let (start, length) = (number(bytes, entry + 24)?, number(bytes, entry + 32)?);
    Some(start..start.checked_add(length)?)
}

/// Puts right what a fuzzer can't: checksums, and the frame that they stand in.
fn mend(bytes: &mut [u8]) -> Option<()> {
    let trailer = bytes.len().checked_sub(TRAILER)?;
    let sections = usize::from(*bytes.get(trailer + 16)?);
    let table = trailer.checked_sub(sections * ENTRY).filter(|&table| table >= HEADER)?;
    bytes[..8].copy_from_slice(b"\x89LCHN\r\n\x1a");
    bytes[8..24].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes[32..64].fill(1);
    bytes[64..96].fill(2);
    for entry in (table..trailer).step_by(ENTRY) {
        let payload = section(bytes, entry).and_then(|range| bytes.get(range));
        let checksum = blake3::hash(payload.unwrap_or_default());
        bytes[entry + 40..entry + ENTRY].copy_from_slice(checksum.as_bytes());
    }
    let total = bytes.len() as u64;
    for (at, number) in [(0, table as u64), (8, total), (16, sections as u64)] {
        bytes[trailer + at..trailer + at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let frame = [&bytes[..HEADER], &bytes[table..trailer + 24]].concat();
    bytes[trailer + 24..trailer + 56].copy_from_slice(blake3::hash(&frame).as_bytes());
    bytes[trailer + 56..].copy_from_slice(b"LCHN.end");
    Some(())
}

/// Reads everything, and writes what was read.
fn copy(bytes: &[u8]) -> Result<Vec<u8>, BlobError> {
    let profile = profile();
    let mut reader = BlobReader::open(Cursor::new(bytes), &profile)?;
    reader.verify()?;
    let header = *reader.header();
    let (mut output, mut payload) = (Vec::new(), Vec::new());
    let mut writer = BlobWriter::new(&mut output, &profile, header.id, header.created_unix_ms)?;
    let refuses = "what is read can be written";
    writer.tokens(reader.tokens()).expect(refuses);
    if !reader.metadata().is_empty() {
        // Numbers may be written longer than they were, beyond what metadata may take.
        let _ = writer.metadata(reader.metadata());
    }
    for (number, page) in reader.pages().into_iter().enumerate() {
        reader.read_page(number, &mut payload)?;
        writer.page(page, &payload).expect(refuses);
    }
    for (index, at) in reader.checkpoints().into_iter().enumerate() {
        reader.read_checkpoint(index, &mut payload)?;
        writer.checkpoint(at, &payload).expect(refuses);
    }
    if let Some(at) = reader.state() {
        reader.read_state(&mut payload)?;
        writer.state(at, &payload).expect(refuses);
    }
    writer.finish().expect(refuses);
    Ok(output)
}

fn check(bytes: &[u8]) {
    match copy(bytes) {
        Ok(once) => assert!(copy(&once).is_ok_and(|twice| once == twice), "a copy of a copy is the copy"),
        Err(error) => assert!(!error.to_string().is_empty() && error.reason() != "io"),
    }
    let _ = read_tokens(Cursor::new(bytes), &profile());
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let mut mended = bytes.to_vec();
    if mend(&mut mended).is_some() {
        check(&mended);
    }
});
