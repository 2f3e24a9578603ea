//! The store on storage that fails, lies or is slow.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use common::{Conversation, conversation, plain, profile};
use lichen_session::{
    DiskFolder, EntryKey, SpillRead, SpillStorage, SpillWrite, Store, StoreError, StoredFile,
};
use tempfile::TempDir;

const PLENTY: u64 = 1 << 30;

/// What goes wrong, and when.
#[derive(Debug, Default)]
struct Plan {
    /// Operations so far.
    operations: usize,
    /// Operations from this one on fail.
    fail_from: Option<usize>,
    /// How many fail.
    failures: usize,
    error: Option<fn() -> io::Error>,
    /// Bytes read are changed at this offset of the file.
    corrupt_at: Option<u64>,
    /// Files seem to end here.
    short_at: Option<u64>,
    /// The first write says that it has begun, and waits.
    pause: Option<(Sender<()>, Receiver<()>)>,
}

type Shared = Arc<Mutex<Plan>>;

fn step(plan: &Shared) -> io::Result<()> {
    let mut plan = plan.lock().unwrap();
    let number = plan.operations;
    plan.operations += 1;
    let fails =
        plan.fail_from.is_some_and(|from| (from..from.saturating_add(plan.failures)).contains(&number));
    match plan.error {
        Some(error) if fails => Err(error()),
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct Faulty {
    inner: DiskFolder,
    plan: Shared,
}

struct FaultyFile<F> {
    inner: F,
    plan: Shared,
}

impl Write for FaultyFile<Box<dyn SpillWrite>> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let pause = self.plan.lock().unwrap().pause.take();
        if let Some((begun, go_on)) = pause {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        step(&self.plan)?;
        // A short write is no error.
        self.inner.write(&bytes[..bytes.len().min(70)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl SpillWrite for FaultyFile<Box<dyn SpillWrite>> {
    fn sync(&mut self) -> io::Result<()> {
        step(&self.plan)?;
        self.inner.sync()
    }
}

impl Read for FaultyFile<Box<dyn SpillRead>> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        step(&self.plan)?;
        let plan = self.plan.lock().unwrap();
        let at = self.inner.stream_position()?;
        let left = plan.short_at.map_or(u64::MAX, |end| end.saturating_sub(at));
        let most = buffer.len().min(left.try_into().unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..most])?;
        let place = plan.corrupt_at.and_then(|place| usize::try_from(place.checked_sub(at)?).ok());
        if let Some(byte) = place.and_then(|place| buffer[..read].get_mut(place)) {
            *byte ^= 0x10;
        }
        Ok(read)
    }
}

impl Seek for FaultyFile<Box<dyn SpillRead>> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.inner.seek(position)
    }
}

impl SpillStorage for Faulty {
    fn list(&self) -> io::Result<Vec<StoredFile>> {
        step(&self.plan)?;
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn SpillWrite>> {
        step(&self.plan)?;
        Ok(Box::new(FaultyFile { inner: self.inner.create(name)?, plan: Arc::clone(&self.plan) }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn SpillRead>> {
        step(&self.plan)?;
        Ok(Box::new(FaultyFile { inner: self.inner.open(name)?, plan: Arc::clone(&self.plan) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        step(&self.plan)?;
        self.inner.rename(from, to)
    }

    fn sync(&self) -> io::Result<()> {
        step(&self.plan)?;
        self.inner.sync()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        step(&self.plan)?;
        self.inner.remove(name)
    }

    fn touch(&self, name: &str) -> io::Result<()> {
        step(&self.plan)?;
        self.inner.touch(name)
    }
}

fn key(name: &str) -> EntryKey {
    EntryKey::of(name.as_bytes())
}

fn faulty(folder: &TempDir, limit: u64) -> (Store, Shared) {
    let plan = Shared::default();
    let storage = Faulty { inner: DiskFolder::open(folder.path()).unwrap(), plan: Arc::clone(&plan) };
    (Store::with_storage(Box::new(storage), limit).unwrap().0, plan)
}

/// From the `nth` next operation on, `failures` of them fail with `error`.
fn fail(plan: &Shared, nth: usize, failures: usize, error: fn() -> io::Error) {
    let mut plan = plan.lock().unwrap();
    (plan.fail_from, plan.failures, plan.error) = (Some(plan.operations + nth), failures, Some(error));
}

fn no_space() -> io::Error {
    ErrorKind::StorageFull.into()
}

fn broken_disk() -> io::Error {
    io::Error::other("input/output error")
}

fn put(store: &Store, name: &str, conversation: &Conversation) -> Result<(), StoreError> {
    store.put(key(name), &profile(), conversation.bytes(), |writer| conversation.write(writer))
}

fn get(store: &Store, name: &str) -> Result<Option<Conversation>, StoreError> {
    store.get(key(name), &profile(), Conversation::read)
}

fn old() -> Conversation {
    plain((0..200).collect(), 1)
}

/// Operations of a write without faults.
fn steps_of_a_write() -> usize {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, PLENTY);
    put(&store, "a", &old()).unwrap();
    let before = plan.lock().unwrap().operations;
    put(&store, "a", &conversation()).unwrap();
    let after = plan.lock().unwrap().operations;
    assert!(after - before > 20, "a write of several steps");
    after - before
}

#[test]
fn an_error_at_any_step_of_a_write_leaves_the_old_entry_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    for nth in 0..steps_of_a_write() {
        for error in [no_space, broken_disk] {
            let (store, plan) = faulty(&folder, PLENTY);
            put(&store, "a", &old()).unwrap();
            fail(&plan, nth, 1, error);
            let result = put(&store, "a", &conversation());
            let read = get(&store, "a").unwrap().unwrap();
            assert!(read == old() || read == conversation(), "step {nth}");
            assert_eq!(store.stats().bytes, read.bytes(), "step {nth}");
            match result {
                Ok(()) => assert_eq!(read, conversation(), "step {nth}"),
                Err(StoreError::NoSpace { .. } | StoreError::Io { .. }) => {
                    assert_eq!(store.stats().write_errors, 1, "step {nth}");
                }
                Err(other) => panic!("step {nth}: {other}"),
            }
            // All room was given back.
            put(&store, "a", &old()).unwrap();
        }
    }
}

#[test]
fn a_crash_at_any_step_of_a_write_leaves_the_old_entry_or_the_new_one() {
    let mut outcomes = [0, 0];
    for nth in 0..steps_of_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let (store, plan) = faulty(&folder, PLENTY);
        put(&store, "a", &old()).unwrap();
        // Nothing works any more, cleaning up neither.
        fail(&plan, nth, usize::MAX, broken_disk);
        let _ = put(&store, "a", &conversation());
        drop(store);
        let (store, report) = Store::open(folder.path(), PLENTY).unwrap();
        assert!(report.refused.is_empty(), "step {nth}: {report:?}");
        let read = get(&store, "a").unwrap().unwrap();
        assert!(read == old() || read == conversation(), "step {nth}");
        outcomes[usize::from(read == conversation())] += 1;
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "step {nth}: the lock and the entry");
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
}

#[test]
fn a_full_disk_is_told_from_a_broken_one() {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, PLENTY);
    fail(&plan, 5, 1, no_space);
    let message = put(&store, "a", &conversation()).unwrap_err().to_string();
    assert!(message.starts_with("no space left for sessions (cannot write "), "{message}");
    fail(&plan, 5, 1, broken_disk);
    let message = put(&store, "a", &conversation()).unwrap_err().to_string();
    assert!(message.ends_with(": input/output error"), "{message}");
}

#[test]
fn an_entry_that_cannot_be_read_now_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, PLENTY);
    put(&store, "a", &conversation()).unwrap();
    for nth in [0, 1, 5] {
        fail(&plan, nth, 1, broken_disk);
        assert!(matches!(get(&store, "a"), Err(StoreError::Io { .. })));
    }
    assert_eq!((store.stats().read_errors, store.stats().damaged), (3, 0));
    assert_eq!(get(&store, "a").unwrap(), Some(conversation()));
}

#[test]
fn bytes_changed_on_the_way_are_noticed_wherever_they_are() {
    for place in (0..conversation().bytes()).step_by(13) {
        let folder = tempfile::tempdir().unwrap();
        let (store, plan) = faulty(&folder, PLENTY);
        put(&store, "a", &conversation()).unwrap();
        plan.lock().unwrap().corrupt_at = Some(place);
        let read = get(&store, "a");
        assert!(matches!(read, Err(StoreError::Blob(_))), "byte {place}: {read:?}");
    }
}

#[test]
fn a_short_read_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, PLENTY);
    put(&store, "a", &conversation()).unwrap();
    plan.lock().unwrap().short_at = Some(1000);
    let read = get(&store, "a");
    assert!(matches!(&read, Err(StoreError::Blob(error)) if error.reason() == "truncated"), "{read:?}");
    assert_eq!((store.stats().damaged, store.stats().entries), (1, 0));
}

#[test]
fn an_entry_that_cannot_be_removed_still_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, old().bytes());
    put(&store, "a", &old()).unwrap();
    fail(&plan, 0, 1, broken_disk);
    assert!(matches!(put(&store, "b", &old()), Err(StoreError::Io { action: "remove", .. })));
    assert_eq!((store.stats().bytes, store.stats().evicted), (old().bytes(), 0));
    put(&store, "b", &old()).unwrap();
    assert_eq!((store.stats().bytes, store.stats().evicted), (old().bytes(), 1));
}

#[test]
fn a_folder_that_is_gone_gives_errors_and_no_entries() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("sessions");
    let (store, _) = Store::open(&path, PLENTY).unwrap();
    put(&store, "a", &conversation()).unwrap();
    fs::remove_dir_all(&path).unwrap();
    assert_eq!(get(&store, "a").unwrap(), None);
    assert!(matches!(put(&store, "a", &conversation()), Err(StoreError::Io { action: "create", .. })));
    assert_eq!((store.stats().entries, store.stats().write_errors), (0, 1));
}

#[test]
fn a_slow_writer_holds_up_nobody_and_its_room_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (store, plan) = faulty(&folder, conversation().bytes() + old().bytes());
    put(&store, "a", &old()).unwrap();
    let ((begun, wait_for_begin), (go_on, wait_to_go_on)) = (channel(), channel());
    plan.lock().unwrap().pause = Some((begun, wait_to_go_on));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| put(&store, "slow", &conversation()));
        wait_for_begin.recv().unwrap();
        assert_eq!(get(&store, "a").unwrap(), Some(old()));
        assert_eq!(get(&store, "slow").unwrap(), None, "not there before it is complete");
        let refused = put(&store, "large", &plain((0..900).collect(), 3));
        assert!(matches!(refused, Err(StoreError::TooLarge { available, .. }) if available == old().bytes()));
        go_on.send(()).unwrap();
        slow.join().unwrap().unwrap();
    });
    assert_eq!(get(&store, "slow").unwrap(), Some(conversation()));
    assert_eq!(get(&store, "a").unwrap(), Some(old()));
}

#[test]
fn many_threads_on_few_keys_stay_under_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let limit = 5 * old().bytes();
    let store = Store::open(folder.path(), limit).unwrap().0;
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let name = format!("{}", (round * 7 + thread) % 8);
                    match put(store, &name, &plain((0..200).collect(), thread)) {
                        // Others may hold all room.
                        Ok(()) | Err(StoreError::TooLarge { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if let Some(read) = get(store, &name).unwrap() {
                        assert_eq!(read.tokens.len(), 200);
                    }
                    assert!(store.stats().bytes <= limit);
                }
            });
        }
    });
    let files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    assert_eq!(files.sum::<u64>(), store.stats().bytes);
}
