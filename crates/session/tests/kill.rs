//! A process that is killed while it writes leaves whole entries only.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::io::{Read, Write, stderr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Conversation, plain, profile};
use lichen_session::{EntryKey, Store};

/// Set for the process that is to be killed; the folder it writes to.
const FOLDER: &str = "LICHEN_SESSION_TEST_FOLDER";
const ENTRIES: u8 = 20;

/// The content of an entry in the given round: the key says which, the first token the round.
fn content(entry: u8, round: u32) -> Conversation {
    let tokens = [round % 1000, entry.into()].into_iter().chain(0..u32::from(entry) * 40).collect();
    plain(tokens, entry)
}

fn limit() -> u64 {
    (0..ENTRIES).map(|entry| content(entry, 0).bytes()).sum::<u64>() / 2
}

/// Writes until killed.
fn write_forever(folder: &Path) -> ! {
    let (store, _) = Store::open(folder, limit()).unwrap();
    for round in 0.. {
        for entry in 0..ENTRIES {
            let content = content(entry, round);
            let key = EntryKey::of(&[entry]);
            store.put(key, &profile(), content.bytes(), |writer| content.write(writer)).unwrap();
            if (round, entry) == (0, 0) {
                // Tells the other side that there is something to kill.
                stderr().write_all(b"!").unwrap();
            }
        }
    }
    unreachable!("killed long before")
}

#[test]
fn a_killed_writer_leaves_whole_entries_only() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_forever(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut partial, mut entries) = (0, 0);
    for round in 0..20 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_writer_leaves_whole_entries_only", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut begun = [0];
        child.stderr.as_mut().unwrap().read_exact(&mut begun).unwrap();
        assert_eq!(begun, *b"!", "the writer says something else");
        std::thread::sleep(Duration::from_micros(3000 + round * 777));
        child.kill().unwrap();
        child.wait().unwrap();

        let (store, report) = Store::open(folder.path(), limit()).unwrap();
        assert!(report.refused.is_empty(), "{report:?}");
        partial += report.partial;
        entries += store.stats().entries;
        assert!(store.stats().bytes <= limit());
        for entry in store.list() {
            let read = store.get(entry.key, &profile(), Conversation::read).unwrap().unwrap();
            let number = read.tokens[1] as u8;
            assert_eq!(entry.key, EntryKey::of(&[number]));
            assert_eq!(read, content(number, read.tokens[0]));
        }
    }
    assert!(partial > 0 && entries > 0, "{partial} interrupted writes, {entries} entries");
}
