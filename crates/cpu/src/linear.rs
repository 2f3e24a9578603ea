//! Matrices times the rows of a buffer.

#![expect(unsafe_code, reason = "tasks write disjoint columns of one buffer")]

use crate::activation::Activation;
use crate::panel::IntPanel;
use crate::reads::{ReadObserver, SCAN_BYTES};
use crate::table::{Gemv, Kernels};
use crate::team::{Parts, Team};
use crate::tile::{self, Tile};
use lichen_tensor::{DType, SharedBytes, quant};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Up to this many rows, unpacking each row of weights for each of them beats building panels.
const GEMV_ROWS: usize = 2;
/// Bytes of weights that one task works on: long streams, and enough tasks to balance two uneven cores.
const TASK_BYTES: usize = 48 << 10;

/// A weight as the file stores it: rows of `dtype`, one after another.
#[derive(Clone)]
pub struct Weight {
    /// The type of its values.
    pub dtype: DType,
    /// The bytes of all its rows.
    pub bytes: SharedBytes,
}

impl Weight {
    /// Decodes `out.len()` values of row `row`.
    pub(crate) fn decode_row(&self, row: usize, out: &mut [f32]) {
        quant::decode(self.dtype, self.stored_row(row, out.len()), out)
            .expect("the executor checked the size of each weight");
    }

    /// The stored bytes of row `row` of `width` values.
    pub(crate) fn stored_row(&self, row: usize, width: usize) -> &[u8] {
        let bytes = self.row_bytes(width);
        &self.bytes[row * bytes..][..bytes]
    }

    fn row_bytes(&self, width: usize) -> usize {
        self.dtype.bytes_for(width as u64).expect("the executor checked that rows are whole blocks") as usize
    }
}

/// What each thread needs for itself.
#[derive(Default)]
pub(crate) struct Scratch {
    panel: IntPanel,
    floats: Vec<f32>,
    row: Vec<f32>,
    out: Vec<f32>,
}

/// One projection: rows `range` of a weight, to a buffer of its own.
pub(crate) struct Matrix<'m> {
    pub(crate) weight: &'m Weight,
    pub(crate) range: Range<usize>,
    pub(crate) bias: Option<&'m [f32]>,
    pub(crate) out: Parts<'m, f32>,
}

/// The input of a linear op: rows of `width` values, and their quantised form if any matrix needs it.
pub(crate) struct Input<'x> {
    pub(crate) rows: &'x [f32],
    pub(crate) width: usize,
    pub(crate) quantised: Quantised<'x>,
}

/// Rows in 8 bits, in the form that their number asks for.
#[derive(Clone, Copy)]
pub(crate) enum Quantised<'x> {
    /// Up to [`GEMV_ROWS`], for the file's own blocks.
    Vectors(&'x [Activation]),
    /// More, for panels.
    Tiles(&'x [Tile]),
}

/// Space for rows in 8 bits.
#[derive(Default)]
pub(crate) struct Quantiser {
    vectors: Vec<Activation>,
    tiles: Vec<Tile>,
}

impl Quantiser {
    /// Quantises rows of `width` values.
    pub(crate) fn quantise(&mut self, rows: &[f32], width: usize, with: &Multiplier<'_>) -> Quantised<'_> {
        let (count, kernels) = (rows.len() / width, with.kernels);
        if count <= GEMV_ROWS {
            if self.vectors.len() < count {
                self.vectors.resize_with(count, Activation::default);
            }
            let vectors = &mut self.vectors[..count];
            for (vector, row) in vectors.iter_mut().zip(rows.chunks_exact(width)) {
                (kernels.quantise)(vector, row);
            }
            return Quantised::Vectors(vectors);
        }
        let tiles = tile::lengths(count).count();
        if self.tiles.len() < tiles {
            self.tiles.resize_with(tiles, Tile::default);
        }
        let tiles = &mut self.tiles[..tiles];
        with.team.rows(tiles, 1, |index, tile| {
            let first: usize = tile::lengths(count).take(index).sum();
            let length = tile::lengths(count).nth(index).expect("a length for each tile");
            (kernels.quantise_tile)(&mut tile[0], &rows[first * width..][..length * width], width);
        });
        Quantised::Tiles(tiles)
    }
}

/// How matrices are multiplied.
pub(crate) struct Multiplier<'t> {
    pub(crate) team: &'t Team,
    pub(crate) kernels: &'static Kernels,
    pub(crate) scratch: &'t [Mutex<Scratch>],
    /// Decode weights and compute in floats.
    pub(crate) exact: bool,
    /// Is told of the weights before they are read.
    pub(crate) observer: Option<&'t dyn ReadObserver>,
}

/// A run of rows of one matrix.
pub(crate) struct Task {
    matrix: usize,
    rows: Range<usize>,
    /// The same for neighbours in one matrix of at most [`SCAN_BYTES`] together.
    part: (usize, usize),
}

impl Multiplier<'_> {
    /// The integer kernels of a weight, if it is to be multiplied with them.
    pub(crate) fn row(&self, weight: &Weight) -> Option<&'static Gemv> {
        if self.exact { None } else { crate::table::row(weight.dtype, self.kernels.isa) }
    }

    /// `out[row] = weight[range] input[row] + bias` for all matrices in one parallel region; `tasks` is space for its
    /// tasks.
    pub(crate) fn run(&self, input: &Input<'_>, matrices: &[Matrix<'_>], tasks: &mut Vec<Task>) {
        // A chunk in the middle of a prompt has no outputs, and then no logits.
        if input.rows.is_empty() {
            return;
        }
        self.share_out(input, matrices, tasks);
        let work = |Task { matrix, rows, .. }: &Task, thread: usize| {
            let Matrix { weight, range, bias, out } = &matrices[*matrix];
            let mut scratch = self.scratch[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let source = Source { weight, first: range.start, width: input.width };
            let out_width = range.len();
            let write = |row: usize, from: usize, values: &[f32]| {
                // SAFETY: tasks cover disjoint rows of weights, that is disjoint columns of the output.
                let out = unsafe { out.slice(row * out_width + from, values.len()) };
                out.copy_from_slice(values);
                if let Some(bias) = bias {
                    out.iter_mut().zip(&bias[from..]).for_each(|(out, bias)| *out += bias);
                }
            };
            match self.row(weight) {
                Some(kernel) => match input.quantised {
                    Quantised::Vectors(x) => {
                        source.multiply_vectors(kernel, x, rows.clone(), &mut scratch, write);
                    }
                    Quantised::Tiles(tiles) => {
                        let x = Vectors::Ints(kernel, tiles);
                        source.multiply_panels(self.kernels, x, rows.clone(), &mut scratch, write);
                    }
                },
                None => {
                    let x = Vectors::Floats(input.rows);
                    source.multiply_panels(self.kernels, x, rows.clone(), &mut scratch, write);
                }
            }
        };
        let Some(observer) = self.observer else {
            return self.team.run(tasks.len(), |task, thread| work(&tasks[task], thread));
        };
        for part in tasks.chunk_by(|a, b| a.part == b.part) {
            let Matrix { weight, range, .. } = &matrices[part[0].matrix];
            let source = Source { weight, first: range.start, width: input.width };
            observer.scan(source.bytes(&(part[0].rows.start..part[part.len() - 1].rows.end)));
            self.team.run(part.len(), |task, thread| work(&part[task], thread));
        }
    }

    fn share_out(&self, input: &Input<'_>, matrices: &[Matrix<'_>], tasks: &mut Vec<Task>) {
        tasks.clear();
        for (matrix, m) in matrices.iter().enumerate() {
            let rows = m.range.len();
            let row_bytes = m.weight.row_bytes(input.width).max(1);
            let size = (TASK_BYTES / row_bytes).max(1);
            let size = size.next_multiple_of(self.kernels.panel_rows);
            let part_rows = (SCAN_BYTES / row_bytes).max(size) / size * size;
            let starts = (0..rows).step_by(size);
            let task = |start: usize| Task {
                matrix,
                rows: start..rows.min(start + size),
                part: (matrix, start / part_rows),
            };
            tasks.extend(starts.map(task));
        }
    }
}

/// What panels are multiplied with.
#[derive(Clone, Copy)]
enum Vectors<'x> {
    Ints(&'x Gemv, &'x [Tile]),
    Floats(&'x [f32]),
}

/// Rows of a weight, counted from the first of a projection.
struct Source<'w> {
    weight: &'w Weight,
    first: usize,
    width: usize,
}

impl Source<'_> {
    fn bytes(&self, rows: &Range<usize>) -> &[u8] {
        let bytes = self.weight.row_bytes(self.width);
        &self.weight.bytes[(self.first + rows.start) * bytes..][..rows.len() * bytes]
    }

    fn multiply_vectors(
        &self,
        kernel: &Gemv,
        x: &[Activation],
        rows: Range<usize>,
        scratch: &mut Scratch,
        write: impl Fn(usize, usize, &[f32]),
    ) {
        scratch.out.resize(x.len() * rows.len(), 0.0);
        kernel.run(self.bytes(&rows), x, &mut scratch.out);
        for (row, values) in scratch.out.chunks_exact(rows.len()).enumerate() {
            write(row, rows.start, values);
        }
    }

    fn multiply_panels(
        &self,
        kernels: &Kernels,
        x: Vectors<'_>,
        rows: Range<usize>,
        scratch: &mut Scratch,
        write: impl Fn(usize, usize, &[f32]),
    ) {
        let lanes = kernels.panel_rows;
        for start in rows.clone().step_by(lanes) {
            let part = start..rows.end.min(start + lanes);
            let mut first = 0;
            let mut write_all = |out: &[f32]| {
                for values in out.chunks_exact(lanes) {
                    write(first, start, &values[..part.len()]);
                    first += 1;
                }
            };
            match x {
                Vectors::Ints(kernel, tiles) => {
                    let row_bytes = self.weight.row_bytes(self.width);
                    kernel.pack(self.bytes(&part), row_bytes, &mut scratch.panel);
                    // Written tile by tile: while the next is multiplied, the lines that are written to come.
                    for tile in tiles {
                        scratch.out.resize(tile.vectors * lanes, 0.0);
                        (kernels.multiply_ints)(&scratch.panel, tile, &mut scratch.out);
                        write_all(&scratch.out);
                    }
                }
                Vectors::Floats(x) => {
                    self.pack_floats(&part, lanes, scratch);
                    scratch.out.resize(x.len() / self.width * lanes, 0.0);
                    (kernels.multiply_floats)(&scratch.floats, x, self.width, &mut scratch.out);
                    write_all(&scratch.out);
                }
            }
        }
    }

    /// Decodes rows and interleaves them: `[value][row]`.
    fn pack_floats(&self, rows: &Range<usize>, lanes: usize, scratch: &mut Scratch) {
        scratch.row.resize(self.width, 0.0);
        scratch.floats.clear();
        scratch.floats.resize(self.width * lanes, 0.0);
        for (lane, row) in rows.clone().enumerate() {
            self.weight.decode_row(self.first + row, &mut scratch.row);
            for (place, value) in scratch.floats.chunks_exact_mut(lanes).zip(&scratch.row) {
                place[lane] = *value;
            }
        }
    }
}
