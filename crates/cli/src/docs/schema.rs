//! Parts of JSON Schema that the references of both HTTP interfaces and settings use.
//!
//! Leaves out: references between schemas, which OpenAPI and `schemars` express differently.

use serde_json::{Map, Value};

/// Type of a value, without `null`.
pub(super) fn base(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(types) => {
            types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or("any")
        }
        Value::String(name) => name,
        _ => "any",
    }
}

/// Items of a list; empty for another value.
pub(super) fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Keys and values of an object; empty for another value.
pub(super) fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}
