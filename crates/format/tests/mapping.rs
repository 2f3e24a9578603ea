//! Pages of a mapped file come and go as they are asked to.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::io::Write;
use std::path::Path;

use lichen_format::{Checkpoint, Mapping};
use tempfile::NamedTempFile;

const MIB: usize = 1 << 20;

/// A GGUF file without tensors, followed by so many bytes.
fn file(bytes: usize) -> NamedTempFile {
    let mut file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(b"GGUF").unwrap();
    file.write_all(&3_u32.to_le_bytes()).unwrap();
    file.write_all(&[0; 16]).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

fn mapping(path: &Path) -> Mapping {
    Checkpoint::open(path).unwrap().mapping().unwrap().clone()
}

/// Bytes of this file that are in this process's memory.
fn resident(path: &Path) -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut lines = maps.lines().skip_while(|line| !line.contains(&name));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim_end_matches("kB").trim().parse::<usize>().unwrap() * 1024
}

#[test]
fn pages_that_are_populated_are_in_memory_and_pages_that_are_released_are_not() {
    let file = file(24 * MIB);
    let mapping = mapping(file.path());
    mapping.populate(0..mapping.len()).unwrap();
    assert!(resident(file.path()) >= 24 * MIB);
    mapping.release(8 * MIB..16 * MIB).unwrap();
    assert_eq!(resident(file.path()) / MIB, 16);
    mapping.page_out().unwrap();
    assert_eq!(resident(file.path()), 0);
    assert!(mapping.bytes()[24..].iter().all(|byte| *byte == 7), "what is gone is read again");
}

#[test]
fn a_page_that_is_only_partly_in_the_range_stays() {
    let file = file(MIB);
    let mapping = mapping(file.path());
    mapping.populate(0..mapping.len()).unwrap();
    let before = resident(file.path());
    mapping.release(1..4096).unwrap();
    mapping.release(4097..8191).unwrap();
    mapping.release(10..10).unwrap();
    assert_eq!(resident(file.path()), before);
}

#[test]
fn a_file_that_was_deleted_can_still_be_read() {
    let file = file(4 * MIB);
    let mapping = mapping(file.path());
    file.close().unwrap();
    mapping.populate(0..mapping.len()).unwrap();
    mapping.page_out().unwrap();
    assert_eq!(mapping.bytes()[2 * MIB], 7);
}

#[test]
fn a_file_that_was_cut_off_is_an_error_and_no_signal() {
    let file = file(4 * MIB);
    let mapping = mapping(file.path());
    file.as_file().set_len(MIB as u64).unwrap();
    assert!(mapping.populate(2 * MIB..3 * MIB).is_err());
    mapping.prefetch(2 * MIB..3 * MIB).unwrap();
    mapping.release(0..4 * MIB).unwrap();
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "the case under test")]
fn a_range_outside_of_the_file_is_refused() {
    let file = file(MIB);
    let mapping = mapping(file.path());
    for range in [0..mapping.len() + 1, 5..4, usize::MAX - 1..usize::MAX] {
        assert!(mapping.populate(range.clone()).is_err());
        assert!(mapping.prefetch(range.clone()).is_err());
        assert!(mapping.release(range).is_err());
    }
}

#[test]
fn the_place_of_bytes_is_known_if_they_are_of_the_file() {
    let file = file(MIB);
    let mapping = mapping(file.path());
    assert_eq!(mapping.range_of(&mapping.bytes()[100..200]), Some(100..200));
    assert_eq!(mapping.range_of(&[0; 4]), None);
}
