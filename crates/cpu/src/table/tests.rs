//! Every format on every instruction set of this processor, against the scalar one: few values, but the worst ones.
//! Small enough for an emulator: `scripts/check-instruction-sets`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use super::*;

/// Where a block keeps its half-precision factors.
fn factors(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        _ => &[0],
    }
}

/// Rows of two blocks, most of them of one byte that makes products large or changes their sign.
fn weights(dtype: DType, rows: usize) -> Vec<u8> {
    const BYTES: [u8; 7] = [0xff, 0x80, 0x7f, 0x00, 0x81, 0x0f, 0xf0];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut weights = Vec::new();
    for block in 0..2 * rows {
        let mut bytes = vec![BYTES[block % BYTES.len()]; dtype.block_bytes()];
        if block % 5 == 4 {
            bytes.fill_with(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 56) as u8
            });
        }
        for (i, &at) in factors(dtype).iter().enumerate() {
            let factor = half::f16::from_f32(0.37 * (1 + i) as f32 - 0.11 * (block % 8) as f32);
            bytes[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
        weights.extend(bytes);
    }
    weights
}

/// Rows of values whose quants are all 127, all -127, one after the other, and others.
fn values(count: usize, width: usize) -> Vec<f32> {
    let value = |n: usize, i: usize| match n % 4 {
        0 => 127.0,
        1 => -127.0,
        2 if i.is_multiple_of(2) => 127.0,
        2 => -127.0,
        _ => ((n + i) as f32 * 1.37).sin() * (1 + i / 32) as f32,
    };
    (0..count * width).map(|at| value(at / width, at % width)).collect()
}

/// `out[vector][row]` the way batches are computed.
fn by_panels(row: &Gemv, weights: &[u8], rows: usize, x: &[f32], width: usize) -> Vec<u32> {
    let kernels = kernels(row.isa).unwrap();
    let (lanes, row_bytes) = (kernels.panel_rows, weights.len() / rows);
    let (mut panel, mut part) = (IntPanel::default(), vec![0.0; x.len() / width * lanes]);
    let (mut out, tiles) = (vec![0; x.len() / width * rows], Tile::of(x, width));
    for (index, weights) in weights.chunks(lanes * row_bytes).enumerate() {
        row.pack(weights, row_bytes, &mut panel);
        let mut places = part.as_mut_slice();
        for tile in &tiles {
            let (part, rest) = places.split_at_mut(tile.vectors * lanes);
            (kernels.multiply_ints)(&panel, tile, part);
            places = rest;
        }
        for (n, part) in part.chunks_exact(lanes).enumerate() {
            for (lane, value) in part.iter().enumerate().take(weights.len() / row_bytes) {
                out[n * rows + index * lanes + lane] = value.to_bits();
            }
        }
    }
    out
}

fn by_vectors(row: &Gemv, weights: &[u8], rows: usize, x: &[f32], width: usize) -> Vec<u32> {
    let mut vectors = vec![Activation::default(); x.len() / width];
    vectors.iter_mut().zip(x.chunks_exact(width)).for_each(|(vector, x)| vector.quantise(x));
    let mut out = vec![0.0; vectors.len() * rows];
    row.run(weights, &vectors, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_row_gives_the_bits_of_the_scalar_row_for_the_worst_values() {
    // A whole panel of 16 rows and a part of one; tiles of 8, 4, 2 and 1 vectors.
    let (rows, vectors_at_once) = (19, 15);
    for row in GEMV.iter().filter(|row| row.is_supported()) {
        let weights = weights(row.dtype, rows);
        let width = 2 * row.dtype.block_len();
        let x = values(vectors_at_once, width);
        let scalar = super::row(row.dtype, Scalar::NAME).unwrap();
        let wanted = by_vectors(scalar, &weights, rows, &x, width);
        assert!(wanted.iter().all(|bits| f32::from_bits(*bits).is_finite()), "{}", row.dtype);
        assert_eq!(by_vectors(row, &weights, rows, &x, width), wanted, "{} {}", row.dtype, row.isa);
        assert_eq!(by_panels(row, &weights, rows, &x, width), wanted, "{} {} by panels", row.dtype, row.isa);
    }
}

#[test]
fn each_format_has_a_row_for_each_instruction_set_best_first() {
    let sets: Vec<_> = KERNELS.iter().map(|kernels| kernels.isa).collect();
    for rows in GEMV.chunk_by(|a, b| a.dtype == b.dtype) {
        assert_eq!(rows.iter().map(|row| row.isa).collect::<Vec<_>>(), sets, "{}", rows[0].dtype);
    }
}

/// A script that emulates a processor says which instruction sets it has, so that none is skipped unseen.
#[test]
fn the_instruction_sets_are_those_that_the_processor_is_said_to_have() {
    let Ok(said) = std::env::var("LICHEN_TEST_INSTRUCTIONS") else { return };
    assert_eq!(instruction_sets().collect::<Vec<_>>().join(" "), said);
}
