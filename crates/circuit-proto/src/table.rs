//! Tables of demand: CSV with the columns `source`, `destination` and `bytes`.
//!
//! Racks have names, and are numbered in the order of their first occurrence. The bytes of several
//! lines for one pair are added. Bytes may have a unit, as in `10 MB`; a number without a unit
//! counts bytes. Leaves out: the source of tables. Read [`read`] first.

use crate::{Demand, DemandError, RACKS_MAX};
use anabranch_units::ByteCount;
use anabranch_units::text::{brief, printable};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

/// Maximum length of a rack's name, in characters.
pub const NAME_CHARS_MAX: usize = 63;

/// Maximum number of lines of a table: one for each pair of 1,024 racks.
pub const LINES_MAX: u64 = (RACKS_MAX * RACKS_MAX) as u64;

/// Demand with the names of its racks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Names of the racks, by number.
    pub racks: Vec<String>,
    /// Bytes between the racks.
    pub demand: Demand,
}

/// Reason why a table is refused. Lines are counted from 1, the heading.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// A line with missing or surplus columns, or invalid CSV.
    BadLine {
        /// Number of the line.
        line: u64,
        /// The mistake that the CSV reader found.
        reason: String,
    },
    /// A name is empty, too long or not printable.
    BadName {
        /// Number of the line.
        line: u64,
        /// Name in the line.
        name: String,
    },
    /// Bytes that are not a number with a unit of sizes.
    BadBytes {
        /// Number of the line.
        line: u64,
        /// Text in the line.
        bytes: String,
        /// Mistake in the text.
        reason: String,
    },
    /// Bytes from a rack to itself.
    ToItself {
        /// Number of the line.
        line: u64,
        /// Name of the rack.
        rack: String,
    },
    /// Demand that is refused.
    Demand {
        /// Number of the line. `None` for a mistake of the table as a whole.
        line: Option<u64>,
        /// Mistake in the demand.
        error: DemandError,
    },
    /// More lines than [`LINES_MAX`].
    TooLong,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLine { line, reason } => {
                write!(f, "line {line}: {reason}: a line has a source, a destination and bytes")
            }
            Self::BadName { line, name } => write!(
                f,
                "line {line}: rack `{}`: a name has 1 to {NAME_CHARS_MAX} printable characters",
                brief(&printable(name), NAME_CHARS_MAX)
            ),
            Self::BadBytes { line, bytes, reason } => {
                write!(f, "line {line}: bytes `{}`: {reason}", brief(&printable(bytes), NAME_CHARS_MAX))
            }
            Self::ToItself { line, rack } => {
                write!(f, "line {line}: rack `{rack}` to itself: demand is between different racks")
            }
            Self::Demand { line: Some(line), error } => write!(f, "line {line}: {error}"),
            Self::Demand { line: None, error } => write!(f, "{error}"),
            Self::TooLong => write!(f, "the table has more than {LINES_MAX} lines"),
        }
    }
}

impl std::error::Error for TableError {}

/// Reads a table of demand.
///
/// Errors: the first mistake, with its line.
///
/// ```
/// let text = "source,destination,bytes\na,b,10 MB\nb,a,2MB\n";
/// let table = anabranch_circuit_proto::table::read(text.as_bytes())?;
/// assert_eq!(table.racks, ["a", "b"]);
/// assert_eq!(table.demand.between(0, 1).as_u64(), 10_000_000);
/// # Ok::<(), anabranch_circuit_proto::table::TableError>(())
/// ```
pub fn read(input: impl Read) -> Result<Table, TableError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let wrong = |error: csv::Error, line: u64| {
        let line = error.position().map_or(line, csv::Position::line);
        let reason = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("{len} fields, not {expected_len}")
            }
            csv::ErrorKind::Utf8 { .. } => "no UTF-8".to_owned(),
            _ => error.to_string(),
        };
        TableError::BadLine { line, reason }
    };
    let heading = reader.headers().map_err(|error| wrong(error, 1))?.clone();
    let column = |name: &str| {
        let missing = || TableError::BadLine { line: 1, reason: format!("no column `{name}`") };
        heading.iter().position(|heading| heading == name).ok_or_else(missing)
    };
    let (source, destination, bytes) = (column("source")?, column("destination")?, column("bytes")?);
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut racks: Vec<String> = Vec::new();
    let mut entries: Vec<(u64, usize, usize, ByteCount)> = Vec::new();
    let mut record = csv::StringRecord::new();
    loop {
        let line = reader.position().line();
        if !reader.read_record(&mut record).map_err(|error| wrong(error, line))? {
            break;
        }
        let line = record.position().map_or(line, csv::Position::line);
        if entries.len() as u64 >= LINES_MAX {
            return Err(TableError::TooLong);
        }
        let mut rack = |column: usize| {
            let name = record[column].to_owned();
            if name.is_empty()
                || name.chars().count() > NAME_CHARS_MAX
                || !anabranch_units::text::is_printable(&name)
            {
                return Err(TableError::BadName { line, name });
            }
            let next = racks.len();
            if let Some(number) = numbers.get(&name) {
                return Ok(*number);
            }
            if next >= RACKS_MAX {
                return Err(TableError::Demand { line: Some(line), error: DemandError::Racks(next + 1) });
            }
            numbers.insert(name.clone(), next);
            racks.push(name);
            Ok(next)
        };
        let (from, to) = (rack(source)?, rack(destination)?);
        if from == to {
            return Err(TableError::ToItself { line, rack: record[source].to_owned() });
        }
        let text = &record[bytes];
        let size = text.parse().map(ByteCount::new).or_else(|_| text.parse());
        let size = size.map_err(|error: anabranch_units::ParseQuantityError| TableError::BadBytes {
            line,
            bytes: text.to_owned(),
            reason: error.to_string(),
        })?;
        entries.push((line, from, to, size));
    }
    let mut demand = Demand::new(racks.len()).map_err(|error| TableError::Demand { line: None, error })?;
    for (line, from, to, size) in entries {
        demand.add(from, to, size).map_err(|error| TableError::Demand { line: Some(line), error })?;
    }
    Ok(Table { racks, demand })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistake(text: &str) -> String {
        read(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn table_errors_name_the_line() {
        assert_eq!(
            mistake("source,destination,size\na,b,1\n"),
            "line 1: no column `bytes`: a line has a source, a destination and bytes"
        );
        let heading = "source,destination,bytes\n";
        assert_eq!(
            mistake(&format!("{heading}a,b,1\na,b\n")),
            "line 3: 2 fields, not 3: a line has a source, a destination and bytes"
        );
        assert!(mistake(&format!("{heading}a,b,many\n")).starts_with("line 2: bytes `many`: "));
        assert!(mistake(&format!("{heading},b,1\n")).starts_with("line 2: rack ``: a name has"));
        let error = mistake(&format!("{heading}a,b,1\nb,b,1\n"));
        assert_eq!(error, "line 3: rack `b` to itself: demand is between different racks");
        assert_eq!(mistake(heading), "0 racks: a network has 2 to 1024");
    }

    #[test]
    fn lines_of_one_pair_are_summed() {
        let table = read("bytes,source,destination\n1 kB,x,y\n2 kB,x,y\n".as_bytes()).unwrap();
        assert_eq!(table.demand.between(0, 1), ByteCount::new(3_000));
        assert_eq!(table.demand.between(1, 0), ByteCount::new(0));
    }
}
