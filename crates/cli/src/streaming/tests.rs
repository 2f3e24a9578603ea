//! Weights come before they are needed and go when they were used.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lichen_cpu::ReadObserver;
use lichen_format::{Checkpoint, Mapping};
use lichen_memory::{CHUNK_BYTES, ResidencyPlan, WINDOW_BYTES, WeightRange};
use tempfile::NamedTempFile;

use super::{Forecast, Streamer};

const CHUNKS: u64 = 24;
/// Where weights begin in the file.
const HEADER: u64 = 24;

/// A GGUF file without tensors, followed by the weights.
fn file() -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"GGUF").unwrap();
    file.write_all(&3_u32.to_le_bytes()).unwrap();
    file.write_all(&[0; 16]).unwrap();
    file.write_all(&vec![7; (CHUNKS * CHUNK_BYTES) as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

struct Model {
    file: NamedTempFile,
    mapping: Mapping,
    room: Arc<AtomicU64>,
    streamer: Streamer,
}

impl Model {
    fn within(room: u64) -> Self {
        let file = file();
        let mapping = Checkpoint::open(file.path()).unwrap().mapping().unwrap().clone();
        let plan = plan(room);
        let room = Arc::new(AtomicU64::new(room));
        let now = room.clone();
        let of_room = Box::new(move || Some(now.load(Ordering::Relaxed)));
        let streamer = Streamer::start("m", mapping.clone(), plan, None, of_room).unwrap();
        Self { file, mapping, room, streamer }
    }

    /// One pass over all weights. Most bytes that were in memory meanwhile.
    fn pass(&self) -> u64 {
        let bytes = self.mapping.bytes();
        let parts = bytes[HEADER as usize..].chunks(CHUNK_BYTES as usize);
        let used = parts.map(|part| {
            self.streamer.scan(part);
            assert!(part.iter().all(|byte| *byte == 7));
            resident(self.file.path())
        });
        used.max().unwrap()
    }

    fn read(&self) -> u64 {
        self.streamer.shared().read.load(Ordering::Relaxed)
    }
}

fn plan(room: u64) -> ResidencyPlan {
    let bytes = HEADER..HEADER + CHUNKS * CHUNK_BYTES;
    let mut plan = ResidencyPlan::new(&[WeightRange { bytes, rows: false }]);
    plan.resize(room);
    plan
}

/// Bytes of this file that are in this process's memory.
fn resident(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut lines = maps.lines().skip_while(|line| !line.contains(&name));
    let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    resident.trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

fn soon(what: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    while !what() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    what()
}

#[test]
fn memory_holds_no_more_than_the_room_and_a_pass_reads_no_more_than_what_does_not_stay() {
    let room = 16 * CHUNK_BYTES;
    let model = Model::within(room);
    model.pass();
    let before = model.read();
    let most = (0..3).map(|_| model.pass()).max().unwrap();
    // A page at each end of what was dropped belongs to what stays.
    let edges = CHUNKS * 2 * 4096;
    assert!(most <= room + CHUNK_BYTES + edges, "{most} bytes in memory");
    let streamed = plan(room).streamed_bytes();
    assert_eq!(streamed, 12 * CHUNK_BYTES);
    assert!(model.read() - before <= 3 * streamed + WINDOW_BYTES, "{} bytes read", model.read() - before);
}

#[test]
fn room_that_goes_is_given_back_and_room_that_comes_is_used() {
    let model = Model::within(CHUNKS * CHUNK_BYTES);
    model.pass();
    assert!(resident(model.file.path()) >= CHUNKS * CHUNK_BYTES, "all of it fits");
    model.room.store(8 * CHUNK_BYTES, Ordering::Relaxed);
    model.pass();
    model.pass();
    assert!(soon(|| resident(model.file.path()) <= 9 * CHUNK_BYTES));
    model.room.store(CHUNKS * CHUNK_BYTES, Ordering::Relaxed);
    model.pass();
    model.pass();
    let read = model.read();
    model.pass();
    assert_eq!(model.read(), read, "nothing is streamed any more");
}

#[test]
fn bytes_that_are_no_weights_are_not_waited_for() {
    let model = Model::within(0);
    model.streamer.scan(&[0; 8]);
    model.streamer.scan(&model.mapping.bytes()[..8]);
    model.streamer.scan(&[]);
    model.streamer.row(&[0; 8]);
}

#[test]
fn a_file_that_was_cut_off_holds_nobody_up() {
    let model = Model::within(0);
    model.file.as_file().set_len(HEADER + CHUNK_BYTES).unwrap();
    let bytes = model.mapping.bytes();
    // What is not touched raises no signal: only waiting is the matter here.
    bytes[HEADER as usize..].chunks(CHUNK_BYTES as usize).for_each(|part| model.streamer.scan(part));
}

#[test]
fn a_forecast_is_what_disk_and_memory_need_for_one_pass() {
    let forecast =
        Forecast { weights: 400, room: 350, hot: 300, streamed: 100, disk: 1000.0, memory: 3000.0 };
    assert!((forecast.tokens_per_second() - 5.0).abs() < 1e-9);
    let file = file();
    let mapping = Checkpoint::open(file.path()).unwrap().mapping().unwrap().clone();
    let room = 16 * CHUNK_BYTES;
    let began = Instant::now();
    let measured = Forecast::measure(&mapping, &plan(room), room, 1).unwrap();
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!((measured.weights, measured.hot), (CHUNKS * CHUNK_BYTES, 12 * CHUNK_BYTES));
    assert!(measured.disk > 0.0 && measured.memory > 0.0 && measured.tokens_per_second() > 0.0);
}
