//! Panels against the rows that read the file's own blocks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_cpu::table::{GEMV, Gemv};
use lichen_cpu::{Activation, Tile};
use lichen_tensor::quant;

/// Whole runs of eight groups, and ends of one, two, three and seven.
const WIDTHS: [usize; 5] = [512, 544, 576, 608, 480];

fn values(start: usize, len: usize) -> Vec<f32> {
    (start..start + len).map(|i| (i as f32 * 1.37).sin() * (1.0 + (i % 53) as f32 / 9.0)).collect()
}

fn check(row: &'static Gemv, width: usize, rows: usize, vectors: usize) {
    let mut panel = row.panel();
    let bytes = row.dtype.bytes_for((rows * width) as u64).unwrap() as usize;
    let mut weights = vec![0; bytes];
    quant::encode(row.dtype, &values(0, rows * width), &mut weights).unwrap();
    let x = values(7, vectors * width);
    let mut quantised = vec![Activation::default(); vectors];
    quantised.iter_mut().zip(x.chunks_exact(width)).for_each(|(quantised, x)| quantised.quantise(x));
    let mut want = vec![0.0; vectors * rows];
    row.run(&weights, &quantised, &mut want);
    let mut got = vec![0.0; vectors * panel.rows()];
    panel.fill(&weights, width);
    panel.multiply(&Tile::of(&x, width), &mut got);
    for (got, want) in got.chunks_exact(panel.rows()).zip(want.chunks_exact(rows)) {
        assert_eq!(&got[..rows], want, "{} {} {rows} x {width} x {vectors}", row.dtype, row.isa);
    }
}

#[test]
fn a_panel_gives_the_bits_of_single_vectors_for_any_number_of_rows_and_vectors_and_any_width() {
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let rows = row.panel().rows();
        for width in WIDTHS.into_iter().filter(|width| width.is_multiple_of(row.dtype.block_len())) {
            for (rows, vectors) in [(rows, 13), (1, 1), (rows - 3, 2)] {
                check(row, width, rows, vectors);
            }
        }
    }
}
