//! Conversion of rows that are JSON objects to a table: one column for each field that occurs in
//! any row, of the kind that fits all its values.
//!
//! Leaves out: nested objects, which are stored as their JSON text. Read [`Table::of_objects`].

use crate::{Cell, Kind, Table, TableError};
use serde_json::{Map, Value};
use std::borrow::Cow;

impl Table {
    /// Converts `rows` to a table. Columns are in the order of their first occurrence.
    ///
    /// ```
    /// use anabranch_record::Table;
    /// use serde_json::json;
    /// let rows = [json!({ "flow": 0 }), json!({ "flow": 1, "fct_us": 12.5 })];
    /// let rows = rows.map(|row| row.as_object().cloned().unwrap());
    /// assert_eq!(Table::of_objects(&rows).unwrap().rows(), 2);
    /// ```
    ///
    /// Errors: a column of fractions without a unit; a text that is too long.
    pub fn of_objects(rows: &[Map<String, Value>]) -> Result<Self, TableError> {
        let mut columns: Vec<(&str, Option<Kind>)> = Vec::new();
        for (field, value) in rows.iter().flatten() {
            let at = columns.iter().position(|(name, _)| *name == field).unwrap_or_else(|| {
                columns.push((field, None));
                columns.len() - 1
            });
            columns[at].1 = joined(columns[at].1, kind(value));
        }
        let mut table = Self::default();
        for (field, kind) in columns {
            // A column that contains only nulls has no kind.
            let kind = kind.unwrap_or(Kind::Text);
            let values = rows.iter().map(|row| row.get(field).unwrap_or(&Value::Null));
            if kind == Kind::Text {
                let texts: Vec<_> = values.map(text).collect();
                table.push_column(field, kind, texts.iter().map(Option::as_deref))?;
            } else {
                table.push_column(field, kind, values.map(|value| number(value, kind)))?;
            }
        }
        Ok(table)
    }
}

fn kind(value: &Value) -> Option<Kind> {
    match value {
        Value::Bool(_) => Some(Kind::Bool),
        Value::Number(n) if n.is_u64() => Some(Kind::U64),
        Value::Number(n) if n.is_i64() => Some(Kind::I64),
        Value::Number(_) => Some(Kind::F64),
        Value::String(_) | Value::Array(_) | Value::Object(_) => Some(Kind::Text),
        Value::Null => None,
    }
}

/// The kind that can hold values of both kinds.
fn joined(a: Option<Kind>, b: Option<Kind>) -> Option<Kind> {
    let is_number = |kind| matches!(kind, Kind::I64 | Kind::U64 | Kind::F64);
    match (a, b) {
        (Some(a), Some(b)) if a == b => Some(a),
        (Some(Kind::F64), Some(b)) if is_number(b) => Some(Kind::F64),
        (Some(a), Some(Kind::F64)) if is_number(a) => Some(Kind::F64),
        (Some(a), Some(b)) if is_number(a) && is_number(b) => Some(Kind::I64),
        (Some(_), Some(_)) => Some(Kind::Text),
        (a, b) => a.or(b),
    }
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into()),
        other => Some(other.to_string().into()),
    }
}

fn number(value: &Value, kind: Kind) -> Cell<'static> {
    let cell = match kind {
        Kind::Bool => value.as_bool().map(Cell::Bool),
        Kind::U64 => value.as_u64().map(Cell::U64),
        Kind::I64 => value.as_i64().map(Cell::I64),
        Kind::F64 | Kind::Text => value.as_f64().map(Cell::F64),
    };
    cell.unwrap_or(Cell::Null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn column_kind_fits_all_of_its_values() {
        let rows: Vec<Map<String, Value>> = [
            json!({ "count": 1, "rate_mbps": 1, "delta": -1, "any": true, "never": null }),
            json!({ "rate_mbps": 0.5, "delta": 2, "any": [1], "late": "yes" }),
        ]
        .map(|row| row.as_object().cloned().expect("an object"))
        .into();
        let table = Table::of_objects(&rows).expect("good columns");
        let kind = |name| table.columns.iter().find(|column| column.name == name).map(|column| column.kind());
        for (name, expected) in [
            ("count", Kind::U64),
            ("rate_mbps", Kind::F64),
            ("delta", Kind::I64),
            ("any", Kind::Text),
            ("never", Kind::Text),
            ("late", Kind::Text),
        ] {
            assert_eq!(kind(name), Some(expected), "{name}");
        }
        assert_eq!(table.columns[0].present.len(), 2, "what a row lacks is null");
        let bare = [json!({ "rate": 0.5 })].map(|row| row.as_object().cloned().expect("an object"));
        assert_eq!(Table::of_objects(&bare), Err(TableError::NoUnit { column: "rate".to_owned() }));
    }
}
