//! From a spec to a plan.

use std::collections::HashMap;
use std::ops::Range;

use lichen_op::{Buffer, BufferId, KvLayer, Op, Plan, Projection, Rows, WeightDecl, WeightId};

use crate::spec::{Attention, Ffn, LayerSpec, Mixer, ModelSpec, Residual};

/// Buffers that live through all layers.
#[derive(Clone, Copy)]
struct Stream {
    /// Residual stream.
    x: BufferId,
    /// Input or output of a block.
    h: BufferId,
}

struct Lowering<'a> {
    spec: &'a ModelSpec,
    plan: Plan,
    weights: HashMap<String, WeightId>,
    /// Buffers by purpose and width: layers follow one another and share them.
    buffers: HashMap<(&'static str, usize), BufferId>,
}

impl ModelSpec {
    /// The computation as a plan. Weight names are GGUF's; the plan of an imported spec is valid.
    #[must_use]
    pub fn lower(&self) -> Plan {
        let plan = Plan { ropes: self.ropes.clone(), vocab: self.embed.vocab, ..Plan::default() };
        let mut lowering = Lowering { spec: self, plan, weights: HashMap::new(), buffers: HashMap::new() };
        lowering.model();
        lowering.plan
    }
}

impl Lowering<'_> {
    fn weight(&mut self, name: String, shape: &[usize]) -> WeightId {
        let next = WeightId(self.plan.weights.len());
        let id = *self.weights.entry(name.clone()).or_insert(next);
        if id == next {
            self.plan.weights.push(WeightDecl { name, shape: shape.to_vec() });
        }
        id
    }

    fn buffer(&mut self, purpose: &'static str, width: usize) -> BufferId {
        let next = BufferId(self.plan.buffers.len());
        let id = *self.buffers.entry((purpose, width)).or_insert(next);
        if id == next {
            self.plan.buffers.push(Buffer { width, rows: Rows::Tokens });
        }
        id
    }

    fn output_buffer(&mut self, width: usize) -> BufferId {
        self.plan.buffers.push(Buffer { width, rows: Rows::Outputs });
        BufferId(self.plan.buffers.len() - 1)
    }

    fn model(&mut self) {
        let (vocab, width) = (self.spec.embed.vocab, self.spec.embed.width);
        let table = self.weight("token_embd.weight".to_owned(), &[vocab, width]);
        let stream = Stream { x: self.buffer("x", width), h: self.buffer("h", width) };
        self.plan.steps.push(Op::Embed { table, scale: self.spec.embed.scale, out: stream.x });
        for (index, layer) in self.spec.layers.iter().enumerate() {
            self.layer(index, layer, stream);
        }
        let (x, logits) = (self.output_buffer(width), self.output_buffer(vocab));
        self.plan.steps.push(Op::SelectOutputs { x: stream.x, out: x });
        self.norm("output_norm.weight".to_owned(), x, x);
        let name = if self.spec.head.tied { "token_embd.weight" } else { "output.weight" };
        let weight = self.weight(name.to_owned(), &[vocab, width]);
        self.plan.steps.push(Op::Logits { x, weight, out: logits });
    }

    fn norm(&mut self, name: String, x: BufferId, out: BufferId) {
        let weight = self.weight(name, &[self.spec.embed.width]);
        self.plan.steps.push(Op::RmsNorm { x, weight, eps: self.spec.norm_eps, out });
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec, stream: Stream) {
        self.norm(format!("blk.{index}.attn_norm.weight"), stream.x, stream.h);
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(index, attention, stream.h),
        }
        self.add(format!("blk.{index}.post_attention_norm.weight"), layer.residual, stream);
        self.norm(format!("blk.{index}.ffn_norm.weight"), stream.x, stream.h);
        self.ffn(index, &layer.ffn, stream.h);
        self.add(format!("blk.{index}.post_ffw_norm.weight"), layer.residual, stream);
    }

    fn add(&mut self, post_norm: String, residual: Residual, stream: Stream) {
        if residual == Residual::SandwichNorm {
            self.norm(post_norm, stream.h, stream.h);
        }
        self.plan.steps.push(Op::Add { x: stream.x, y: stream.h, out: stream.x });
    }

    /// Reads and overwrites `h`.
    fn attention(&mut self, index: usize, spec: &Attention, h: BufferId) {
        let name = |part: &str| format!("blk.{index}.{part}");
        let (q_width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let q = self.buffer("q", q_width);
        let (k, v) = (self.buffer("k", kv_width), self.buffer("v", kv_width));
        let projections = if spec.fused {
            let total = q_width + 2 * kv_width;
            let ranges = [(0..q_width, q), (q_width..q_width + kv_width, k), (q_width + kv_width..total, v)];
            let part = |(rows, out)| self.projection(&name("attn_qkv"), total, rows, spec.bias, out, h);
            ranges.map(part).to_vec()
        } else {
            let parts = [("attn_q", q_width, q), ("attn_k", kv_width, k), ("attn_v", kv_width, v)];
            let part = |(part, rows, out)| self.projection(&name(part), rows, 0..rows, spec.bias, out, h);
            parts.map(part).to_vec()
        };
        self.plan.steps.push(Op::Linear { input: h, projections });

        let layer = self.plan.kv.layers.len();
        let (kv_heads, head_dim) = (spec.kv_heads, spec.head_dim);
        self.plan.kv.layers.push(KvLayer { kv_heads, head_dim, window: spec.window });
        let mut head_norm = |part| spec.qk_norm.then(|| self.weight(name(part), &[head_dim]));
        let (q_norm, k_norm) = (head_norm("attn_q_norm.weight"), head_norm("attn_k_norm.weight"));
        let (eps, rope) = (self.spec.norm_eps, spec.rope);
        self.plan.steps.push(Op::RopeAppend { q, k, v, q_norm, k_norm, eps, rope, layer });

        let out = self.buffer("attention", q_width);
        let (scale, window, softcap) = (spec.scale, spec.window, spec.softcap);
        self.plan.steps.push(Op::Attention { q, layer, scale, window, softcap, out });
        let rows = self.spec.embed.width;
        let projection = self.projection(&name("attn_output"), rows, 0..rows, false, h, out);
        self.plan.steps.push(Op::Linear { input: out, projections: vec![projection] });
    }

    /// Reads and overwrites `h`.
    fn ffn(&mut self, index: usize, spec: &Ffn, h: BufferId) {
        let name = |part: &str| format!("blk.{index}.{part}");
        let width = spec.width;
        let (gate, up) = (self.buffer("gate", width), self.buffer("up", width));
        let projections = if spec.fused {
            let total = 2 * width;
            let ranges = [(0..width, gate), (width..total, up)];
            ranges.map(|(rows, out)| self.projection(&name("ffn_up"), total, rows, false, out, h)).to_vec()
        } else {
            let parts = [("ffn_gate", gate), ("ffn_up", up)];
            parts.map(|(part, out)| self.projection(&name(part), width, 0..width, false, out, h)).to_vec()
        };
        self.plan.steps.push(Op::Linear { input: h, projections });
        self.plan.steps.push(Op::GatedActivation { gate, up, act: spec.act, out: gate });
        let rows = self.spec.embed.width;
        let projection = self.projection(&name("ffn_down"), rows, 0..rows, false, h, gate);
        self.plan.steps.push(Op::Linear { input: gate, projections: vec![projection] });
    }

    /// Part of the matrix `stem.weight [total, width of input]`.
    fn projection(
        &mut self,
        stem: &str,
        total: usize,
        row_range: Range<usize>,
        bias: bool,
        out: BufferId,
        input: BufferId,
    ) -> Projection {
        let width = self.plan.buffers[input.0].width;
        let weight = self.weight(format!("{stem}.weight"), &[total, width]);
        let bias = bias.then(|| self.weight(format!("{stem}.bias"), &[total]));
        Projection { weight, row_range, bias, out }
    }
}
