//! Runs a plan on a ragged batch with the kernels of the table.

#![expect(unsafe_code, reason = "attention tasks write disjoint parts of one buffer")]

use crate::attention::{self, HeadPages, Query, ROWS, Scoring};
use crate::config::{CpuConfig, CpuError, Numerics};
use crate::footprint;
use crate::kv::{Converter, Kv, Layout};
use crate::linear::{self, Input, Matrix, Multiplier, Quantised, Quantiser, Weight};
use crate::math;
use crate::reads::ReadObserver;
use crate::table::{self, Kernels};
use crate::team::{Parts, Team};
use lichen_backend::{Executor, ExecutorError, KvPrecision, PageError, PageId, PageSet};
use lichen_op::{Batch, BufferId, Op, Plan, Projection, Rows, WeightId};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, PoisonError};

/// Projections of one input that need no space on the heap: queries, keys and values, or gate and up.
const PROJECTIONS: usize = 4;

/// A plan, its weights where the file has them, and the KV of its sequences.
///
/// A step uses the space of the steps before it: once a step of its size has been run it allocates nothing but pages.
pub struct CpuExecutor {
    plan: Plan,
    weights: Vec<Weight>,
    /// Norms and biases, decoded; empty for matrices.
    vectors: Vec<Vec<f32>>,
    kv: Kv,
    team: Arc<Team>,
    kernels: &'static Kernels,
    config: CpuConfig,
    /// What each thread needs for itself.
    linear_scratch: Vec<Mutex<linear::Scratch>>,
    attention_scratch: Vec<Mutex<attention::Scratch>>,
    linear_tasks: Vec<linear::Task>,
    attention_tasks: Vec<attention::Task>,
    buffers: Vec<Vec<f32>>,
    quantiser: Quantiser,
    ropes: Vec<Vec<f32>>,
    observer: Option<Arc<dyn ReadObserver>>,
}

impl CpuExecutor {
    /// Binds weights, in the order of `plan.weights`, to a plan.
    ///
    /// # Errors
    /// If plan and weights don't fit, or threads or instructions are missing.
    pub fn new(plan: Plan, weights: Vec<Weight>, config: CpuConfig) -> Result<Self, CpuError> {
        plan.validate()?;
        if weights.len() != plan.weights.len() {
            return Err(CpuError::Count { needed: plan.weights.len(), got: weights.len() });
        }
        for (decl, weight) in plan.weights.iter().zip(&weights) {
            let row = weight.dtype.bytes_for(decl.row_len() as u64);
            let needed = row.and_then(|row| row.checked_mul(decl.rows() as u64));
            if needed != Some(weight.bytes.len() as u64) {
                let needed = needed.map_or("rows of whole blocks".to_owned(), |needed| needed.to_string());
                let (name, got) = (decl.name.clone(), weight.bytes.len());
                return Err(CpuError::Weight { name, dtype: weight.dtype, got, needed });
            }
        }
        let best = table::instruction_sets().next().expect("the scalar set runs everywhere");
        let isa = config.isa.unwrap_or(best);
        let kernels = table::kernels(isa).ok_or_else(|| CpuError::Isa(isa.to_owned()))?;
        let team = Team::of(config.threads)?;
        let precision = match config.numerics {
            Numerics::Fast => KvPrecision::F16,
            Numerics::Float32 => KvPrecision::F32,
        };
        Ok(Self {
            vectors: vectors(&plan, &weights),
            kv: Kv::new(Layout::new(&plan.kv), precision),
            linear_scratch: (0..team.threads()).map(|_| Mutex::default()).collect(),
            attention_scratch: (0..team.threads()).map(|_| Mutex::default()).collect(),
            linear_tasks: Vec::new(),
            attention_tasks: Vec::new(),
            buffers: vec![Vec::new(); plan.buffers.len()],
            ropes: vec![Vec::new(); plan.ropes.len()],
            quantiser: Quantiser::default(),
            observer: None,
            plan,
            weights,
            team,
            kernels,
            config,
        })
    }

    /// Tells somebody of the weights before they are read. The results are the same.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn ReadObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> &'static str {
        self.kernels.isa
    }

    fn prepare(&mut self, batch: &Batch) -> Result<(), ExecutorError> {
        batch.validate(self.plan.vocab).map_err(|error| ExecutorError(error.to_string()))?;
        for span in &batch.sequences {
            let stored = self.kv.len(span.sequence);
            if span.past > stored {
                let text =
                    format!("sequence {} has {stored} tokens and goes on at {}", span.sequence, span.past);
                return Err(ExecutorError(text));
            }
        }
        for span in &batch.sequences {
            let converter = Converter { team: &self.team, kernels: self.kernels };
            self.kv.reserve(span.sequence, span.past, span.len, converter).map_err(failed)?;
        }
        for (buffer, decl) in self.buffers.iter_mut().zip(&self.plan.buffers) {
            let rows = if decl.rows == Rows::Tokens { batch.tokens.len() } else { batch.outputs.len() };
            buffer.resize(rows * decl.width, 0.0);
        }
        for (table, rope) in self.ropes.iter_mut().zip(&self.plan.ropes) {
            math::rope_table(rope, &batch.positions, table);
        }
        Ok(())
    }

    /// Exchanges the caller's logits and the buffer of the plan, so that there is one of them and nothing is copied.
    fn exchange(&mut self, logits: &mut Vec<f32>) {
        match self.plan.steps.last() {
            Some(Op::Logits { out, .. }) => std::mem::swap(logits, &mut self.buffers[out.0]),
            _ => logits.clear(),
        }
    }

    fn width(&self, buffer: BufferId) -> usize {
        self.plan.buffers[buffer.0].width
    }

    fn take(&mut self, buffer: BufferId) -> Vec<f32> {
        std::mem::take(&mut self.buffers[buffer.0])
    }

    fn step(&mut self, op: &Op, batch: &Batch) {
        match op {
            Op::Embed { table, scale, out } => self.embed(*table, *scale, *out, batch),
            Op::RmsNorm { x, weight, eps, out } => self.norm(*x, *weight, *eps, *out),
            Op::Linear { input, projections } => self.linear(*input, projections),
            Op::RopeAppend { q, k, v, q_norm, k_norm, eps, rope, layer } => {
                let width = self.kv.layout().shape(*layer).head_dim;
                self.rotate(*q, *q_norm, *eps, *rope, width);
                self.rotate(*k, *k_norm, *eps, *rope, width);
                self.append(*k, *v, *layer, batch);
            }
            Op::Attention { q, layer, scale, window, softcap, out } => {
                let scoring = Scoring { scale: *scale, softcap: *softcap };
                self.attention(*q, *layer, scoring, *window, *out, batch);
            }
            Op::GatedActivation { gate, up, act, out } => self.gate(*gate, *up, *act, *out),
            Op::Add { x, y, out } => self.add(*x, *y, *out),
            Op::SelectOutputs { x, out } => {
                let width = self.width(*x);
                let mut rows = self.take(*out);
                for (row, &output) in rows.chunks_exact_mut(width).zip(&batch.outputs) {
                    row.copy_from_slice(&self.buffers[x.0][output * width..][..width]);
                }
                self.buffers[out.0] = rows;
            }
            Op::Logits { x, weight, out } => {
                let whole =
                    Projection { weight: *weight, row_range: 0..self.plan.vocab, bias: None, out: *out };
                self.linear(*x, std::slice::from_ref(&whole));
            }
        }
    }

    fn embed(&mut self, table: WeightId, scale: f32, out: BufferId, batch: &Batch) {
        let width = self.width(out);
        let mut rows = self.take(out);
        if let Some(observer) = &self.observer {
            let stored = |token: u32| self.weights[table.0].stored_row(token as usize, width);
            batch.tokens.iter().for_each(|&token| observer.row(stored(token)));
        }
        for (row, &token) in rows.chunks_exact_mut(width).zip(&batch.tokens) {
            self.weights[table.0].decode_row(token as usize, row);
            row.iter_mut().for_each(|value| *value *= scale);
        }
        self.buffers[out.0] = rows;
    }

    fn norm(&mut self, x: BufferId, weight: WeightId, eps: f32, out: BufferId) {
        let mut rows = self.take(out);
        if x != out {
            rows.copy_from_slice(&self.buffers[x.0]);
        }
        let (norm, weight) = (self.kernels.rms_norm, &self.vectors[weight.0]);
        self.team.rows(&mut rows, weight.len(), |_, row| norm(row, weight, eps));
        self.buffers[out.0] = rows;
    }

    fn linear(&mut self, input: BufferId, projections: &[Projection]) {
        let width = self.width(input);
        let rows = self.take(input);
        let mut outs: SmallVec<[Vec<f32>; PROJECTIONS]> =
            projections.iter().map(|p| self.take(p.out)).collect();
        let mut quantiser = std::mem::take(&mut self.quantiser);
        let mut tasks = std::mem::take(&mut self.linear_tasks);
        let multiplier = Multiplier {
            team: &self.team,
            kernels: self.kernels,
            scratch: &self.linear_scratch,
            exact: self.config.numerics == Numerics::Float32,
            observer: self.observer.as_deref(),
        };
        let ints = projections.iter().any(|p| multiplier.row(&self.weights[p.weight.0]).is_some());
        let quantised =
            if ints { quantiser.quantise(&rows, width, &multiplier) } else { Quantised::Tiles(&[]) };
        let matrices = projections.iter().zip(&mut outs);
        let matrices: SmallVec<[Matrix<'_>; PROJECTIONS]> = matrices
            .map(|(p, out)| Matrix {
                weight: &self.weights[p.weight.0],
                range: p.row_range.clone(),
                bias: p.bias.map(|bias| &self.vectors[bias.0][p.row_range.clone()]),
                out: Parts::new(out),
            })
            .collect();
        multiplier.run(&Input { rows: &rows, width, quantised }, &matrices, &mut tasks);
        drop(matrices);
        self.linear_tasks = tasks;
        self.quantiser = quantiser;
        self.buffers[input.0] = rows;
        for (p, out) in projections.iter().zip(outs) {
            self.buffers[p.out.0] = out;
        }
    }

    fn rotate(&mut self, buffer: BufferId, norm: Option<WeightId>, eps: f32, rope: usize, head_dim: usize) {
        let width = self.width(buffer);
        let mut rows = self.take(buffer);
        let norm = norm.map(|norm| &self.vectors[norm.0]);
        let (rope, table, rms_norm) = (&self.plan.ropes[rope], &self.ropes[rope], self.kernels.rms_norm);
        let row_len = 2 * rope.inverse_frequencies.len();
        self.team.rows(&mut rows, width, |row, values| {
            let table = &table[row * row_len..][..row_len];
            for head in values.chunks_exact_mut(head_dim) {
                if let Some(norm) = norm {
                    rms_norm(head, norm, eps);
                }
                math::rotate(rope, head, table);
            }
        });
        self.buffers[buffer.0] = rows;
    }

    fn append(&mut self, k: BufferId, v: BufferId, layer: usize, batch: &Batch) {
        let width = self.width(k);
        for span in &batch.sequences {
            for i in 0..span.len {
                let at = (span.first + i) * width;
                let keys = &self.buffers[k.0][at..at + width];
                let values = &self.buffers[v.0][at..at + width];
                self.kv.store(span.sequence, span.past + i, layer, keys, values);
            }
        }
    }

    fn attention(
        &mut self,
        q: BufferId,
        layer: usize,
        scoring: Scoring,
        window: Option<u32>,
        out: BufferId,
        batch: &Batch,
    ) {
        let (width, shape) = (self.width(q), self.kv.layout().shape(layer));
        let (kv_heads, head_dim) = (self.kv.layout().kv_heads(layer), shape.head_dim);
        let group = width / head_dim / kv_heads;
        let mut result = self.take(out);
        let mut tasks = std::mem::take(&mut self.attention_tasks);
        attention::share_out(&batch.sequences, kv_heads, group, &mut tasks);
        let (rows, parts, attend) = (&self.buffers[q.0], Parts::new(&mut result), self.kernels.attend);
        self.team.run(tasks.len(), |task, thread| {
            let attention::Task { span, kv_head, queries } = &tasks[task];
            let span = &batch.sequences[*span];
            let pages = self.kv.sequence_pages(span.sequence);
            let page = |index: usize| self.kv.head(pages[index], layer, *kv_head);
            let pages = HeadPages { page: &page, shape };
            // Where a query head is, and where its result goes.
            let place = |query: usize| {
                let (token, head) = (query / group, kv_head * group + query % group);
                (span.first + token) * width + head * head_dim
            };
            let query = |query: usize| {
                let index = span.past + query / group;
                let from = window.map_or(0, |window| (index + 1).saturating_sub(window as usize));
                Query { values: &rows[place(query)..][..head_dim], from, to: index + 1 }
            };
            let scratch = &self.attention_scratch[thread];
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            for start in queries.clone().step_by(ROWS) {
                let chosen = start..queries.end.min(start + ROWS);
                let together: SmallVec<[Query<'_>; ROWS]> = chosen.clone().map(query).collect();
                attend(&together, pages, scoring, &mut scratch);
                for (query, sums) in chosen.zip(scratch.out.chunks_exact(shape.stride)) {
                    // SAFETY: each query head of each token belongs to one task.
                    let out = unsafe { parts.slice(place(query), head_dim) };
                    out.copy_from_slice(&sums[..head_dim]);
                }
            }
        });
        self.attention_tasks = tasks;
        self.buffers[out.0] = result;
    }

    fn gate(&mut self, gate: BufferId, up: BufferId, act: lichen_op::Activation, out: BufferId) {
        let width = self.width(out);
        let mut rows = self.take(out);
        let kernel = self.kernels.gate;
        if out == up {
            // The op's operands aren't symmetric: keep `up` while `out` takes the place of `gate`.
            let up = rows.clone();
            rows.copy_from_slice(&self.buffers[gate.0]);
            self.team.rows(&mut rows, width, |row, out| kernel(act, out, &up[row * width..][..width]));
        } else {
            if gate != out {
                rows.copy_from_slice(&self.buffers[gate.0]);
            }
            let up = &self.buffers[up.0];
            self.team.rows(&mut rows, width, |row, out| kernel(act, out, &up[row * width..][..width]));
        }
        self.buffers[out.0] = rows;
    }

    fn add(&mut self, x: BufferId, y: BufferId, out: BufferId) {
        let (x, y) = if y == out { (y, x) } else { (x, y) };
        let mut rows = self.take(out);
        if x != out {
            rows.copy_from_slice(&self.buffers[x.0]);
        }
        if y == out {
            rows.iter_mut().for_each(|value| *value += *value);
        } else {
            rows.iter_mut().zip(&self.buffers[y.0]).for_each(|(x, y)| *x += y);
        }
        self.buffers[out.0] = rows;
    }
}

/// Norms and biases, which every step reads, in single precision.
fn vectors(plan: &Plan, weights: &[Weight]) -> Vec<Vec<f32>> {
    let mut vectors = vec![Vec::new(); weights.len()];
    for WeightId(id) in footprint::vectors(plan) {
        vectors[id].resize(plan.weights[id].row_len(), 0.0);
        weights[id].decode_row(0, &mut vectors[id]);
    }
    vectors
}

fn failed(error: PageError) -> ExecutorError {
    ExecutorError(error.to_string())
}

impl Executor for CpuExecutor {
    fn vocab(&self) -> usize {
        self.plan.vocab
    }

    fn run(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<(), ExecutorError> {
        self.exchange(logits);
        self.prepare(batch)?;
        let steps = std::mem::take(&mut self.plan.steps);
        for op in &steps {
            self.step(op, batch);
        }
        self.plan.steps = steps;
        self.exchange(logits);
        Ok(())
    }

    fn hidden(&mut self, batch: &Batch) -> Result<Vec<f32>, ExecutorError> {
        self.prepare(batch)?;
        let steps = std::mem::take(&mut self.plan.steps);
        let mut hidden = Vec::new();
        for op in &steps {
            match op {
                Op::Logits { x, .. } => hidden = self.buffers[x.0].clone(),
                op => self.step(op, batch),
            }
        }
        self.plan.steps = steps;
        Ok(hidden)
    }

    fn page_tokens(&self) -> usize {
        crate::kv::PAGE_TOKENS
    }

    fn pages(&self) -> usize {
        self.kv.live()
    }

    fn hold(&mut self, sequence: u64) -> Vec<PageId> {
        self.kv.hold(sequence)
    }

    fn adopt(&mut self, sequence: u64, pages: &[PageId], tokens: usize) {
        self.kv.adopt(sequence, pages, tokens);
    }

    fn release(&mut self, page: PageId) {
        self.kv.release(page);
    }

    fn users(&self, page: PageId) -> usize {
        self.kv.users(page)
    }

    fn sequence_pages(&self, sequence: u64) -> &[PageId] {
        self.kv.sequence_pages(sequence)
    }

    fn page_bytes(&self, precision: KvPrecision) -> u64 {
        self.kv.layout().page_bytes(precision) as u64
    }

    fn kv_bytes(&self) -> u64 {
        self.kv.bytes()
    }

    fn page_size(&self, page: PageId) -> u64 {
        self.kv.size(page)
    }

    fn kv_precision(&self) -> KvPrecision {
        self.kv.sealed()
    }

    fn set_kv_precision(&mut self, precision: KvPrecision) {
        self.kv.seal_in(precision);
    }

    fn requantise(&mut self, pages: PageSet, precision: KvPrecision) -> Result<u64, ExecutorError> {
        let converter = Converter { team: &self.team, kernels: self.kernels };
        self.kv.requantise(pages, precision, converter).map_err(failed)
    }

    fn export_page(&self, page: PageId) -> Option<(KvPrecision, Vec<u8>)> {
        self.kv.export(page)
    }

    fn import_page(&mut self, precision: KvPrecision, bytes: &[u8]) -> Result<PageId, PageError> {
        self.kv.import(precision, bytes)
    }

    fn drop_sequence(&mut self, sequence: u64) {
        self.kv.drop_sequence(sequence);
    }
}
