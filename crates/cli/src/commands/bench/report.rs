//! What a test measured, written as llama-bench writes it, so that programs that read its output read ours.

use std::time::Duration;

use serde_json::{Value, json};

/// What all tests of a call have in common.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) build_commit: String,
    pub(crate) cpu_info: String,
    /// Path of the model's file.
    pub(crate) model_filename: String,
    /// Architecture, size and mix of types, for people.
    pub(crate) model_type: String,
    /// Bytes of all tensors.
    pub(crate) model_size: u64,
    /// Numbers in all tensors.
    pub(crate) model_n_params: u64,
    /// Type of stored keys and values, as llama.cpp names it.
    pub(crate) kv_type: &'static str,
}

/// What one test does: a prompt, tokens one at a time, or both, after `n_depth` tokens that are not timed; and all of
/// that for `n_parallel` sequences at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) n_batch: usize,
    pub(crate) n_ubatch: usize,
    pub(crate) n_threads: usize,
    pub(crate) n_prompt: usize,
    pub(crate) n_gen: usize,
    pub(crate) n_depth: usize,
    pub(crate) n_parallel: usize,
}

/// One test with its results.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) test: Test,
    /// When it began, ISO 8601 in UTC.
    pub(crate) test_time: String,
    pub(crate) samples: Vec<Duration>,
    /// Of a pass over the weights that only reads them, before each sample; none for prompts.
    pub(crate) reads: Vec<Duration>,
    /// Bytes of such a pass.
    pub(crate) read_bytes: u64,
}

impl Test {
    /// Tokens that a sequence has at the end.
    pub(crate) fn tokens(&self) -> usize {
        self.n_depth + self.n_prompt + self.n_gen
    }

    /// `pp512`, `tg128`, `pp512 @ d1024` or `8 x tg128`.
    fn name(&self) -> String {
        let what = match (self.n_prompt, self.n_gen) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, gen_tokens) => format!("tg{gen_tokens}"),
            (prompt, gen_tokens) => format!("pp{prompt}+tg{gen_tokens}"),
        };
        let what = if self.n_parallel == 1 { what } else { format!("{} x {what}", self.n_parallel) };
        if self.n_depth == 0 { what } else { format!("{what} @ d{}", self.n_depth) }
    }
}

impl Outcome {
    fn nanoseconds(&self) -> Vec<f64> {
        // A clock may be too coarse for a test, and no speed is infinite.
        self.samples.iter().map(|sample| sample.as_nanos().max(1) as f64).collect()
    }

    /// Tokens per second of each repetition, those of all sequences together.
    fn speeds(&self) -> Vec<f64> {
        let tokens = (self.test.n_parallel * (self.test.n_prompt + self.test.n_gen)) as f64;
        self.nanoseconds().into_iter().map(|sample| 1e9 * tokens / sample).collect()
    }

    /// Bytes of weights that could be read a second, the median; `None` where no tokens are generated.
    fn read_bandwidth(&self) -> Option<f64> {
        let mut reads: Vec<f64> = self.reads.iter().map(Duration::as_secs_f64).collect();
        (!reads.is_empty()).then(|| self.read_bytes as f64 / median(&mut reads).max(1e-9))
    }

    /// The part of that which generating reached, where each step reads every weight once. Keys and values, which it
    /// reads too, don't count.
    fn read_share(&self) -> Option<f64> {
        let seconds = median(&mut self.nanoseconds()) / 1e9;
        let read = self.read_bytes as f64 * self.test.n_gen as f64 / seconds;
        self.read_bandwidth().filter(|_| self.test.n_prompt == 0).map(|bandwidth| read / bandwidth)
    }

    /// Keys and values in llama-bench's order, without those that are about other hardware. Its tests have one
    /// sequence; `n_parallel` and what begins with `read` are keys of ours.
    fn fields(&self, subject: &Subject) -> Vec<(&'static str, Value)> {
        let (test, times, speeds) = (&self.test, self.nanoseconds(), self.speeds());
        vec![
            ("build_commit", json!(subject.build_commit)),
            // Builds have no number here; readers expect the key.
            ("build_number", json!(0)),
            ("cpu_info", json!(subject.cpu_info)),
            ("gpu_info", json!("")),
            ("backends", json!("CPU")),
            ("model_filename", json!(subject.model_filename)),
            ("model_type", json!(subject.model_type)),
            ("model_size", json!(subject.model_size)),
            ("model_n_params", json!(subject.model_n_params)),
            ("n_batch", json!(test.n_batch)),
            ("n_ubatch", json!(test.n_ubatch)),
            ("n_threads", json!(test.n_threads)),
            ("type_k", json!(subject.kv_type)),
            ("type_v", json!(subject.kv_type)),
            ("n_prompt", json!(test.n_prompt)),
            ("n_gen", json!(test.n_gen)),
            ("n_depth", json!(test.n_depth)),
            ("n_parallel", json!(test.n_parallel)),
            ("test_time", json!(self.test_time)),
            ("avg_ns", json!(mean(&times) as u64)),
            ("stddev_ns", json!(deviation(&times) as u64)),
            ("avg_ts", json!(mean(&speeds))),
            ("stddev_ts", json!(deviation(&speeds))),
            ("read_bandwidth", json!(self.read_bandwidth().map(f64::round))),
            ("read_share", json!(self.read_share())),
        ]
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The middle one, or the mean of the two in the middle; the values are sorted.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    mean(values.get(last / 2..=last.div_ceil(2)).unwrap_or_default())
}

/// Standard deviation of a sample; zero of fewer than two values.
fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A Markdown table
    Md,
    /// A JSON array with an object for each test, single samples included
    Json,
    /// Comma-separated values with a header
    Csv,
}

/// Writes results one after another, each as soon as it is there.
#[derive(Debug)]
pub(crate) struct Report {
    format: Format,
    subject: Subject,
    written: usize,
}

impl Report {
    pub(crate) fn new(format: Format, subject: Subject) -> Self {
        Self { format, subject, written: 0 }
    }

    /// The text for the next result, with what has to stand before it.
    pub(crate) fn next(&mut self, outcome: &Outcome) -> String {
        let first = self.written == 0;
        self.written += 1;
        match self.format {
            Format::Md => {
                let head = if first { Row::head() } else { String::new() };
                head + &Row::of(&self.subject, outcome).line()
            }
            Format::Json => {
                let before = if first { "[\n" } else { ",\n" };
                format!("{before}{}", self.object(outcome))
            }
            Format::Csv => {
                let fields = outcome.fields(&self.subject);
                let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                let values: Vec<String> = fields.iter().map(|(_, value)| csv(value)).collect();
                let head = if first { names.join(",") + "\n" } else { String::new() };
                format!("{head}{}\n", values.join(","))
            }
        }
    }

    /// The text after the last result.
    pub(crate) fn end(&self) -> String {
        match self.format {
            Format::Md => format!("\nbuild: {} (0)\n", self.subject.build_commit),
            Format::Json if self.written == 0 => "[\n]\n".to_owned(),
            Format::Json => "\n]\n".to_owned(),
            Format::Csv => String::new(),
        }
    }

    fn object(&self, outcome: &Outcome) -> String {
        let samples: Vec<u64> = outcome.nanoseconds().iter().map(|&sample| sample as u64).collect();
        let mut fields = outcome.fields(&self.subject);
        fields.push(("samples_ns", json!(samples)));
        fields.push(("samples_ts", json!(outcome.speeds())));
        let lines: Vec<String> =
            fields.iter().map(|(name, value)| format!("    \"{name}\": {value}")).collect();
        format!("  {{\n{}\n  }}", lines.join(",\n"))
    }
}

fn csv(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// A row of the Markdown table.
struct Row([String; 9]);

impl Row {
    /// Names and widths of the columns; those with a negative width are aligned to the left.
    const COLUMNS: [(&'static str, isize); 9] = [
        ("model", -30),
        ("size", 10),
        ("params", 10),
        ("backend", -10),
        ("threads", 7),
        ("n_ubatch", 8),
        ("test", 15),
        ("t/s", 20),
        ("of reads", 8),
    ];

    fn head() -> String {
        let rules = Self::COLUMNS.map(|(_, width)| {
            let dashes = "-".repeat(width.unsigned_abs() - 1);
            if width > 0 { format!("{dashes}:") } else { format!("{dashes}-") }
        });
        Row(Self::COLUMNS.map(|(name, _)| name.to_owned())).line() + &Row(rules).line()
    }

    fn of(subject: &Subject, outcome: &Outcome) -> Self {
        const MIB: f64 = 1024.0 * 1024.0;
        let (size, params, speeds) =
            (subject.model_size as f64, subject.model_n_params as f64, outcome.speeds());
        let size = if size < 1024.0 * MIB {
            format!("{:.2} MiB", size / MIB)
        } else {
            format!("{:.2} GiB", size / MIB / 1024.0)
        };
        let params =
            if params < 1e9 { format!("{:.2} M", params / 1e6) } else { format!("{:.2} B", params / 1e9) };
        Self([
            subject.model_type.clone(),
            size,
            params,
            "CPU".to_owned(),
            outcome.test.n_threads.to_string(),
            outcome.test.n_ubatch.to_string(),
            outcome.test.name(),
            format!("{:.2} ± {:.2}", mean(&speeds), deviation(&speeds)),
            outcome.read_share().map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
        ])
    }

    fn line(&self) -> String {
        let mut line = "|".to_owned();
        for (cell, (_, width)) in self.0.iter().zip(Self::COLUMNS) {
            let (left, pad) = (width < 0, width.unsigned_abs());
            line += &if left { format!(" {cell:<pad$} |") } else { format!(" {cell:>pad$} |") };
        }
        line + "\n"
    }
}

/// A time as ISO 8601 in UTC, from the seconds since 1970.
pub(crate) fn utc(seconds: u64) -> String {
    let (mut day, second) = (seconds / 86_400, seconds % 86_400);
    // 400 years always have the same number of days, so that what remains to be counted is bounded.
    let mut year = 1970 + 400 * (day / 146_097);
    day %= 146_097;
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let test = Test {
            n_batch: 2048,
            n_ubatch: 512,
            n_threads: 2,
            n_prompt: 0,
            n_gen: 10,
            n_depth: 16,
            n_parallel: 1,
        };
        let samples = [100, 200].map(Duration::from_millis).to_vec();
        let reads = [20, 10, 15].map(Duration::from_millis).to_vec();
        Outcome { test, test_time: utc(0), samples, reads, read_bytes: 3_000_000 }
    }

    fn report(format: Format) -> String {
        let subject = Subject {
            build_commit: "abc".to_owned(),
            cpu_info: "a \"fast\" one".to_owned(),
            model_filename: "m.gguf".to_owned(),
            model_type: "llama Q4_1".to_owned(),
            model_size: 3 << 20,
            model_n_params: 5_000_000,
            kv_type: "f16",
        };
        let mut report = Report::new(format, subject);
        report.next(&outcome()) + &report.next(&outcome()) + &report.end()
    }

    #[test]
    fn speeds_and_their_spread_are_those_of_the_samples() {
        let json: Value = serde_json::from_str(&report(Format::Json)).unwrap();
        let test = &json[1];
        assert_eq!(json.as_array().map(Vec::len), Some(2));
        assert_eq!(test["samples_ns"], json!([100_000_000, 200_000_000]));
        assert_eq!(test["samples_ts"], json!([100.0, 50.0]));
        assert_eq!(test["avg_ns"], 150_000_000);
        assert_eq!(test["stddev_ns"], 70_710_678);
        assert_eq!(test["avg_ts"], 75.0);
        assert!((test["stddev_ts"].as_f64().unwrap() - 35.355_339).abs() < 1e-5);
        assert_eq!(test["cpu_info"], "a \"fast\" one");
    }

    #[test]
    fn speeds_count_the_tokens_of_all_sequences() {
        let mut several = outcome();
        several.test.n_parallel = 4;
        assert_eq!(several.speeds(), [400.0, 200.0]);
        assert_eq!(several.test.name(), "4 x tg10 @ d16");
    }

    #[test]
    fn what_decoding_reads_is_compared_with_what_could_be_read() {
        // 200 MB a second could be read. Ten tokens read 3 MB each in 150 ms: as much again.
        assert_eq!(outcome().read_bandwidth(), Some(200e6));
        assert!((outcome().read_share().unwrap() - 1.0).abs() < 1e-9);
        let mut prompt = outcome();
        (prompt.test.n_prompt, prompt.test.n_gen) = (10, 0);
        prompt.reads.clear();
        assert_eq!((prompt.read_bandwidth(), prompt.read_share()), (None, None));
        let json: Value = serde_json::from_str(&report(Format::Json)).unwrap();
        assert_eq!(json[0]["read_bandwidth"], json!(200e6));
    }

    #[test]
    fn the_table_names_tests_as_llama_bench_does() {
        let text = report(Format::Md);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("| ------------------------------ | ---------: |"), "{text}");
        for part in ["llama Q4_1", "3.00 MiB", "5.00 M", "tg10 @ d16", "75.00 ± 35.36", "100.0 %"] {
            assert!(lines[2].contains(part), "{part}: {text}");
        }
        let width = lines[0].chars().count();
        assert!(lines[..4].iter().all(|line| line.chars().count() == width), "{text}");
        assert_eq!(lines[5], "build: abc (0)");
    }

    #[test]
    fn csv_quotes_what_it_writes() {
        let text = report(Format::Csv);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("build_commit,build_number,cpu_info,"), "{text}");
        assert!(lines[1].starts_with("\"abc\",\"0\",\"a \"\"fast\"\" one\","), "{text}");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn times_follow_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(utc(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(utc(4_107_542_400), "2100-03-01T00:00:00Z");
        assert!(utc(u64::MAX).ends_with('Z'));
    }
}
