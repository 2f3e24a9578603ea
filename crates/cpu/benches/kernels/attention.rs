//! Attention over pages, as the executor runs it: a plan with one layer and little else.

use crate::memory::threads;
use crate::{is_test, values};
use criterion::{BenchmarkId, Criterion, Throughput};
use lichen_backend::{Executor, KvPrecision, PageSet};
use lichen_cpu::{CpuConfig, CpuExecutor, PAGE_TOKENS, Weight, table};
use lichen_op::{
    Batch, Buffer, BufferId, KvLayer, KvLayout, Op, Plan, Rope, RopeLayout, Rows, WeightDecl, WeightId,
};
use lichen_tensor::{DType, SharedBytes};

/// The heads of a layer of Llama 3.2 1B.
const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 16;
/// Tokens of a prompt's step, and those before them.
const PROMPT: usize = 256;
const PROMPT_PAST: usize = 1024;

fn keys() -> usize {
    if is_test() { 4 * PAGE_TOKENS } else { 4096 }
}

/// Queries, keys and values are rows of tables; the logits, which nobody asks for, are there because a plan has some.
fn plan(attends: bool) -> Plan {
    let (wide, narrow) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let [q, k, v, out, last, logits] = [0, 1, 2, 3, 4, 5].map(BufferId);
    let tokens = |width| Buffer { width, rows: Rows::Tokens };
    let outputs = |width| Buffer { width, rows: Rows::Outputs };
    let table = |name: &str, width| WeightDecl { name: name.to_owned(), shape: vec![VOCAB, width] };
    let embed = |table, out| Op::Embed { table: WeightId(table), scale: 1.0, out };
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();
    let mut steps = vec![
        embed(0, q),
        embed(1, k),
        embed(2, v),
        Op::RopeAppend { q, k, v, q_norm: None, k_norm: None, eps: 1e-6, rope: 0, layer: 0 },
    ];
    if attends {
        steps.push(Op::Attention { q, layer: 0, scale, window: None, softcap: None, out });
    }
    steps.push(Op::Logits { x: last, weight: WeightId(0), out: logits });
    let inverse_frequencies = (0..HEAD_DIM / 2).map(|i| 10_000f32.powf(-2.0 * i as f32 / HEAD_DIM as f32));
    Plan {
        buffers: vec![
            tokens(wide),
            tokens(narrow),
            tokens(narrow),
            tokens(wide),
            outputs(wide),
            outputs(VOCAB),
        ],
        weights: vec![table("q", wide), table("k", narrow), table("v", narrow)],
        ropes: vec![Rope {
            dims: HEAD_DIM,
            layout: RopeLayout::Half,
            inverse_frequencies: inverse_frequencies.collect(),
            attn_factor: 1.0,
        }],
        steps,
        kv: KvLayout { layers: vec![KvLayer { kv_heads: KV_HEADS, head_dim: HEAD_DIM, window: None }] },
        vocab: VOCAB,
    }
}

fn executor(attends: bool, isa: &'static str, threads: usize) -> CpuExecutor {
    let plan = plan(attends);
    let weights = plan.weights.iter().map(|decl| {
        let bytes: Vec<u8> = values(VOCAB * decl.row_len()).into_iter().flat_map(f32::to_le_bytes).collect();
        Weight { dtype: DType::F32, bytes: SharedBytes::new(bytes) }
    });
    let weights = weights.collect();
    CpuExecutor::new(plan, weights, CpuConfig { threads, isa: Some(isa), ..CpuConfig::default() }).unwrap()
}

/// The next tokens of sequence 0.
fn batch(past: usize, count: usize) -> Batch {
    let tokens: Vec<u32> = (past..past + count).map(|token| (token * 7 % VOCAB) as u32).collect();
    let mut batch = Batch::default();
    batch.push(0, past, &tokens, false);
    batch.outputs.clear();
    batch
}

/// An executor with so many tokens in sequence 0, all pages that may be in this precision. Their keys and values come
/// from a plan that doesn't attend, since filling the slow instruction sets would take long.
fn filled(isa: &'static str, threads: usize, tokens: usize, precision: KvPrecision) -> CpuExecutor {
    let best = table::instruction_sets().next().unwrap();
    let mut source = executor(false, best, 1);
    source.run(&batch(0, tokens), &mut Vec::new()).unwrap();
    source.requantise(PageSet::Sequence(0), precision).unwrap();
    let mut executor = executor(true, isa, threads);
    let pages: Vec<_> = source
        .sequence_pages(0)
        .iter()
        .map(|&page| {
            let (precision, bytes) = source.export_page(page).unwrap();
            executor.import_page(precision, &bytes).unwrap()
        })
        .collect();
    executor.adopt(0, &pages, tokens);
    pages.into_iter().for_each(|page| executor.release(page));
    executor
}

/// One token that sees 4,096, in bytes of keys and values a second.
pub(crate) fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attention/decode");
    for precision in [KvPrecision::F16, KvPrecision::Q8, KvPrecision::Q5, KvPrecision::Q4] {
        for isa in table::instruction_sets() {
            for threads in threads() {
                let id = BenchmarkId::new(format!("{precision}/{isa}"), format!("t{threads}"));
                let bytes = executor(true, isa, 1).page_bytes(precision) * (keys() / PAGE_TOKENS) as u64;
                group.throughput(Throughput::Bytes(bytes));
                group.bench_function(id, |bencher| {
                    let mut executor = filled(isa, threads, keys(), precision);
                    let (batch, mut logits) = (batch(keys() - 1, 1), Vec::new());
                    bencher.iter(|| executor.run(&batch, &mut logits).unwrap());
                });
            }
        }
    }
    group.finish();
}

/// A step of a prompt, keys in half precision, in multiplications of queries with keys and of weights with values a
/// second.
pub(crate) fn prefill(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attention/prefill");
    let (past, count) = if is_test() { (PAGE_TOKENS, 16) } else { (PROMPT_PAST, PROMPT) };
    let pairs = (0..count).map(|token| past + token + 1).sum::<usize>();
    group.throughput(Throughput::Elements((2 * pairs * HEADS * HEAD_DIM) as u64));
    for isa in table::instruction_sets() {
        for threads in threads() {
            group.bench_function(BenchmarkId::new(format!("f16/{isa}"), format!("t{threads}")), |bencher| {
                let mut executor = filled(isa, threads, past, KvPrecision::F16);
                let (batch, mut logits) = (batch(past, count), Vec::new());
                bencher.iter(|| executor.run(&batch, &mut logits).unwrap());
            });
        }
    }
    group.finish();
}
