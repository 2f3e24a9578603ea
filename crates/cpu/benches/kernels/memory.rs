//! How fast memory is read: what the decode rows in memory are to be seen beside.

use crate::is_test;
use criterion::{Criterion, Throughput};
use lichen_cpu::{Team, read_all};

/// Threads that read and decode: one, and all.
pub(crate) fn threads() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    if all == 1 { vec![1] } else { vec![1, all] }
}

/// More bytes than the caches of the machine hold.
pub(crate) fn beyond_caches() -> usize {
    if is_test() {
        return 1 << 20;
    }
    const LEAST: usize = 128 << 20;
    let size = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let kib = size.ok().and_then(|size| size.trim().strip_suffix('K')?.parse::<usize>().ok());
    kib.map_or(LEAST, |kib| (kib << 10).saturating_mul(4)).max(LEAST)
}

pub(crate) fn bandwidth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bandwidth");
    let bytes = vec![1u8; beyond_caches()];
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    for threads in threads() {
        let team = Team::of(threads).unwrap();
        group.bench_function(format!("t{threads}"), |bencher| {
            bencher.iter(|| read_all(&team, &[&bytes]));
        });
    }
    group.finish();
}
