//! Rows of figures, as a table for people or as JSON lines.
//!
//! Leaves out: the contents of the rows. Read [`ShownRows`] first.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A row: columns and their values, in order.
pub(super) struct Row(pub(super) Vec<(&'static str, Value)>);

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(column, value)| (column, value)))
    }
}

/// Rows to show.
pub(super) struct ShownRows {
    json: bool,
    table: Table,
}

impl ShownRows {
    /// Creates an empty table.
    pub(super) fn new(json: bool) -> Self {
        let mut table = Table::new();
        table.load_preset(NOTHING);
        Self { json, table }
    }

    /// Prints a row as JSON, or adds it to the table.
    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        if self.json {
            outln!("{}", serde_json::to_string(&row)?);
            return Ok(());
        }
        self.table.set_header(row.0.iter().map(|(column, _)| *column));
        self.table.add_row(row.0.iter().map(|(_, value)| match value {
            Value::String(text) => text.clone(),
            Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or_default()),
            other => other.to_string(),
        }));
        Ok(())
    }
    /// Prints the table.
    pub(super) fn end(mut self) {
        if !self.json {
            self.table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
            outln!("{}", self.table);
        }
    }
}
