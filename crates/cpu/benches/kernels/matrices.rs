//! Matrices of each weight format on each instruction set.

use crate::memory::{beyond_caches, threads};
use crate::{is_test, values};
use criterion::{BenchmarkId, Criterion, Throughput};
use lichen_cpu::table::{GEMV, Gemv};
use lichen_cpu::{Activation, Team, Tile};
use lichen_tensor::quant;
use std::hint::black_box;

/// Values of a row.
const WIDTH: usize = 2048;
/// Rows of a panel's matrix: enough that none of its weights are in the nearest cache.
const ROWS: usize = 256;
/// Bytes of weights that stay in the cache of a core.
const CACHED_BYTES: usize = 256 << 10;
/// Rows that a thread multiplies at a time.
const TASK_ROWS: usize = 32;
/// Vectors that are multiplied with a panel: a prompt's step, and sequences that decode together.
const VECTORS: [usize; 4] = [512, 16, 8, 4];

fn rows() -> impl Iterator<Item = &'static Gemv> {
    GEMV.iter().filter(|row| row.is_supported())
}

fn row_bytes(row: &Gemv) -> usize {
    row.dtype.bytes_for(WIDTH as u64).unwrap() as usize
}

/// Rows of weights of a format; the same few again and again, since encoding takes long.
fn weights(row: &Gemv, count: usize) -> Vec<u8> {
    const DIFFERENT: usize = 8;
    let values = values(DIFFERENT * WIDTH);
    let mut bytes = vec![0; DIFFERENT * row_bytes(row)];
    quant::encode(row.dtype, &values, &mut bytes).unwrap();
    bytes.into_iter().cycle().take(count * row_bytes(row)).collect()
}

fn activation() -> Activation {
    let mut activation = Activation::default();
    activation.quantise(&values(WIDTH));
    activation
}

fn tiles(count: usize) -> Vec<Tile> {
    Tile::of(&values(count * WIDTH), WIDTH)
}

/// One vector times weights, in bytes of weights a second.
pub(crate) fn decode(criterion: &mut Criterion) {
    for row in rows() {
        let mut group = criterion.benchmark_group("decode");
        let name = format!("{}/{}", row.dtype, row.isa);
        for (place, bytes) in [("cache", CACHED_BYTES), ("memory", beyond_caches())] {
            let count = (bytes / row_bytes(row)).next_multiple_of(TASK_ROWS);
            group.throughput(Throughput::Bytes((count * row_bytes(row)) as u64));
            for threads in threads().into_iter().filter(|&threads| threads == 1 || place == "memory") {
                let id = BenchmarkId::new(&name, format!("{place}/t{threads}"));
                group.bench_with_input(id, &threads, |bencher, &threads| {
                    let (weights, x, mut out) = (weights(row, count), [activation()], vec![0.0; count]);
                    let team = Team::of(threads).unwrap();
                    bencher.iter(|| {
                        team.rows(&mut out, TASK_ROWS, |task, out| {
                            let bytes = TASK_ROWS * row_bytes(row);
                            row.run(&weights[task * bytes..][..bytes], &x, out);
                        });
                        black_box(&mut out);
                    });
                    assert!(out.iter().all(|value| value.is_finite()), "{name}");
                });
            }
        }
        group.finish();
    }
}

/// Panels alone, in bytes of weights a second, and with the vectors that are multiplied with them, in multiplications
/// a second.
pub(crate) fn panels(criterion: &mut Criterion) {
    let count = if is_test() { 16 } else { ROWS };
    for row in rows() {
        let mut group = criterion.benchmark_group("panel");
        let name = format!("{}/{}", row.dtype, row.isa);
        group.throughput(Throughput::Bytes((count * row_bytes(row)) as u64));
        group.bench_function(BenchmarkId::new(&name, "packing"), |bencher| {
            let (weights, mut panel) = (weights(row, count), row.panel());
            bencher.iter(|| {
                for rows in weights.chunks(panel.rows() * row_bytes(row)) {
                    panel.fill(rows, WIDTH);
                    black_box(&mut panel);
                }
            });
        });
        for vectors in VECTORS {
            group.throughput(Throughput::Elements((count * WIDTH * vectors) as u64));
            group.bench_function(BenchmarkId::new(&name, vectors), |bencher| {
                let (weights, x, mut panel) = (weights(row, count), tiles(vectors), row.panel());
                let mut out = vec![0.0; vectors * panel.rows()];
                bencher.iter(|| {
                    for rows in weights.chunks(panel.rows() * row_bytes(row)) {
                        panel.fill(rows, WIDTH);
                        panel.multiply(&x, &mut out);
                        black_box(&mut out);
                    }
                });
                assert!(out.iter().all(|value| value.is_finite()), "{name}");
            });
        }
        group.finish();
    }
}
