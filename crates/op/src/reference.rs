//! A slow, obvious evaluator in `f32`: what fast backends are compared with.
//!
//! Every row is computed by itself and in a fixed order, so results do not depend on how a prompt is cut or what else is in
//! the batch, bit for bit.

use std::collections::HashMap;

use thiserror::Error;

use crate::batch::{Batch, BatchError, Span};
use crate::op::{Activation, Op};
use crate::plan::{BufferId, Plan, Rope, RopeLayout, Rows, WeightId};
use crate::validate::PlanError;

/// Where decoded weights come from.
pub trait Weights {
    /// Writes row `row` of a weight as `f32`; `out` has the length of a row. A vector is row 0.
    fn row(&self, weight: WeightId, row: usize, out: &mut [f32]);
}

/// Why the evaluator refused.
#[derive(Debug, Error)]
pub enum ReferenceError {
    /// The plan is inconsistent.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The batch is inconsistent.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A span continues from more tokens than were run.
    #[error(
        "sequence {sequence} has {stored} tokens stored but the batch continues from {past}; run the missing tokens first"
    )]
    Past {
        /// The sequence.
        sequence: u64,
        /// Tokens with KV.
        stored: usize,
        /// Tokens the batch expects.
        past: usize,
    },
}

#[derive(Clone, Default)]
struct LayerKv {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// A plan, its weights and the KV of every sequence seen.
pub struct Reference<W> {
    plan: Plan,
    weights: W,
    sequences: HashMap<u64, Vec<LayerKv>>,
    lengths: HashMap<u64, usize>,
}

impl<W: Weights> Reference<W> {
    /// Takes a plan and its weights.
    ///
    /// # Errors
    /// The plan is inconsistent.
    pub fn new(plan: Plan, weights: W) -> Result<Self, ReferenceError> {
        plan.validate()?;
        Ok(Self { plan, weights, sequences: HashMap::new(), lengths: HashMap::new() })
    }

    /// The plan that it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Forgets a sequence.
    pub fn drop_sequence(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
        self.lengths.remove(&sequence);
    }

    /// Runs the plan and returns logits `[outputs, vocab]`, row major.
    ///
    /// # Errors
    /// The batch is inconsistent or continues from tokens that were never run; nothing has changed then.
    pub fn run(&mut self, batch: &Batch) -> Result<Vec<f32>, ReferenceError> {
        batch.validate(self.plan.vocab)?;
        for span in &batch.sequences {
            let stored = self.lengths.get(&span.sequence).copied().unwrap_or(0);
            if span.past > stored {
                return Err(ReferenceError::Past { sequence: span.sequence, stored, past: span.past });
            }
        }
        for span in &batch.sequences {
            self.truncate(span);
        }
        let rows = |rows| if rows == Rows::Tokens { batch.tokens.len() } else { batch.outputs.len() };
        let mut buffers: Vec<Vec<f32>> =
            self.plan.buffers.iter().map(|buffer| vec![0.0; buffer.width * rows(buffer.rows)]).collect();
        let steps = std::mem::take(&mut self.plan.steps);
        for op in &steps {
            self.step(op, batch, &mut buffers);
        }
        let last = steps.last().cloned();
        self.plan.steps = steps;
        for span in &batch.sequences {
            self.lengths.insert(span.sequence, span.past + span.len);
        }
        Ok(match last {
            Some(Op::Logits { out, .. }) => std::mem::take(&mut buffers[out.0]),
            _ => Vec::new(),
        })
    }

    fn truncate(&mut self, span: &Span) {
        let layers = &self.plan.kv.layers;
        let kv =
            self.sequences.entry(span.sequence).or_insert_with(|| vec![LayerKv::default(); layers.len()]);
        for (stored, layer) in kv.iter_mut().zip(layers) {
            stored.keys.truncate(span.past * layer.width());
            stored.values.truncate(span.past * layer.width());
        }
    }

    fn vector(&self, weight: WeightId) -> Vec<f32> {
        self.rows(weight, 0)
    }

    fn rows(&self, weight: WeightId, row: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.plan.weights[weight.0].row_len()];
        self.weights.row(weight, row, &mut out);
        out
    }

    fn width(&self, id: BufferId) -> usize {
        self.plan.buffers[id.0].width
    }

    fn step(&mut self, op: &Op, batch: &Batch, buffers: &mut [Vec<f32>]) {
        match op {
            Op::Embed { table, scale, out } => {
                let width = self.width(*out);
                for (row, &token) in buffers[out.0].chunks_exact_mut(width).zip(&batch.tokens) {
                    self.weights.row(*table, token as usize, row);
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
            Op::RmsNorm { x, weight, eps, out } => {
                let weight = self.vector(*weight);
                let mut rows = buffers[x.0].clone();
                rms_norm(&mut rows, &weight, *eps);
                buffers[out.0] = rows;
            }
            Op::Linear { input, projections } => {
                for p in projections {
                    let bias = p.bias.map(|bias| self.vector(bias)[p.row_range.clone()].to_vec());
                    buffers[p.out.0] =
                        self.matrix(&buffers[input.0], p.weight, p.row_range.clone(), bias.as_deref());
                }
            }
            Op::RopeAppend { q, k, v, q_norm, k_norm, eps, rope, layer } => {
                let head_dim = self.plan.kv.layers[*layer].head_dim;
                for (buffer, norm) in [(q, q_norm), (k, k_norm)] {
                    if let Some(norm) = norm {
                        rms_norm(&mut buffers[buffer.0], &self.vector(*norm), *eps);
                    }
                    let width = self.width(*buffer);
                    for (row, &position) in buffers[buffer.0].chunks_exact_mut(width).zip(&batch.positions) {
                        row.chunks_exact_mut(head_dim)
                            .for_each(|head| rotate(head, &self.plan.ropes[*rope], position));
                    }
                }
                self.append(&buffers[k.0], &buffers[v.0], *layer, batch);
            }
            Op::Attention { q, layer, scale, window, softcap, out } => {
                let heads = Heads { layer: *layer, scale: *scale, window: *window, softcap: *softcap };
                buffers[out.0] = self.attention(&buffers[q.0], self.width(*q), &heads, batch);
            }
            Op::GatedActivation { gate, up, act, out } => {
                let pairs = buffers[gate.0].iter().zip(&buffers[up.0]);
                buffers[out.0] = pairs.map(|(&gate, &up)| activate(*act, gate) * up).collect();
            }
            Op::Add { x, y, out } => {
                buffers[out.0] = buffers[x.0].iter().zip(&buffers[y.0]).map(|(x, y)| x + y).collect();
            }
            Op::SelectOutputs { x, out } => {
                let width = self.width(*x);
                let select = |&row: &usize| buffers[x.0][row * width..][..width].iter().copied();
                buffers[out.0] = batch.outputs.iter().flat_map(select).collect();
            }
            Op::Logits { x, weight, out } => {
                buffers[out.0] = self.matrix(&buffers[x.0], *weight, 0..self.plan.vocab, None);
            }
        }
    }

    fn matrix(
        &self,
        x: &[f32],
        weight: WeightId,
        range: std::ops::Range<usize>,
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let inner = self.plan.weights[weight.0].row_len();
        let outer = range.len();
        let mut out = vec![0.0; x.len() / inner.max(1) * outer];
        for (column, row) in range.enumerate() {
            let row = self.rows(weight, row);
            let bias = bias.map_or(0.0, |bias| bias[column]);
            for (x, out) in x.chunks_exact(inner).zip(out.chunks_exact_mut(outer)) {
                out[column] = dot(x, &row) + bias;
            }
        }
        out
    }

    fn append(&mut self, keys: &[f32], values: &[f32], layer: usize, batch: &Batch) {
        let width = self.plan.kv.layers[layer].width();
        for span in &batch.sequences {
            let range = span.first * width..(span.first + span.len) * width;
            if let Some(kv) = self.sequences.get_mut(&span.sequence) {
                kv[layer].keys.extend_from_slice(&keys[range.clone()]);
                kv[layer].values.extend_from_slice(&values[range]);
            }
        }
    }

    fn attention(&self, q: &[f32], q_width: usize, heads: &Heads, batch: &Batch) -> Vec<f32> {
        let kv = &self.plan.kv.layers[heads.layer];
        let group = q_width / kv.width();
        let mut out = vec![0.0; q.len()];
        for span in &batch.sequences {
            let Some(stored) = self.sequences.get(&span.sequence) else { continue };
            for i in 0..span.len {
                let index = span.past + i;
                let from = heads.window.map_or(0, |window| (index + 1).saturating_sub(window as usize));
                for head in 0..q_width / kv.head_dim {
                    let at = (span.first + i) * q_width + head * kv.head_dim;
                    let slice = |data: &[f32], t: usize| {
                        let start = t * kv.width() + head / group * kv.head_dim;
                        start..(start + kv.head_dim).min(data.len())
                    };
                    let q = &q[at..at + kv.head_dim];
                    let layer = &stored[heads.layer];
                    let mut scores: Vec<f32> = (from..=index)
                        .map(|t| heads.score(dot(q, &layer.keys[slice(&layer.keys, t)])))
                        .collect();
                    softmax(&mut scores);
                    for (t, weight) in (from..=index).zip(scores) {
                        let value = &layer.values[slice(&layer.values, t)];
                        out[at..].iter_mut().zip(value).for_each(|(out, v)| *out += weight * v);
                    }
                }
            }
        }
        out
    }
}

struct Heads {
    layer: usize,
    scale: f32,
    window: Option<u32>,
    softcap: Option<f32>,
}

impl Heads {
    fn score(&self, product: f32) -> f32 {
        let score = product * self.scale;
        self.softcap.map_or(score, |cap| cap * (score / cap).tanh())
    }
}

/// Eight running sums, added up in order: less rounding than one, and always the same.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (x, y) in x.chunks(8).zip(y.chunks(8)) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    sums.iter().sum()
}

fn rms_norm(rows: &mut [f32], weight: &[f32], eps: f32) {
    for row in rows.chunks_exact_mut(weight.len().max(1)) {
        let mean = dot(row, row) / row.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        row.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * scale * w);
    }
}

fn rotate(head: &mut [f32], rope: &Rope, position: u32) {
    let half = rope.dims / 2;
    for (i, &frequency) in rope.inverse_frequencies.iter().enumerate() {
        let (a, b) = match rope.layout {
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            RopeLayout::Half => (i, i + half),
        };
        let (sin, cos) = (position as f32 * frequency).sin_cos();
        let (sin, cos) = (sin * rope.attn_factor, cos * rope.attn_factor);
        (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
    }
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

fn activate(act: Activation, x: f32) -> f32 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        // sqrt(2 / pi) = FRAC_2_SQRT_PI / SQRT_2
        Activation::GeluTanh => {
            let root = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
            0.5 * x * (1.0 + (root * (x + 0.044_715 * x * x * x)).tanh())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_keeps_length_and_pairs_by_layout() {
        let mut rope =
            Rope { dims: 4, layout: RopeLayout::Half, inverse_frequencies: vec![1.0, 0.5], attn_factor: 1.0 };
        let mut head = [1.0, 0.0, 0.0, 0.0, 7.0];
        rotate(&mut head, &rope, 1);
        assert_eq!(head, [1f32.cos(), 0.0, 1f32.sin(), 0.0, 7.0]);
        rope.layout = RopeLayout::Interleaved;
        let mut head = [0.0, 0.0, 1.0, 0.0, 7.0];
        rotate(&mut head, &rope, 2);
        assert_eq!(head, [0.0, 0.0, 1f32.cos(), 1f32.sin(), 7.0]);
    }

    #[test]
    fn gelu_and_silu_at_known_points() {
        assert!((activate(Activation::Silu, 1.0) - 0.731_058_6).abs() < 1e-6);
        assert!((activate(Activation::GeluTanh, 1.0) - 0.841_192).abs() < 1e-6);
    }
}
