//! Panels against the rows that read the file's own blocks.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_cpu::Activation;
use lichen_cpu::table::GEMV;
use lichen_tensor::quant;

const WIDTH: usize = 512;

fn values(start: usize, len: usize) -> Vec<f32> {
    (start..start + len).map(|i| (i as f32 * 1.37).sin() * (1.0 + (i % 53) as f32 / 9.0)).collect()
}

#[test]
fn a_panel_gives_the_bits_of_single_vectors_for_any_number_of_rows_and_vectors() {
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let mut panel = row.panel();
        for (rows, vectors) in [(panel.rows(), 13), (1, 1), (panel.rows() - 3, 2)] {
            let bytes = row.dtype.bytes_for((rows * WIDTH) as u64).unwrap() as usize;
            let mut weights = vec![0; bytes];
            quant::encode(row.dtype, &values(0, rows * WIDTH), &mut weights).unwrap();
            let x: Vec<Activation> = (0..vectors)
                .map(|vector| {
                    let mut x = Activation::default();
                    x.quantise(&values(1000 * vector, WIDTH));
                    x
                })
                .collect();
            let mut want = vec![0.0; vectors * rows];
            row.run(&weights, &x, &mut want);
            let mut got = vec![0.0; vectors * panel.rows()];
            panel.fill(&weights, WIDTH);
            panel.multiply(&x, &mut got);
            for (got, want) in got.chunks_exact(panel.rows()).zip(want.chunks_exact(rows)) {
                assert_eq!(&got[..rows], want, "{} {} {rows} x {vectors}", row.dtype, row.isa);
            }
        }
    }
}
