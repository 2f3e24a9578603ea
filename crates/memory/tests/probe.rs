//! The sensors of Linux on trees of files made for the purpose.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_memory::probe::{Linux, MemorySource, Scripted};
use lichen_memory::{Origin, Sample, Source, static_limit};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const MOUNT_ONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
const MOUNT_TWO: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=700\n";

/// A root folder with these files.
struct Tree(TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(TempDir::new().unwrap());
        files.iter().for_each(|(path, text)| tree.write(path, text.as_bytes()));
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), bytes).unwrap();
    }

    fn sample(&self) -> Sample {
        Linux::new(self.0.path()).sample()
    }
}

fn machine() -> Vec<(&'static str, &'static str)> {
    vec![
        ("proc/meminfo", "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:   4194304 kB\n"),
        ("proc/self/status", "Name:\tx\nRssAnon:\t    2048 kB\nRssFile:\t    1024 kB\n"),
        ("proc/pressure/memory", PRESSURE),
        ("proc/vmstat", "nr_free_pages 5\nworkingset_refault_anon 7\nworkingset_refault_file 3\n"),
    ]
}

#[test]
fn a_machine_without_control_groups() {
    let sample = Tree::new(&machine()).sample();
    assert_eq!((sample.total, sample.available), (Some(8192 * MIB), Some(4096 * MIB)));
    assert_eq!((sample.anonymous, sample.file), (Some(2 * MIB), Some(MIB)));
    assert!(sample.groups.is_empty());
    let stall = sample.stall.unwrap();
    assert_eq!(stall.origin, Origin::System);
    assert_eq!((stall.some, stall.full), (Duration::from_micros(1500), Duration::from_micros(700)));
    assert_eq!(sample.refaulted.unwrap().bytes, 3 * 4096);
}

#[test]
fn an_empty_machine_says_nothing() {
    assert_eq!(Tree::new(&[]).sample(), Sample::default());
}

#[test]
fn version_two_takes_the_tightest_of_max_and_high_of_every_ancestor() {
    let group = "sys/fs/cgroup/unified/a/b";
    let mut files = machine();
    files.extend([
        ("proc/self/mountinfo", MOUNT_TWO),
        ("proc/self/cgroup", "0::/a/b\n"),
        ("sys/fs/cgroup/unified/a/b/memory.max", "max\n"),
        ("sys/fs/cgroup/unified/a/b/memory.high", "629145600\n"),
        ("sys/fs/cgroup/unified/a/b/memory.current", "1048576\n"),
        (
            "sys/fs/cgroup/unified/a/b/memory.stat",
            "anon 5\ninactive_file 100\nactive_file 20\nworkingset_refault_file 2\n",
        ),
        ("sys/fs/cgroup/unified/a/b/memory.events", "low 0\nhigh 4\nmax 3\noom 2\noom_kill 1\n"),
        ("sys/fs/cgroup/unified/a/b/memory.pressure", PRESSURE),
        ("sys/fs/cgroup/unified/a/memory.max", "524288000\n"),
        ("sys/fs/cgroup/unified/a/memory.high", "max\n"),
    ]);
    let tree = Tree::new(&files);
    let sample = tree.sample();
    let [own, parent] = &sample.groups[..] else { panic!("{:?}", sample.groups) };
    assert_eq!(
        (own.name.as_str(), own.limit, own.usage, own.file),
        ("/a/b", 600 * MIB, Some(MIB), Some(120))
    );
    assert_eq!((own.limit_hits, own.out_of_memory), (Some(3), Some(2)));
    assert_eq!((parent.name.as_str(), parent.limit, parent.usage), ("/a", 500 * MIB, None));
    assert_eq!(static_limit(&sample, None), Ok((500 * MIB, Source::Group("/a".into()))));
    assert_eq!(sample.stall.unwrap().origin, Origin::Group);
    assert_eq!(sample.refaulted.unwrap().bytes, 2 * 4096);

    fs::remove_dir_all(tree.path(group)).unwrap();
    let sample = tree.sample();
    assert_eq!(sample.stall.unwrap().origin, Origin::System);
}

#[test]
fn version_one_and_the_hybrid_of_both() {
    let mut files = machine();
    let mounts = format!("{MOUNT_ONE}{MOUNT_TWO}");
    files.extend([
        ("proc/self/mountinfo", mounts.as_str()),
        ("proc/self/cgroup", "4:memory:/job\n1:cpu:/\n0::/job\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "734003200\n"),
        ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2097152\n"),
        ("sys/fs/cgroup/memory/job/memory.failcnt", "12\n"),
        ("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
        (
            "sys/fs/cgroup/memory/job/memory.stat",
            "inactive_file 1\nactive_file 1\ntotal_inactive_file 30\ntotal_active_file 40\n\
             total_workingset_refault_file 5\n",
        ),
        ("sys/fs/cgroup/unified/job/memory.pressure", PRESSURE),
    ]);
    let sample = Tree::new(&files).sample();
    let [own] = &sample.groups[..] else { panic!("{:?}", sample.groups) };
    assert_eq!(
        (own.name.as_str(), own.limit, own.usage, own.file),
        ("/job", 700 * MIB, Some(2 * MIB), Some(70))
    );
    assert_eq!((own.limit_hits, own.out_of_memory), (Some(12), Some(1)));
    assert_eq!(sample.stall.unwrap().origin, Origin::Group);
    assert_eq!(sample.refaulted.unwrap().bytes, 5 * 4096);
}

#[test]
fn a_container_sees_its_part_of_the_hierarchy() {
    let mount = "35 31 0:32 /pod/box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let sample = Tree::new(&[
        ("proc/self/mountinfo", mount),
        ("proc/self/cgroup", "4:memory:/pod/box/inner\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"),
        ("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "2097152\n"),
    ])
    .sample();
    let limits: Vec<u64> = sample.groups.iter().map(|group| group.limit).collect();
    assert_eq!(limits, [2 * MIB, MIB]);
}

#[test]
fn a_path_out_of_the_hierarchy_means_its_root() {
    let sample = Tree::new(&[
        ("proc/self/mountinfo", MOUNT_TWO),
        ("proc/self/cgroup", "0::/../../../etc\n"),
        ("sys/fs/cgroup/unified/memory.max", "1048576\n"),
        ("etc/memory.max", "1\n"),
    ])
    .sample();
    let limits: Vec<u64> = sample.groups.iter().map(|group| group.limit).collect();
    assert_eq!(limits, [MIB]);
}

#[test]
fn nonsense_is_absent() {
    for nonsense in ["", "-5 kB", "1e9 kB", "NaN", "99999999999999999999999 kB", "18446744073709551615 kB"] {
        let meminfo = format!("MemTotal: {nonsense}\nMemAvailable: {nonsense}\n");
        let sample = Tree::new(&[("proc/meminfo", &meminfo), ("proc/pressure/memory", nonsense)]).sample();
        assert_eq!(sample, Sample::default(), "{nonsense:?}");
    }
}

#[test]
fn more_available_than_there_is_counts_as_absent() {
    let sample = Tree::new(&[("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 101 kB\n")]).sample();
    assert_eq!((sample.total, sample.available), (Some(102_400), None));
}

#[test]
fn huge_files_and_folders_in_the_place_of_files_are_absent() {
    let tree = Tree::new(&machine());
    tree.write("proc/meminfo", &vec![b'x'; 3 << 20]);
    fs::remove_file(tree.path("proc/self/status")).unwrap();
    fs::create_dir(tree.path("proc/self/status")).unwrap();
    let sample = tree.sample();
    assert_eq!((sample.total, sample.anonymous), (None, None));
    assert!(sample.stall.is_some());
}

#[test]
fn a_sensor_that_vanishes_becomes_absent_and_comes_back() {
    let tree = Tree::new(&machine());
    let mut source = Linux::new(tree.path(""));
    assert!(source.sample().total.is_some());
    fs::remove_file(tree.path("proc/meminfo")).unwrap();
    assert_eq!(source.sample().total, None);
    tree.write("proc/meminfo", b"MemTotal: 1 kB\n");
    assert_eq!(source.sample().total, Some(1024));
}

#[test]
fn a_group_that_we_are_moved_to_is_found() {
    let tree = Tree::new(&[
        ("proc/self/mountinfo", MOUNT_TWO),
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/unified/a/memory.max", "1048576\n"),
        ("sys/fs/cgroup/unified/b/memory.max", "2097152\n"),
    ]);
    let mut source = Linux::new(tree.path(""));
    assert_eq!(source.sample().groups[0].limit, MIB);
    tree.write("proc/self/cgroup", b"0::/b\n");
    let limits: Vec<u64> = (0..64).map(|_| source.sample().groups[0].limit).collect();
    assert_eq!(limits.last(), Some(&(2 * MIB)));
}

#[test]
fn a_script_ends_in_its_last_sample() {
    let sample = |total| Sample { total: Some(total), ..Sample::default() };
    let mut source = Scripted::new(vec![sample(1), sample(2)]);
    let totals: Vec<Option<u64>> = (0..4).map(|_| source.sample().total).collect();
    assert_eq!(totals, [Some(1), Some(2), Some(2), Some(2)]);
    assert_eq!(Scripted::new(Vec::new()).sample(), Sample::default());
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_tells_its_size() {
    let sample = Linux::new("/").sample();
    assert!(sample.total.unwrap() > 0);
    assert!(sample.available.unwrap() <= sample.total.unwrap());
    assert!(sample.anonymous.unwrap() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_in_any_file_are_survived(
        files in prop::collection::vec((0usize..9, prop::collection::vec(any::<u8>(), 0..200)), 0..9),
    ) {
        let tree = Tree::new(&machine());
        tree.write("proc/self/mountinfo", MOUNT_TWO.as_bytes());
        tree.write("proc/self/cgroup", b"0::/a\n");
        let paths = [
            "proc/meminfo", "proc/self/status", "proc/self/cgroup", "proc/self/mountinfo", "proc/self/auxv",
            "proc/pressure/memory", "sys/fs/cgroup/unified/a/memory.max",
            "sys/fs/cgroup/unified/a/memory.stat",
            "sys/fs/cgroup/unified/a/memory.pressure",
        ];
        for (at, bytes) in &files {
            tree.write(paths[*at], bytes);
        }
        let sample = tree.sample();
        prop_assert!(sample.groups.len() <= 64);
    }
}
