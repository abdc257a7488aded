//! Run directories: a run's description and its results.
//!
//! A run directory contains two files. `rows.jsonl` has one JSON object per line; its column names
//! contain their units. `run.json` describes everything on which the rows depend: the command, its
//! resolved configuration, seed, commit and machine, and for emulations their lateness. `run.json`
//! is written last, so a directory without it belongs to a run that did not end. Pictures may also
//! be in the directory. Rows are JSON rather than Parquet because they are few, nested, and also
//! read by people. Many flat rows (flows, time series) form a [`Table`], stored next to them as a
//! Parquet file. Packets of simulated links are stored as a [`pcapng`] capture.
//!
//! Pure: this crate makes the contents of the files; a driver collects the facts and writes the
//! files. Leaves out: plots; evaluations over several runs. Read [`Run`] first.

mod objects;
mod parquet;
pub mod pcapng;
mod table;

pub use parquet::ROW_GROUP_ROWS;
pub use table::{COLUMNS_MAX, Cell, Kind, TEXT_BYTES_MAX, Table, TableError};

use anabranch_units::Seed;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the file of rows.
pub const ROWS: &str = "rows.jsonl";
/// Name of the file that describes the run.
pub const RUN: &str = "run.json";
/// Version of this format.
pub const FORMAT: u32 = 1;

/// A run, as stored in [`RUN`].
///
/// ```
/// use anabranch_record::{Rows, Run, RunEnvironment};
/// let mut rows = Rows::default();
/// rows.push(&serde_json::json!({ "scheme": "coded", "rate_mbps": 19.5 })).unwrap();
/// assert_eq!(rows.text(), "{\"rate_mbps\":19.5,\"scheme\":\"coded\"}\n");
/// let config = serde_json::json!({ "size_bytes": 1000 });
/// let run = Run::new("demo", config, None, RunEnvironment::default(), &rows);
/// assert_eq!(Run::read(&run.text()).unwrap(), run);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the format, [`FORMAT`].
    pub format: u32,
    /// The command that ran.
    pub command: String,
    /// All settings, defaults included.
    pub config: Value,
    /// Seed of all random draws; `None` if nothing was drawn.
    pub seed: Option<Seed>,
    /// Place, time and program of the run.
    #[serde(flatten)]
    pub facts: RunEnvironment,
    /// Number of rows.
    pub rows: u64,
    /// Lateness of each emulation, in order; empty if the run emulated no network.
    #[serde(default)]
    pub emulations: Vec<Emulation>,
}

/// Facts about the environment of a run, which a driver collects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunEnvironment {
    /// Version of the program.
    pub version: String,
    /// Commit from which the program was built, with `+` if the sources had changes; `None` if the
    /// build did not know the commit.
    pub commit: Option<String>,
    /// Start of the run, in seconds since 1970.
    pub began_unix_s: u64,
    /// Duration of the run, in seconds.
    pub took_s: f64,
    /// Machine of the run.
    pub machine: Machine,
}

/// Facts about a machine that affect a run; `None` means unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor, as reported by the system.
    pub cpu: Option<String>,
    /// Number of processors that the program may use.
    pub cpus: Option<u64>,
    /// Architecture, for example `x86_64`.
    pub architecture: String,
    /// Version of the system's kernel.
    pub kernel: Option<String>,
    /// Name of the kernel that performs the arithmetic of GF(2^8).
    pub codes_kernel: String,
    /// Size of the main memory.
    pub memory_bytes: Option<u64>,
    /// Load average of the minute before the run.
    pub load_1min: Option<f64>,
}

/// The accuracy of one emulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// Name of the workload.
    pub name: String,
    /// Percentiles of the lateness, and the emulator's other figures.
    pub report: Value,
}

/// Reason why a row was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowError {
    /// The row is not a JSON object.
    NotAnObject,
    /// A column of fractional numbers has no unit in its name.
    NoUnit {
        /// Name of the column.
        column: String,
    },
}

impl std::fmt::Display for RowError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotAnObject => write!(f, "a row must be an object with a column for each value"),
            Self::NoUnit { column } => {
                write!(f, "column `{column}`: a unit must be part of the name, one of {}", UNITS.join(", "))
            }
        }
    }
}
impl std::error::Error for RowError {}

/// Units that a name may contain as a word between underscores. A `share` is a fraction of one.
/// Counts of packets need a unit only if they may be fractional, as in a mean.
pub const UNITS: [&str; 18] = [
    "s", "ms", "us", "ns", "ps", "kbps", "mbps", "gbps", "bps", "bytes", "share", "load", "ppm", "factor",
    "deg", "cost", "gbytes", "packets",
];

/// Returns true if a word of the name is one of [`UNITS`].
fn has_unit(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| UNITS.contains(&word))
}

/// Rows to be written to [`ROWS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    text: String,
    count: u64,
}

impl Rows {
    /// Adds a row.
    ///
    /// Errors: see [`RowError`]. Whole numbers may be counts and need no unit.
    pub fn push(&mut self, row: &impl Serialize) -> Result<(), RowError> {
        let row = serde_json::to_value(row).map_err(|_| RowError::NotAnObject)?;
        if !row.is_object() {
            return Err(RowError::NotAnObject);
        }
        check("", &row)?;
        self.text.push_str(&row.to_string());
        self.text.push('\n');
        self.count += 1;
        Ok(())
    }

    /// All rows, one per line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Searches for a fractional number whose name has no unit. Items of a list use the list's name.
fn check(name: &str, value: &Value) -> Result<(), RowError> {
    match value {
        Value::Number(n) if n.is_f64() && !has_unit(name) => {
            Err(RowError::NoUnit { column: name.to_owned() })
        }
        Value::Array(items) => items.iter().try_for_each(|item| check(name, item)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| check(name, value)),
        _ => Ok(()),
    }
}

impl Run {
    /// Describes a run that has ended.
    pub fn new(command: &str, config: Value, seed: Option<Seed>, facts: RunEnvironment, rows: &Rows) -> Self {
        Self {
            format: FORMAT,
            command: command.to_owned(),
            config,
            seed,
            facts,
            rows: rows.count,
            emulations: Vec::new(),
        }
    }

    /// The text of [`RUN`].
    ///
    /// Panics: never; all names are strings, and NaN and infinities become null.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a run is plain data") + "\n"
    }

    /// Parses a run from the text of [`RUN`].
    ///
    /// Errors: text that is not JSON; a missing field; another version of the format.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        let run: Self = serde_json::from_str(text).map_err(|e| ReadError::Json(e.to_string()))?;
        if run.format != FORMAT {
            return Err(ReadError::Format(run.format));
        }
        Ok(run)
    }
}

/// Reason why the description of a run cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadError {
    /// The text is not a valid description.
    Json(String),
    /// The text has the format of another version.
    Format(u32),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(reason) => write!(f, "{RUN}: {reason}"),
            Self::Format(found) => write!(f, "{RUN}: format {found}: this program reads {FORMAT}"),
        }
    }
}
impl std::error::Error for ReadError {}

/// Exercise for the fuzz target and its corpus's test: reads the description of a run, writes it
/// and reads it again. Returns true if it was read.
///
/// Panics: if the reader panics or refuses the written text.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let Some(run) = std::str::from_utf8(bytes).ok().and_then(|text| Run::read(text).ok()) else {
        return false;
    };
    Run::read(&run.text()).expect("what was written reads back");
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fuzz_corpora_are_accepted_unless_named_bad() {
        assert!(anabranch_testing::replay("record_run", exercise) >= 3);
    }

    #[test]
    fn written_run_description_reads_back_equal() {
        let mut rows = Rows::default();
        rows.push(&json!({ "packets": 3, "took_s": 0.5 })).expect("units are there");
        let machine = Machine { load_1min: Some(0.25), cpus: Some(2), ..Machine::default() };
        let facts =
            RunEnvironment { commit: Some("abc+".into()), took_s: 1.5, machine, ..RunEnvironment::default() };
        let mut run = Run::new("emulate", json!({ "rate_bps": 1 }), Some(Seed::new(7)), facts, &rows);
        run.emulations.push(Emulation { name: "coded".into(), report: json!({ "lateness_us_p99": 12.5 }) });
        assert_eq!(Run::read(&run.text()), Ok(run.clone()));
        assert_eq!(run.rows, 1);
        run.format += 1;
        assert_eq!(Run::read(&run.text()), Err(ReadError::Format(FORMAT + 1)));
        assert!(matches!(Run::read("{}"), Err(ReadError::Json(_))));
    }

    #[test]
    fn fraction_needs_a_unit_and_count_does_not() {
        let mut rows = Rows::default();
        for good in [
            json!({ "rate_mbps": 1.5, "count": 3, "name": "x", "none": null }),
            json!({ "lateness_us_p99": 1.5, "inner": { "took_s": 0.1 }, "rates_mbps": [1.5, 2] }),
            json!({ "share_of_bound": 0.5 }),
        ] {
            assert_eq!(rows.push(&good), Ok(()));
        }
        let refused = |row: Value, column: &str| {
            assert_eq!(Rows::default().push(&row), Err(RowError::NoUnit { column: column.into() }));
        };
        refused(json!({ "rate": 1.5 }), "rate");
        refused(json!({ "took_s": 1.5, "inner": [{ "delay": 0.1 }] }), "delay");
        assert_eq!(rows.push(&json!([1])), Err(RowError::NotAnObject));
        assert_eq!(rows.text().lines().count(), 3);
    }
}
