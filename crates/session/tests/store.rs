//! What a store keeps, finds, gives up and refuses.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{Conversation, conversation, plain, profile};
use lichen_session::{
    EntryKey, ModelTag, OpenReport, PrefixMatch, Profile, StateAt, Store, StoreError, StoredEntry,
};
use tempfile::TempDir;

const PLENTY: u64 = 1 << 30;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn key(name: &str) -> EntryKey {
    EntryKey::of(name.as_bytes())
}

fn open(folder: &TempDir, limit: u64) -> Store {
    let (store, report) = Store::open(folder.path(), limit).unwrap();
    assert!(report.refused.is_empty() && report.partial == 0, "{report:?}");
    store
}

fn put(store: &Store, name: &str, conversation: &Conversation) {
    store.put(key(name), &profile(), conversation.bytes(), |writer| conversation.write(writer)).unwrap();
}

fn get(store: &Store, name: &str) -> Option<Conversation> {
    store.get(key(name), &profile(), Conversation::read).unwrap()
}

fn names(store: &Store, all: &[&'static str]) -> Vec<&'static str> {
    let entries = store.list();
    all.iter().copied().filter(|name| entries.iter().any(|entry| entry.key == key(name))).collect()
}

/// `tokens` tokens that begin with those of `seed`.
fn tokens(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|index| (seed * 37 + index * 11) % 1000).collect()
}

fn path_of(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(format!("{}.session", key(name)))
}

#[test]
fn an_entry_comes_back_also_after_a_restart() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    put(&store, "a", &conversation());
    assert_eq!(get(&store, "a"), Some(conversation()));
    let listed = store.list();
    let [StoredEntry { bytes, tokens, model, .. }] = listed[..] else { panic!("{listed:?}") };
    assert_eq!((bytes, tokens, model), (conversation().bytes(), 130, profile().model));
    assert_eq!(fs::metadata(path_of(&folder, "a")).unwrap().len(), bytes);
    drop(store);
    let store = open(&folder, PLENTY);
    assert_eq!(store.list(), listed);
    assert_eq!(get(&store, "a"), Some(conversation()));
    assert_eq!(get(&store, "b"), None);
}

#[test]
fn an_entry_is_replaced_and_removed() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    let (old, new) = (plain(tokens(1, 200), 1), plain(tokens(1, 300), 2));
    put(&store, "a", &old);
    put(&store, "a", &new);
    assert_eq!(get(&store, "a"), Some(new.clone()));
    assert_eq!((store.stats().entries, store.stats().bytes), (1, new.bytes()));
    assert!(store.remove(key("a")).unwrap());
    assert!(!store.remove(key("a")).unwrap());
    assert_eq!((get(&store, "a"), store.stats().bytes), (None, 0));
    assert_eq!(store.longest_prefix(&profile().model, &new.tokens), None);
    assert!(!path_of(&folder, "a").exists());
}

#[test]
fn names_of_clients_never_become_paths() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    let hostile = ["../../etc/passwd", "/etc/passwd", "a\0b", "", ".", "lock", &"x".repeat(10_000)];
    for name in hostile {
        put(&store, name, &conversation());
        assert_eq!(get(&store, name), Some(conversation()));
    }
    let files =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let (ours, other): (Vec<String>, Vec<String>) =
        files.partition(|name| name.len() == 64 + ".session".len());
    assert_eq!((ours.len(), other), (hostile.len(), vec!["lock".to_owned()]));
}

#[test]
fn the_least_recently_used_go_when_room_is_needed() {
    let folder = folder();
    let same = |seed| plain(tokens(u32::from(seed), 128), seed);
    let store = open(&folder, 3 * same(0).bytes());
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&store, name, &same(seed));
    }
    assert!(get(&store, "a").is_some());
    put(&store, "d", &same(4));
    assert_eq!(names(&store, &["a", "b", "c", "d"]), ["a", "c", "d"]);
    assert_eq!((store.stats().bytes, store.stats().evicted), (3 * same(0).bytes(), 1));
    assert_eq!(get(&store, "b"), None);
}

#[test]
fn entries_with_fewer_tokens_per_byte_go_first() {
    let folder = folder();
    let (dense, sparse) = (plain(tokens(1, 640), 1), plain(tokens(2, 1), 2));
    let store = open(&folder, dense.bytes() + 2 * sparse.bytes());
    put(&store, "dense", &dense);
    put(&store, "sparse", &sparse);
    put(&store, "sparse too", &sparse);
    put(&store, "new", &sparse);
    assert_eq!(names(&store, &["dense", "sparse", "sparse too", "new"]), ["dense", "sparse too", "new"]);
}

#[test]
fn the_order_of_use_survives_a_restart() {
    let folder = folder();
    let same = |seed| plain(tokens(u32::from(seed), 128), seed);
    let store = open(&folder, PLENTY);
    for (name, seed) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&store, name, &same(seed));
        let before = SystemTime::now() - Duration::from_secs(1000 - u64::from(seed));
        fs::File::options().append(true).open(path_of(&folder, name)).unwrap().set_modified(before).unwrap();
    }
    assert!(get(&store, "a").is_some());
    drop(store);
    let (store, report) = Store::open(folder.path(), 2 * same(0).bytes()).unwrap();
    assert_eq!(report.evicted, 1);
    assert_eq!(names(&store, &["a", "b", "c"]), ["a", "c"]);
}

#[test]
fn an_old_version_goes_last_and_a_too_large_one_costs_nothing() {
    let folder = folder();
    let (small, large) = (plain(tokens(1, 64), 1), plain(tokens(2, 640), 2));
    let store = open(&folder, large.bytes());
    put(&store, "a", &small);
    put(&store, "b", &small);
    let too_large = large.bytes() + 1;
    let refused = store.put(key("c"), &profile(), too_large, |_| unreachable!("there is no room"));
    assert!(matches!(refused, Err(StoreError::TooLarge { bytes, .. }) if bytes == too_large));
    assert_eq!(names(&store, &["a", "b"]), ["a", "b"]);
    put(&store, "a", &plain(tokens(1, 600), 1));
    assert_eq!(names(&store, &["a", "b"]), ["a"], "the old one made room for the new one only after b had");
}

#[test]
fn more_than_announced_is_refused_and_leaves_the_old_entry() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    put(&store, "a", &plain(tokens(1, 64), 1));
    let more = conversation();
    let result = store.put(key("a"), &profile(), more.bytes() - 1, |writer| more.write(writer));
    assert!(matches!(result, Err(StoreError::Overrun { .. })), "{result:?}");
    assert_eq!(get(&store, "a"), Some(plain(tokens(1, 64), 1)));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the lock and the entry");
    assert_eq!(store.stats().write_errors, 1);
}

#[test]
fn a_writer_that_panics_leaves_nothing() {
    let folder = folder();
    let store = open(&folder, 4000);
    for _ in 0..10 {
        let panics = || store.put(key("a"), &profile(), 3000, |_| panic!("on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    }
    put(&store, "a", &conversation());
    assert_eq!(get(&store, "a"), Some(conversation()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the lock and the entry");
}

#[test]
fn the_longest_prefix_is_found_also_after_a_restart() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    let long = tokens(1, 300);
    put(&store, "short", &plain(long[..128].to_vec(), 1));
    put(&store, "long", &plain(long.clone(), 2));
    put(&store, "other", &plain(tokens(2, 300), 3));
    drop(store);
    let store = open(&folder, PLENTY);
    let find = |tokens: &[u32]| store.longest_prefix(&profile().model, tokens);
    let found = |name, tokens| Some(PrefixMatch { key: key(name), tokens });
    assert_eq!(find(&long), found("long", 256));
    assert_eq!(find(&[long[..200].to_vec(), vec![5; 200]].concat()), found("long", 192));
    assert_eq!(find(&long[..63]), None);
    assert_eq!(find(&[&[999], &long[..]].concat()), None);
    assert_eq!(store.longest_prefix(&ModelTag::from_bytes([9; 32]), &long), None, "of another model");
    store.remove(key("long")).unwrap();
    assert_eq!(find(&long), found("short", 128));
}

#[test]
fn of_several_with_the_same_prefix_the_one_used_last_is_found() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    for name in ["a", "b", "c"] {
        put(&store, name, &plain(tokens(1, 64), 1));
    }
    for name in ["b", "c", "a"] {
        get(&store, name).unwrap();
        let found = store.longest_prefix(&profile().model, &tokens(1, 64)).unwrap();
        assert_eq!(found, PrefixMatch { key: key(name), tokens: 64 });
    }
}

#[test]
fn a_prefix_counts_only_as_far_as_there_is_state() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    let mut without_pages = plain(tokens(1, 300), 1);
    without_pages.pages.truncate(2);
    put(&store, "pages for 128", &without_pages);
    let find = |tokens: &[u32]| store.longest_prefix(&profile().model, tokens).map(|found| found.tokens);
    assert_eq!(find(&tokens(1, 300)), Some(128));
    let state = |position| (StateAt { format: 1, position }, vec![0; 24]);
    let recurrent = Conversation {
        checkpoints: vec![state(64), state(150), state(192)],
        state: Some(state(300)),
        ..plain(tokens(2, 300), 2)
    };
    put(&store, "states at 64 and 192", &recurrent);
    assert_eq!(find(&tokens(2, 300)), Some(192));
    assert_eq!(find(&tokens(2, 191)), Some(64));
    assert_eq!(find(&tokens(2, 63)), None);
}

#[test]
fn another_model_gets_nothing_and_other_numerics_get_tokens() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    put(&store, "a", &conversation());
    let other = Profile { model: ModelTag::from_bytes([9; 32]), ..profile() };
    let refused = store.get(key("a"), &other, Conversation::read);
    assert!(
        matches!(&refused, Err(StoreError::Blob(error)) if error.reason() == "other_model"),
        "{refused:?}"
    );
    let numerics = Profile { numerics: lichen_session::NumericsTag::from_bytes([9; 32]), ..profile() };
    assert!(store.get(key("a"), &numerics, Conversation::read).is_err());
    assert_eq!(store.get_tokens(key("a"), &numerics).unwrap(), Some(conversation().tokens));
    assert_eq!(get(&store, "a"), Some(conversation()), "it is still there for its own");
}

#[test]
fn a_damaged_entry_is_an_error_once_and_gone_then() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    put(&store, "a", &conversation());
    let page = conversation().pages[0].1.clone();
    damage(&path_of(&folder, "a"), |bytes| {
        let place = bytes.windows(page.len()).position(|window| window == page).unwrap();
        bytes[place] ^= 1;
    });
    let refused = store.get(key("a"), &profile(), Conversation::read);
    assert!(matches!(&refused, Err(StoreError::Blob(error)) if error.reason() == "checksum"), "{refused:?}");
    assert_eq!(get(&store, "a"), None);
    assert!(!path_of(&folder, "a").exists());
    assert_eq!((store.stats().damaged, store.stats().bytes), (1, 0));
}

#[test]
fn an_entry_whose_file_was_taken_away_is_not_there() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    put(&store, "a", &conversation());
    fs::remove_file(path_of(&folder, "a")).unwrap();
    assert_eq!((get(&store, "a"), store.stats().damaged, store.stats().entries), (None, 1, 0));
}

fn damage(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn only_sound_files_under_their_names_are_taken_over() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    for name in ["good", "cut", "flipped", "renamed"] {
        put(&store, name, &conversation());
    }
    drop(store);
    damage(&path_of(&folder, "cut"), |bytes| bytes.truncate(1000));
    damage(&path_of(&folder, "flipped"), |bytes| bytes[40] ^= 1);
    fs::rename(path_of(&folder, "renamed"), path_of(&folder, "stolen")).unwrap();
    fs::write(path_of(&folder, "empty"), "").unwrap();
    fs::write(folder.path().join(format!("{}.3.partial", key("a"))), "half").unwrap();
    let foreign = ["notes.session", "film.partial", "README"].map(|name| folder.path().join(name));
    foreign.iter().for_each(|path| fs::write(path, "of somebody else").unwrap());
    fs::create_dir(folder.path().join("sub")).unwrap();

    let (store, OpenReport { partial, refused, evicted }) = Store::open(folder.path(), PLENTY).unwrap();
    assert_eq!((partial, refused.len(), evicted), (1, 4, 0), "{refused:?}");
    assert!(refused.iter().all(|refused| refused.removed));
    let stolen = refused.iter().find(|refused| refused.file.starts_with(&key("stolen").to_string())).unwrap();
    assert_eq!(stolen.reason, "it holds another session");
    assert_eq!((store.stats().entries, store.stats().damaged), (1, 4));
    assert_eq!(get(&store, "good"), Some(conversation()));
    for name in ["cut", "flipped", "renamed", "stolen", "empty"] {
        assert!(!path_of(&folder, name).exists(), "{name}");
    }
    assert!(foreign.iter().all(|path| path.exists()), "files of others are left alone");
    drop(store);
    open(&folder, PLENTY);
}

#[test]
fn a_second_store_on_a_folder_is_refused() {
    let folder = folder();
    let store = open(&folder, PLENTY);
    let refused = Store::open(folder.path(), PLENTY);
    assert!(matches!(&refused, Err(StoreError::Locked { path }) if path == folder.path()), "{refused:?}");
    drop(store);
    open(&folder, PLENTY);
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn links_are_not_followed() {
        let (folder, elsewhere) = (folder(), folder());
        let store = open(&folder, PLENTY);
        put(&store, "a", &conversation());
        let target = elsewhere.path().join("target");
        fs::rename(path_of(&folder, "a"), &target).unwrap();
        symlink(&target, path_of(&folder, "a")).unwrap();
        let refused = store.get(key("a"), &profile(), Conversation::read);
        assert!(matches!(refused, Err(StoreError::Io { .. })), "{refused:?}");
        drop(store);
        let (store, report) = Store::open(folder.path(), PLENTY).unwrap();
        assert_eq!((report.refused.len(), store.stats().entries), (1, 0));
        assert!(report.refused[0].removed && target.exists(), "the link goes, not what it leads to");
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_refused() {
        let (folder, elsewhere) = (folder(), folder());
        symlink(elsewhere.path().join("target"), folder.path().join("lock")).unwrap();
        assert!(matches!(Store::open(folder.path(), PLENTY), Err(StoreError::Io { .. })));
        assert!(!elsewhere.path().join("target").exists());
    }

    #[test]
    fn a_pipe_does_not_block() {
        let folder = folder();
        let name = path_of(&folder, "a");
        nix::unistd::mkfifo(&name, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (store, report) = Store::open(folder.path(), PLENTY).unwrap();
        assert_eq!((report.refused.len(), store.stats().entries), (1, 0));
    }

    #[test]
    fn only_the_owner_can_read_what_is_kept() {
        let parent = folder();
        let inner = parent.path().join("sessions");
        let (store, _) = Store::open(&inner, PLENTY).unwrap();
        put(&store, "a", &conversation());
        assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o777, 0o700);
        let file = fs::metadata(inner.join(format!("{}.session", key("a")))).unwrap();
        assert_eq!((file.permissions().mode() & 0o777, file.nlink()), (0o600, 1));
    }
}
