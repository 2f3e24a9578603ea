//! The text format of Prometheus, version 0.0.4.

use std::fmt::Write;

use super::histogram::Histogram;

/// Text in the making: each family once, its samples right after it.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

/// Names and values of labels.
pub(super) type Labels<'a> = [(&'a str, &'a str)];

impl Exposition {
    /// Begins a family; `kind` is `gauge`, `counter` or `histogram`.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the family that began last.
    pub(super) fn sample(&mut self, name: &str, labels: &Labels<'_>, value: f64) {
        self.0.push_str(name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{}\"", escape(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    /// All samples of one histogram.
    pub(super) fn histogram(&mut self, name: &str, labels: &Labels<'_>, histogram: &Histogram) {
        for (bound, count) in histogram.cumulative() {
            let bound = bound.map_or("+Inf".to_owned(), |bound| bound.to_string());
            let labels = [labels, &[("le", &bound)]].concat();
            self.sample(&format!("{name}_bucket"), &labels, count as f64);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum());
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// A label's value in the format's own escapes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut text = Exposition::default();
        text.family("a", "gauge", "Help.");
        text.sample("a", &[("x", "a\"b\\c\nd"), ("y", "")], 0.5);
        text.sample("a", &[], 3.0);
        let expected = "# HELP a Help.\n# TYPE a gauge\na{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 0.5\na 3\n";
        assert_eq!(text.into_text(), expected);
    }

    #[test]
    fn a_histogram_counts_upwards_to_infinity() {
        let (mut text, mut histogram) = (Exposition::default(), Histogram::default());
        [0.001, 0.3, 0.3, 1e9].into_iter().for_each(|value| histogram.observe(value));
        text.histogram("t", &[("model", "m")], &histogram);
        let text = text.into_text();
        for line in [
            "t_bucket{model=\"m\",le=\"0.001\"} 1",
            "t_bucket{model=\"m\",le=\"0.25\"} 1",
            "t_bucket{model=\"m\",le=\"0.5\"} 3",
            "t_bucket{model=\"m\",le=\"600\"} 3",
            "t_bucket{model=\"m\",le=\"+Inf\"} 4",
            "t_sum{model=\"m\"} 1000000000.601",
            "t_count{model=\"m\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
