//! Strict reader of Prometheus' text format, and checks of the tables of metrics in documents.
//!
//! The reader accepts less than Prometheus does: each metric has a line of help, a line of type and
//! then its samples, without timestamps and without other comments. Names must follow Prometheus'
//! conventions. Source: Prometheus, "Exposition formats", version 0.0.4, and "Metric and label
//! naming". Read [`Exposition`] first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Labels with a fixed list of values. The tables name these values.
const LISTED_LABELS: [&str; 5] = ["cause", "outcome", "reason", "state", "verdict"];
/// Units that are not base units, and must not end a metric's name.
const SCALED_UNITS: [&str; 7] = ["ms", "us", "milliseconds", "kb", "mb", "kilobytes", "percent"];

/// One metric with all its series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metric {
    /// Text of the help line, with its full stop.
    pub help: String,
    /// Type of the metric: `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Value of each sample, by the sample's name and labels as written: `name{label="value"}`.
    pub samples: BTreeMap<String, f64>,
    /// Values of each label, by the label's name.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// A whole response to a request for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// Metrics with their names, in the order of the response.
    pub metrics: Vec<(String, Metric)>,
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Splits `name="value",…` into labels with unescaped values.
fn labels(mut text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        let (mut value, mut rest) = (String::new(), rest.chars());
        loop {
            match rest.next()? {
                '"' => break,
                '\\' => value.push(match rest.next()? {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    _ => return None,
                }),
                plain => value.push(plain),
            }
        }
        if !is_name(name) || found.iter().any(|(other, _)| other == name) {
            return None;
        }
        found.push((name.to_owned(), value));
        text = rest.as_str();
        if !text.is_empty() {
            text = text.strip_prefix(',').filter(|rest| !rest.is_empty())?;
        }
    }
    Some(found)
}

/// Parses a value, which is a number or positive infinity.
fn value(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

impl Metric {
    fn read_sample(&mut self, name: &str, line: &str) -> Result<(), String> {
        let (series, number) = line.rsplit_once(' ').ok_or("a sample has a value")?;
        let number = value(number).filter(|number| number.is_finite());
        let number = number.ok_or("the value is a finite number")?;
        let (sample, pairs) = match series.split_once('{') {
            None => (series, Vec::new()),
            Some((sample, rest)) => {
                let pairs = rest.strip_suffix('}').and_then(labels);
                (sample, pairs.ok_or("labels are name=\"value\", each once")?)
            }
        };
        let ending = sample.strip_prefix(name).ok_or("a sample follows the lines of its metric")?;
        let has_bound = pairs.iter().any(|(label, _)| label == "le");
        match (self.kind.as_str(), ending, has_bound) {
            ("counter" | "gauge", "", false) | ("histogram", "_sum" | "_count", false) => {}
            ("histogram", "_bucket", true) => {}
            _ => return Err(format!("a {} has no sample of this kind", self.kind)),
        }
        if self.kind != "gauge" && number < 0.0 {
            return Err("a count is at least 0".to_owned());
        }
        for (label, value) in pairs {
            self.labels.entry(label).or_default().insert(value);
        }
        match self.samples.insert(series.to_owned(), number) {
            None => Ok(()),
            Some(_) => Err("a series stands once".to_owned()),
        }
    }

    /// Checks that the buckets of a histogram never decrease, and that the last bucket equals the
    /// count.
    fn check_buckets(&self, name: &str) -> Result<(), String> {
        let mut last: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, count) in self.samples.iter().filter(|(series, _)| series.contains("le=\"")) {
            let (before, rest) = series.split_once("le=\"").expect("it was looked for");
            let (bound, after) = rest.split_once('"').expect("labels were read");
            let others = format!("{before}{after}").replace("_bucket", "_count").replace(",}", "}");
            let others = others.replace("{}", "");
            let bound = value(bound).ok_or("a bound is a number")?;
            last.entry(others).or_default().push((bound, *count));
        }
        let counts =
            self.samples.keys().filter(|series| series.starts_with(&format!("{name}_count"))).count();
        if last.is_empty() || last.len() != counts {
            return Err("a histogram has buckets and a count".to_owned());
        }
        for (series, mut buckets) in last {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            let grows = buckets.is_sorted_by(|a, b| a.1 <= b.1);
            let total = self.samples.get(&series);
            if !grows || buckets.last().is_none_or(|(bound, n)| bound.is_finite() || Some(n) != total) {
                return Err(format!("buckets grow up to the count of {series}"));
            }
        }
        Ok(())
    }

    /// Checks a metric's name against Prometheus' conventions.
    fn check_name(&self, name: &str) -> Result<(), String> {
        let last = name.strip_suffix("_total").unwrap_or(name).rsplit('_').next().unwrap_or_default();
        if (self.kind == "counter") != name.ends_with("_total") {
            return Err("counters, and they alone, end in _total".to_owned());
        }
        if SCALED_UNITS.contains(&last) {
            return Err("units are base units, as _seconds and _bytes".to_owned());
        }
        if !name.starts_with("anabranch_") || !is_name(name) {
            return Err("names begin with anabranch_ and have small letters, digits and _".to_owned());
        }
        if !self.help.ends_with('.') || self.help.ends_with("..") {
            return Err("help is a phrase with one full stop".to_owned());
        }
        Ok(())
    }
}

impl Exposition {
    /// Parses a response.
    ///
    /// Errors: the first line that violates the format or a convention, with the reason.
    pub fn read(text: &str) -> Result<Self, String> {
        if !text.ends_with('\n') {
            return Err("the last line ends with a line feed".to_owned());
        }
        let mut all = Self::default();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let wrong = |why: String| format!("{why}: {line}");
            let (name, help) = line
                .strip_prefix("# HELP ")
                .and_then(|rest| rest.split_once(' '))
                .ok_or_else(|| wrong("a metric begins with its help".to_owned()))?;
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.filter(|kind| ["counter", "gauge", "histogram"].contains(kind));
            let kind = kind.ok_or_else(|| wrong("a type follows the help".to_owned()))?;
            let mut metric = Metric { help: help.to_owned(), kind: kind.to_owned(), ..Metric::default() };
            while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
                metric.read_sample(name, sample).map_err(|why| format!("{why}: {sample}"))?;
            }
            metric.check_name(name).map_err(wrong)?;
            if kind == "histogram" {
                metric.check_buckets(name).map_err(wrong)?;
            }
            if all.metrics.iter().any(|(other, _)| other == name) {
                return Err(wrong("a metric stands once".to_owned()));
            }
            all.metrics.push((name.to_owned(), metric));
        }
        Ok(all)
    }

    /// Returns the value of a series, named as in the response but without the prefix `anabranch_`.
    pub fn value(&self, series: &str) -> Option<f64> {
        let series = format!("anabranch_{series}");
        self.metrics.iter().find_map(|(_, metric)| metric.samples.get(&series)).copied()
    }

    /// Returns the sum over all series of a metric, named without the prefix `anabranch_`.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let name = format!("anabranch_{name}");
        let found = self.metrics.iter().find(|(other, _)| *other == name);
        found.map(|(_, metric)| metric.samples.values().sum())
    }

    /// Whether `table` is the table of these metrics. The labels of metrics without samples are
    /// unknown, and are not compared.
    fn has_table(&self, table: &str) -> bool {
        let known = |line: &str, name: &str| {
            let metric = self.metrics.iter().find(|(other, _)| name == format!("`{other}`"));
            let is_empty = metric.is_some_and(|(_, metric)| metric.samples.is_empty());
            let cells = line.split(" | ").enumerate();
            cells.filter(|(at, _)| !is_empty || *at != 2).map(|(_, cell)| cell.to_owned()).collect::<Vec<_>>()
        };
        let cells =
            |line: &str| known(line, line.trim_start_matches("| ").split(" | ").next().unwrap_or_default());
        table.lines().map(cells).eq(self.table().lines().map(cells))
    }

    /// Returns a table of the metrics in Markdown.
    pub fn table(&self) -> String {
        let mut table = "| metric | kind | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
        for (name, metric) in &self.metrics {
            let label = |(label, values): (&String, &BTreeSet<String>)| {
                if !LISTED_LABELS.contains(&label.as_str()) {
                    return format!("`{label}`");
                }
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                format!("`{label}`: {}", values.join(", "))
            };
            let labels = metric.labels.iter().filter(|(label, _)| *label != "le");
            let labels: Vec<String> = labels.map(label).collect();
            let labels = if labels.is_empty() { "–".to_owned() } else { labels.join("; ") };
            let help = metric.help.trim_end_matches('.');
            table += &format!("| `{name}` | {} | {labels} | {help} |\n", metric.kind);
        }
        table
    }
}

/// Checks that a document contains the table of a daemon's metrics, between the lines `<!--
/// metrics: DAEMON -->` and `<!-- end -->`. `document` is a path from the root of the workspace.
///
/// Panics: if the response violates the format, or if the table differs. The message then contains
/// the right table.
pub fn check_table(document: &str, daemon: &str, text: &str) {
    let all = Exposition::read(text).unwrap_or_else(|why| panic!("{daemon}: {why}"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let found = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{document}: {error}"));
    let begin = format!("<!-- metrics: {daemon} -->\n");
    let table = found.split_once(&begin).and_then(|(_, rest)| rest.split_once("<!-- end -->"));
    let right = all.table();
    let is_right = table.is_some_and(|(table, _)| all.has_table(table.trim()));
    assert!(is_right, "{document} is to have, after the line {begin}\n{right}\nand then <!-- end -->");
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP anabranch_a_total Bytes.\n# TYPE anabranch_a_total counter\n\
        anabranch_a_total{site=\"s\\\"\\\\\",cause=\"x\"} 3\n\
        # HELP anabranch_b_seconds Time.\n# TYPE anabranch_b_seconds histogram\n\
        anabranch_b_seconds_bucket{le=\"1\"} 1\nanabranch_b_seconds_bucket{le=\"10\"} 1\n\
        anabranch_b_seconds_bucket{le=\"+Inf\"} 2\nanabranch_b_seconds_sum 40.5\nanabranch_b_seconds_count 2\n";

    #[test]
    fn valid_response_is_read_completely() {
        let all = Exposition::read(GOOD).expect("the format");
        assert_eq!(all.value("b_seconds_count"), Some(2.0));
        assert_eq!(all.sum("a_total"), Some(3.0));
        let row = "| `anabranch_a_total` | counter | `cause`: x; `site` | Bytes |";
        assert!(all.table().contains(row), "{}", all.table());
    }

    #[test]
    fn labels_are_compared_only_for_metrics_with_samples() {
        let empty = "# HELP anabranch_c Links.\n# TYPE anabranch_c gauge\n";
        let all = Exposition::read(&(GOOD.to_owned() + empty)).expect("the format");
        let table = all.table();
        assert!(all.has_table(table.trim()));
        let labelled = table.replace("gauge | – |", "gauge | `from`; `to` |");
        assert!(all.has_table(labelled.trim()) && labelled != table);
        for (from, to) in
            [("`cause`: x", "`cause`: y"), ("gauge", "counter"), ("Links", "Sites"), ("_c`", "_d`")]
        {
            assert!(!all.has_table(table.replace(from, to).trim()), "{from}");
        }
    }

    #[test]
    fn each_violation_of_the_format_is_refused() {
        for (from, to) in [
            ("# TYPE anabranch_a_total counter\n", ""),
            ("# HELP anabranch_a_total Bytes.\n", ""),
            ("Bytes.", "Bytes"),
            ("anabranch_a", "other_a"),
            ("anabranch_a_total", "anabranch_a"),
            ("b_seconds", "b_ms"),
            ("cause=", "site="),
            ("\\\\\"", "\\x\""),
            ("} 3", "} three"),
            ("} 3", "} -3"),
            ("} 3", "} NaN"),
            ("} 3", "} +Inf"),
            ("} 3\n", "} 3 1700000000\n"),
            ("le=\"10\"} 1", "le=\"10\"} 3"),
            ("+Inf\"} 2", "+Inf\"} 1"),
            ("anabranch_b_seconds_count 2\n", ""),
            ("anabranch_b_seconds_sum 40.5\n", "anabranch_b_seconds 40.5\n"),
            ("seconds_count 2\n", "seconds_count 2"),
        ] {
            let bad = GOOD.replace(from, to);
            assert_ne!(bad, GOOD, "{from}");
            assert!(Exposition::read(&bad).is_err(), "{from:?} became {to:?}: {bad}");
        }
    }
}
