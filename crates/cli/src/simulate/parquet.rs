//! Rows of a run as Parquet files: a column for each field that any row has, of the kind that all its values share.

use crate::run_dir::RunDir;
use anabranch_record::{Cell, Kind, Table};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Writes `rows` as `NAME.parquet`.
///
/// Errors: a column without its unit, a field of mixed kinds, the system's.
pub(crate) fn write(run_dir: &RunDir, name: &str, rows: &[Map<String, Value>]) -> anyhow::Result<()> {
    let mut columns: Vec<(&str, Option<Kind>)> = Vec::new();
    for (field, value) in rows.iter().flatten() {
        let at = columns.iter().position(|(name, _)| *name == field).unwrap_or_else(|| {
            columns.push((field, None));
            columns.len() - 1
        });
        columns[at].1 = joined(columns[at].1, kind(value));
    }
    let mut table = Table::default();
    for (field, kind) in columns {
        // A column that is null throughout has no kind of its own.
        let kind = kind.unwrap_or(Kind::Text);
        let values = rows.iter().map(|row| row.get(field).unwrap_or(&Value::Null));
        if kind == Kind::Text {
            let texts: Vec<_> = values.map(text).collect();
            table.push_column(field, kind, texts.iter().map(Option::as_deref))?;
        } else {
            table.push_column(field, kind, values.map(|value| number(value, kind)))?;
        }
    }
    let mut bytes = Vec::new();
    table.write_parquet(&mut bytes)?;
    run_dir.write(&format!("{name}.parquet"), &bytes)
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

/// The kind that can hold values of both.
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
