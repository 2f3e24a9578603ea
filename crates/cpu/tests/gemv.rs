//! Each kernel row against ggml's own bytes and values, and against the scalar row.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use lichen_cpu::Activation;
use lichen_cpu::table::GEMV;
use std::path::Path;

/// Bytes of `quant-blocks/<name>.bin` and the values they stand for.
fn blocks(name: &str) -> (Vec<u8>, Vec<f32>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../oracle/data/quant-blocks");
    let npy = std::fs::read(folder.join(format!("{name}.npy"))).unwrap();
    let header = usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    let values = npy[10 + header..].as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    (std::fs::read(folder.join(format!("{name}.bin"))).unwrap(), values)
}

fn activation(len: usize) -> Activation {
    activation_from(0, len)
}

fn activation_from(start: usize, len: usize) -> Activation {
    let value = |i: usize| ((start + i) as f32 * 1.37).sin() * (1.0 + (i / 32) as f32);
    let values: Vec<f32> = (0..len).map(value).collect();
    let mut activation = Activation::default();
    activation.quantise(&values);
    activation
}

#[test]
fn every_row_multiplies_what_ggml_says_the_bytes_mean() {
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let (bytes, values) = blocks(row.dtype.name());
        let (len, block_bytes) = (row.dtype.block_len(), row.dtype.block_bytes());
        let x = activation(len);
        let seen = x.values();
        let mut out = vec![0.0; bytes.len() / block_bytes];
        row.run(&bytes, std::slice::from_ref(&x), &mut out);
        for (i, (got, block)) in out.iter().zip(values.chunks_exact(len)).enumerate() {
            let products = block.iter().zip(&seen).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (want, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
            let error = (f64::from(*got) - want).abs();
            assert!(error <= 1e-5 * size + 1e-12, "{} {} block {i}: {got} {want}", row.dtype, row.isa);
        }
    }
}

#[test]
fn every_row_gives_the_bits_of_the_scalar_row() {
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let (bytes, _) = blocks(row.dtype.name());
        let x = activation(2 * row.dtype.block_len());
        let rows = bytes.len() / row.dtype.block_bytes() / 2;
        let bytes = &bytes[..rows * 2 * row.dtype.block_bytes()];
        let scalar = GEMV.iter().find(|other| other.dtype == row.dtype && other.isa == "scalar").unwrap();
        let [got, want] = [row, scalar].map(|row| {
            let mut out = vec![0.0; rows];
            row.run(bytes, std::slice::from_ref(&x), &mut out);
            out
        });
        assert_eq!(got, want, "{} {}", row.dtype, row.isa);
    }
}

#[test]
fn neither_neighbouring_vectors_nor_rows_change_a_bit() {
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let (bytes, _) = blocks(row.dtype.name());
        let row_bytes = row.dtype.block_bytes();
        let rows = (bytes.len() / row_bytes).min(19);
        let x: Vec<Activation> = (0..7).map(|n| activation_from(n, row.dtype.block_len())).collect();
        let mut together = vec![0.0; x.len() * rows];
        row.run(&bytes[..rows * row_bytes], &x, &mut together);
        for (x, together) in x.iter().zip(together.chunks_exact(rows)) {
            for (weights, together) in bytes.chunks_exact(row_bytes).zip(together) {
                let mut alone = [0.0];
                row.run(weights, std::slice::from_ref(x), &mut alone);
                assert_eq!(alone[0].to_bits(), together.to_bits(), "{} {}", row.dtype, row.isa);
            }
        }
    }
}

#[test]
fn extreme_values_do_not_saturate() {
    for sign in [1.0, -1.0] {
        let mut x = Activation::default();
        x.quantise(&[sign * 127.0; 32]);
        for row in GEMV.iter().filter(|row| row.is_supported() && row.dtype.name() == "q8_0") {
            for byte in [0x80u8, 0x7f] {
                let mut block = vec![byte; 34];
                block[..2].copy_from_slice(&0x3c00u16.to_le_bytes());
                let mut out = [0.0];
                row.run(&block, std::slice::from_ref(&x), &mut out);
                assert_eq!(out[0], f32::from(byte as i8) * sign * 127.0 * 32.0, "{}", row.isa);
            }
        }
    }
}
