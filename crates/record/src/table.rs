//! Tables: many rows of the same typed columns, for example flows and time series.
//!
//! A [`Table`] is built row by row ([`Table::push`]) or column by column ([`Table::push_column`]);
//! any cell may be null. Names follow the same rule as in [`crate::Rows`]: a column of fractions
//! has a unit in its name. [`Table::write_parquet`] writes the file.
//!
//! Leaves out: nested columns (use [`crate::Rows`] for them), dates (times are numbers with a
//! unit), reading. Read [`Table`] and [`Cell`] first.

use crate::{UNITS, has_unit};
use std::collections::BTreeMap;

/// Maximum number of columns of a table.
pub const COLUMNS_MAX: usize = 1_000;
/// Maximum length of a text in bytes. With this limit, a page of the distinct texts of a row group
/// stays below 2^31 bytes.
pub const TEXT_BYTES_MAX: usize = 4_096;

/// The type of a column.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers that may be negative.
    I64,
    /// Whole numbers: counts, sizes, points in time.
    U64,
    /// Fractions; the column's name contains the unit.
    F64,
    /// True or false.
    Bool,
    /// Names and words; equal texts are stored once.
    Text,
}

/// A value in one row and one column.
///
/// ```
/// use anabranch_record::Cell;
/// assert_eq!(Cell::from(Some(7u64)), Cell::U64(7));
/// assert_eq!(Cell::from(None::<f64>), Cell::Null);
/// ```
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// The value is unknown or does not apply.
    Null,
    /// A value of a column of [`Kind::I64`].
    I64(i64),
    /// A value of a column of [`Kind::U64`].
    U64(u64),
    /// A value of a column of [`Kind::F64`]. It must be finite; a missing value is [`Cell::Null`].
    F64(f64),
    /// A value of a column of [`Kind::Bool`].
    Bool(bool),
    /// A value of a column of [`Kind::Text`].
    Text(&'a str),
}

impl Cell<'_> {
    /// The kind of column that accepts the cell; `None` for null, which every column accepts.
    pub const fn kind(&self) -> Option<Kind> {
        match self {
            Self::Null => None,
            Self::I64(_) => Some(Kind::I64),
            Self::U64(_) => Some(Kind::U64),
            Self::F64(_) => Some(Kind::F64),
            Self::Bool(_) => Some(Kind::Bool),
            Self::Text(_) => Some(Kind::Text),
        }
    }
}

macro_rules! cell_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Cell<'_> {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}
cell_from!(i64 => I64, i32 => I64, u64 => U64, u32 => U64, u16 => U64, u8 => U64, f64 => F64, bool => Bool);

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}
impl<'a, T: Into<Cell<'a>>> From<Option<T>> for Cell<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Reason why a column or a row was refused. The table is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// A column of fractions has no unit in its name.
    NoUnit {
        /// Name of the column.
        column: String,
    },
    /// A column has no name.
    NoName,
    /// Another column has the same name.
    NameTaken {
        /// Name of the column.
        column: String,
    },
    /// The table would have more than [`COLUMNS_MAX`] columns.
    TooManyColumns,
    /// A row has too many or too few cells.
    RowLength {
        /// Number of columns.
        need: usize,
        /// Number of cells in the row.
        got: usize,
    },
    /// A column is longer or shorter than the other columns.
    ColumnLength {
        /// Name of the column.
        column: String,
        /// Number of rows.
        need: usize,
        /// Length of the column.
        got: usize,
    },
    /// A cell has another kind than its column.
    WrongKind {
        /// Name of the column.
        column: String,
        /// Kind of the column.
        need: Kind,
        /// Kind of the cell.
        got: Kind,
    },
    /// A number is NaN or infinite.
    NotFinite {
        /// Name of the column.
        column: String,
    },
    /// A text is longer than [`TEXT_BYTES_MAX`].
    TextTooLong {
        /// Name of the column.
        column: String,
        /// Length of the text in bytes.
        got_bytes: usize,
    },
}

impl std::fmt::Display for TableError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoUnit { column } => {
                write!(f, "column `{column}`: a unit must be part of the name, one of {}", UNITS.join(", "))
            }
            Self::NoName => write!(f, "a column must have a name"),
            Self::NameTaken { column } => write!(f, "column `{column}`: there is one of that name already"),
            Self::TooManyColumns => write!(f, "a table holds at most {COLUMNS_MAX} columns"),
            Self::RowLength { need, got } => {
                write!(f, "a row of {got} cells: must be {need}, one for each column")
            }
            Self::ColumnLength { column, need, got } => {
                write!(f, "column `{column}` of {got} cells: must be {need}, one for each row")
            }
            Self::WrongKind { column, need, got } => {
                write!(f, "column `{column}`: a cell of {got:?}: must be {need:?} or null")
            }
            Self::NotFinite { column } => {
                write!(f, "column `{column}`: a number must be finite; a missing value is null")
            }
            Self::TextTooLong { column, got_bytes } => {
                write!(f, "column `{column}`: a text of {got_bytes} B: must be at most {TEXT_BYTES_MAX} B")
            }
        }
    }
}
impl std::error::Error for TableError {}

/// A table: rows of typed columns.
///
/// Shape: the length of every column is the number of rows.
/// Cost: one byte per cell, plus the value if it is not null: 8 bytes for a number, 1 for a
/// Boolean, 4 for a repeated text.
///
/// ```
/// use anabranch_record::{Cell, Kind, Table};
/// let mut flows = Table::new(&[("flow", Kind::U64), ("size_bytes", Kind::U64), ("fct_us", Kind::F64)]).unwrap();
/// flows.push(&[0u64.into(), 1_500u64.into(), 12.5.into()]).unwrap();
/// flows.push(&[1u64.into(), 64_000u64.into(), Cell::Null]).unwrap();
/// let mut file = Vec::new();
/// flows.write_parquet(&mut file).unwrap();
/// assert_eq!(flows.rows(), 2);
/// assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
/// assert!(Table::new(&[("fct", Kind::F64)]).is_err(), "a fraction without a whole");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    rows: usize,
}

/// One column. Nulls have no entry in `values`, which may thus be shorter than `present`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Column {
    pub name: String,
    /// For every row, true if the column has a value.
    pub present: Vec<bool>,
    pub values: ColumnValues,
}

/// The non-null values of a column, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ColumnValues {
    I64(Vec<i64>),
    U64(Vec<u64>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    Text(TextColumn),
}

/// Texts of a column; equal texts are stored once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TextColumn {
    /// The distinct texts in order of occurrence.
    pub distinct: Vec<String>,
    /// Index of each text in `distinct`.
    ids: BTreeMap<String, u32>,
    /// Index into `distinct` for each value.
    pub values: Vec<u32>,
}

impl TextColumn {
    fn push(&mut self, text: &str) {
        let id = self.ids.get(text).copied().unwrap_or_else(|| {
            let id = u32::try_from(self.distinct.len()).expect("memory ends before 2^32 distinct texts");
            self.distinct.push(text.to_owned());
            self.ids.insert(text.to_owned(), id);
            id
        });
        self.values.push(id);
    }
}

impl Column {
    fn new(name: &str, kind: Kind) -> Result<Self, TableError> {
        if name.is_empty() {
            return Err(TableError::NoName);
        }
        if kind == Kind::F64 && !has_unit(name) {
            return Err(TableError::NoUnit { column: name.to_owned() });
        }
        let values = match kind {
            Kind::I64 => ColumnValues::I64(Vec::new()),
            Kind::U64 => ColumnValues::U64(Vec::new()),
            Kind::F64 => ColumnValues::F64(Vec::new()),
            Kind::Bool => ColumnValues::Bool(Vec::new()),
            Kind::Text => ColumnValues::Text(TextColumn::default()),
        };
        Ok(Self { name: name.to_owned(), present: Vec::new(), values })
    }

    pub fn kind(&self) -> Kind {
        match self.values {
            ColumnValues::I64(_) => Kind::I64,
            ColumnValues::U64(_) => Kind::U64,
            ColumnValues::F64(_) => Kind::F64,
            ColumnValues::Bool(_) => Kind::Bool,
            ColumnValues::Text(_) => Kind::Text,
        }
    }

    fn check(&self, cell: &Cell<'_>) -> Result<(), TableError> {
        let column = || self.name.clone();
        match (cell.kind(), cell) {
            (Some(got), _) if got != self.kind() => {
                Err(TableError::WrongKind { column: column(), need: self.kind(), got })
            }
            (_, Cell::F64(x)) if !x.is_finite() => Err(TableError::NotFinite { column: column() }),
            (_, Cell::Text(text)) if text.len() > TEXT_BYTES_MAX => {
                Err(TableError::TextTooLong { column: column(), got_bytes: text.len() })
            }
            _ => Ok(()),
        }
    }

    fn push(&mut self, cell: &Cell<'_>) {
        self.present.push(*cell != Cell::Null);
        match (&mut self.values, *cell) {
            (_, Cell::Null) => {}
            (ColumnValues::I64(values), Cell::I64(x)) => values.push(x),
            (ColumnValues::U64(values), Cell::U64(x)) => values.push(x),
            (ColumnValues::F64(values), Cell::F64(x)) => values.push(x),
            (ColumnValues::Bool(values), Cell::Bool(x)) => values.push(x),
            (ColumnValues::Text(values), Cell::Text(x)) => values.push(x),
            _ => unreachable!("the cell was checked against its column"),
        }
    }
}

impl Table {
    /// Creates a table without rows.
    ///
    /// Errors: a name that is empty, repeated or without a unit; more than [`COLUMNS_MAX`] columns.
    pub fn new(columns: &[(&str, Kind)]) -> Result<Self, TableError> {
        let mut table = Self::default();
        for &(name, kind) in columns {
            table.push_column(name, kind, [Cell::Null; 0])?;
        }
        Ok(table)
    }

    /// Adds a row: one cell per column, in the order of the columns.
    ///
    /// Errors: see [`TableError`]; the table is then unchanged.
    pub fn push(&mut self, row: &[Cell<'_>]) -> Result<(), TableError> {
        if row.len() != self.columns.len() {
            return Err(TableError::RowLength { need: self.columns.len(), got: row.len() });
        }
        self.columns.iter().zip(row).try_for_each(|(column, cell)| column.check(cell))?;
        self.columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
        self.rows += 1;
        Ok(())
    }

    /// Adds a column after the existing ones: one cell per row. The first column determines the
    /// number of rows.
    ///
    /// Errors: see [`TableError`]; the table is then unchanged.
    pub fn push_column<'a, C: Into<Cell<'a>>>(
        &mut self,
        name: &str,
        kind: Kind,
        cells: impl IntoIterator<Item = C>,
    ) -> Result<(), TableError> {
        let mut column = Column::new(name, kind)?;
        if self.columns.iter().any(|c| c.name == name) {
            return Err(TableError::NameTaken { column: name.to_owned() });
        }
        if self.columns.len() == COLUMNS_MAX {
            return Err(TableError::TooManyColumns);
        }
        for cell in cells {
            let cell = cell.into();
            column.check(&cell)?;
            column.push(&cell);
        }
        let got = column.present.len();
        if !self.columns.is_empty() && got != self.rows {
            return Err(TableError::ColumnLength { column: name.to_owned(), need: self.rows, got });
        }
        self.rows = got;
        self.columns.push(column);
        Ok(())
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_from_rows_and_from_columns_are_equal() {
        let mut by_row = Table::new(&[("flow", Kind::U64), ("name", Kind::Text), ("took_s", Kind::F64)])
            .expect("units are there");
        by_row.push(&[1u64.into(), "a".into(), 0.5.into()]).expect("fits");
        by_row.push(&[Cell::Null, "b".into(), Cell::Null]).expect("fits");
        by_row.push(&[3u64.into(), "a".into(), 1.5.into()]).expect("fits");
        let mut by_column = Table::default();
        by_column.push_column("flow", Kind::U64, [Some(1u64), None, Some(3)]).expect("fits");
        by_column.push_column("name", Kind::Text, ["a", "b", "a"]).expect("fits");
        by_column.push_column("took_s", Kind::F64, [Some(0.5), None, Some(1.5)]).expect("fits");
        assert_eq!(by_row, by_column);
        assert_eq!(by_row.rows(), 3);
    }

    #[test]
    fn fraction_needs_a_unit_and_count_does_not() {
        for (name, kind) in [
            ("packets", Kind::U64),
            ("rate", Kind::I64),
            ("queue_packets_mean", Kind::F64),
            ("at_ps", Kind::F64),
        ] {
            assert!(Table::new(&[(name, kind)]).is_ok(), "{name}");
        }
        let refused = TableError::NoUnit { column: "rate".into() };
        assert_eq!(Table::new(&[("rate", Kind::F64)]), Err(refused));
    }

    #[test]
    fn refused_row_leaves_the_table_unchanged() {
        let mut table = Table::new(&[("flow", Kind::U64), ("took_s", Kind::F64), ("name", Kind::Text)])
            .expect("units are there");
        let limit = "x".repeat(TEXT_BYTES_MAX);
        table.push(&[1u64.into(), 1.0.into(), limit.as_str().into()]).expect("at the limit");
        let before = table.clone();
        let long = limit + "x";
        let column = || "took_s".to_owned();
        for (row, error) in [
            (vec![Cell::U64(1)], TableError::RowLength { need: 3, got: 1 }),
            (
                vec![Cell::U64(1), Cell::U64(1), Cell::Null],
                TableError::WrongKind { column: column(), need: Kind::F64, got: Kind::U64 },
            ),
            (vec![Cell::U64(1), Cell::F64(f64::NAN), Cell::Null], TableError::NotFinite { column: column() }),
            (
                vec![Cell::U64(1), Cell::Null, Cell::Text(&long)],
                TableError::TextTooLong { column: "name".into(), got_bytes: TEXT_BYTES_MAX + 1 },
            ),
        ] {
            assert_eq!(table.push(&row), Err(error));
        }
        let mut column = |name: &str, cells: &[u64]| {
            table.push_column(name, Kind::U64, cells.iter().copied()).expect_err("refused")
        };
        assert_eq!(column("", &[1]), TableError::NoName);
        assert_eq!(column("flow", &[1]), TableError::NameTaken { column: "flow".into() });
        let error = TableError::ColumnLength { column: "more".into(), need: 1, got: 2 };
        assert_eq!(column("more", &[1, 2]), error);
        assert_eq!(table, before);
    }

    #[test]
    fn columns_above_the_maximum_are_refused() {
        let names: Vec<String> = (0..=COLUMNS_MAX).map(|n| n.to_string()).collect();
        let columns: Vec<_> = names.iter().map(|n| (n.as_str(), Kind::Bool)).collect();
        assert!(Table::new(&columns[..COLUMNS_MAX]).is_ok());
        assert_eq!(Table::new(&columns), Err(TableError::TooManyColumns));
    }
}
