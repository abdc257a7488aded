//! Reference of the keys of scenarios and topologies.
//!
//! A scenario's keys are read from the schema of the types that parse it, with their doc comments
//! and defaults. A topology's keys are read from the list by which its parser refuses unknown keys.
//! Leaves out: combinations that are refused. Read [`scenario`] first.

use super::markdown::{Page, code, escaped};
use super::schema::{array, base, entries};
use crate::family;
use anabranch_graph::file::toml::TABLES;
use anabranch_sim::scenario::{Scenario, Workload};
use schemars::schema_for;
use serde_json::Value;
use std::collections::BTreeSet;

/// Keys of topology files.
pub fn topology() -> Page {
    let lead = "All keys of a topology's file in TOML. [Topologies](../docs/topologies.md) teaches them.";
    let mut page = Page::new("topology.md", "Keys of topologies", lead);
    for table in TABLES {
        let name = if table.name.starts_with('[') { code(table.name) } else { "The file".to_owned() };
        page.line(format_args!("\n## {name}"));
        page.table(
            ["key", "default", "meaning"],
            table.keys.iter().map(|key| {
                [code(key.name), key.default.map_or("*required*".to_owned(), escaped), escaped(key.meaning)]
            }),
        );
    }
    page
}

/// Description of the table of swept settings, which the parser reads before all other tables.
const SWEEP: &str =
    "Settings with several values. Every combination of values runs, and each row has the swept settings.";

/// Keys of scenarios: keys of the run, and of each kind of workload.
pub fn scenario() -> Page {
    let lead = "All keys of a scenario, with types and defaults. [Scenarios](../docs/scenarios.md) teaches \
                them, and says which of them `emulate` takes.";
    let mut page = Page::new("scenario.md", "Keys of scenarios", lead);
    for (title, table) in tables() {
        page.line(format_args!("\n## {title}\n\n{}", escaped(table.description())));
        page.table(["key", "type", "default", "meaning"], table.rows());
    }
    page.line(format_args!("\n## `[sweep]`\n\n{SWEEP}"));
    let meaning = "Values of the setting with this path, as `network.queue` or `workload[0].servers`.";
    let row = [r#"`"SETTING"`"#, "list: any value of the setting", "none", meaning].map(str::to_owned);
    page.table(["key", "type", "default", "meaning"], [row]);
    page
}

/// Titles and tables of all keys of a scenario.
pub fn tables() -> Vec<(String, Table)> {
    let mut tables = Vec::new();
    let root = schema_for!(Scenario).to_value();
    Table::new(&root, &root, "").collect("The run", &mut tables);
    let workload = schema_for!(Workload).to_value();
    // The variant of systems has no tag, so the kinds are alternatives that need not exclude each
    // other.
    for variant in array(&workload["anyOf"]) {
        let table = Table::new(variant, &workload, "workload");
        let kind = table.keys().find_map(|(name, key)| key["const"].as_str().filter(|_| name == "kind"));
        let title = code(format_args!("kind = \"{}\"", kind.expect("its tag is a constant")));
        table.collect(&title, &mut tables);
    }
    for system in family::simulated() {
        if let Some(schema) = system.settings() {
            let schema = schema.to_value();
            let title = code(format_args!("kind = \"{}\"", system.kind()));
            Table::new(&schema, &schema, "workload").collect(&title, &mut tables);
        }
    }
    tables
}

/// The keys of one table.
pub struct Table {
    /// Schema of the table.
    schema: Value,
    /// Schema that has the definitions to which `schema` refers.
    root: Value,
    /// Path of the table in a scenario, as `circuit.resize`; empty for the top.
    path: String,
}

impl Table {
    fn new(schema: &Value, root: &Value, path: &str) -> Self {
        Self { schema: resolved(schema, root).clone(), root: root.clone(), path: path.to_owned() }
    }

    /// Keys and their schemas, including the key that names a workload's kind.
    pub fn keys(&self) -> impl Iterator<Item = (&String, &Value)> {
        entries(&self.schema["properties"])
    }

    fn description(&self) -> &str {
        self.schema["description"].as_str().unwrap_or_default()
    }

    /// Appends this table and its inner tables.
    fn collect(self, title: &str, tables: &mut Vec<(String, Self)>) {
        let mut below = Vec::new();
        for (name, key) in self.keys() {
            let (inner, is_list) = element(key, &self.root);
            if inner["properties"].is_object() {
                let path = [self.path.as_str(), name].into_iter().filter(|part| !part.is_empty());
                let mut path = path.collect::<Vec<_>>().join(".");
                if is_map(key, &self.root) {
                    path += ".NAME";
                }
                let written = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
                // Workloads of different kinds have tables with the same name, as
                // `[[workload.faults]]`.
                let suffix = if self.path == "workload" { format!(" of {title}") } else { String::new() };
                below.push((code(written) + &suffix, Self::new(inner, &self.root, &path)));
            }
        }
        tables.push((title.to_owned(), self));
        for (title, table) in below {
            table.collect(&title, tables);
        }
    }

    fn rows(&self) -> impl Iterator<Item = [String; 4]> {
        let required: BTreeSet<&str> =
            self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        self.keys().filter(|(_, key)| !key["const"].is_string()).map(move |(name, key)| {
            let default = match &key["default"] {
                _ if required.contains(name.as_str()) => "*required*".to_owned(),
                Value::Null => "none".to_owned(),
                Value::Array(items) if items.is_empty() => "none".to_owned(),
                Value::Object(keys) if keys.is_empty() => "none".to_owned(),
                Value::Object(_) => "its defaults".to_owned(),
                Value::String(text) if text.is_empty() => "none".to_owned(),
                Value::String(text) => code(text),
                other => code(other),
            };
            let meaning = escaped(key["description"].as_str().unwrap_or_default());
            [code(name), self.kind(key), default, meaning + &self.values(key)]
        })
    }

    /// Describes the type of a key's value in words.
    fn kind(&self, key: &Value) -> String {
        let (inner, is_list) = element(key, &self.root);
        let kind = match () {
            () if inner["properties"].is_object() => "table".to_owned(),
            () if !words(inner).is_empty() => {
                let words = words(inner).into_iter().map(|(word, _)| code(word));
                words.collect::<Vec<_>>().join(", ")
            }
            () if inner["anyOf"].is_array() => {
                let mut kinds: Vec<_> = array(&inner["anyOf"]).iter().map(|one| self.kind(one)).collect();
                kinds.dedup();
                kinds.join(", or ")
            }
            () => match (base(inner), inner["examples"][0].as_str()) {
                ("string", Some(example)) => format!("as {}", code(example)),
                ("string", None) => "text".to_owned(),
                ("integer", _) => "whole number".to_owned(),
                ("boolean", _) => "true or false".to_owned(),
                ("array", _) => "list".to_owned(),
                (other, _) => other.to_owned(),
            },
        };
        match () {
            () if is_list => format!("list: {kind}"),
            () if is_map(key, &self.root) => format!("by name: {kind}"),
            () => kind,
        }
    }

    /// Lists the meanings of the words that a key may have as its value.
    fn values(&self, key: &Value) -> String {
        let (inner, _) = element(key, &self.root);
        let told = words(inner).into_iter().filter(|(_, meaning)| !meaning.is_empty());
        told.map(|(word, meaning)| format!(" {}: {}", code(word), escaped(meaning))).collect()
    }
}

/// Returns the schema of a value, of a list's items or of a map's tables, and whether the value is
/// a list.
fn element<'a>(key: &'a Value, root: &'a Value) -> (&'a Value, bool) {
    let schema = resolved(key, root);
    if base(schema) == "array" && schema["items"].is_object() {
        return (resolved(&schema["items"], root), true);
    }
    let values = &schema["additionalProperties"];
    if values.is_object() { (resolved(values, root), false) } else { (schema, false) }
}

/// Returns true for a table whose keys are names.
fn is_map(key: &Value, root: &Value) -> bool {
    resolved(key, root)["additionalProperties"].is_object()
}

/// Follows references, and the single alternative of an optional value.
fn resolved<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    if let Some(target) = schema["$ref"].as_str() {
        let found = target.strip_prefix('#').and_then(|path| root.pointer(path));
        return resolved(found.expect("a schema has its definitions"), root);
    }
    let is_some = |one: &&Value| one["type"] != "null";
    match array(&schema["anyOf"]).iter().filter(is_some).collect::<Vec<_>>()[..] {
        [one] => resolved(one, root),
        _ => schema,
    }
}

/// Words that are valid as a value, with their meanings.
fn words(schema: &Value) -> Vec<(&str, &str)> {
    let plain = array(&schema["enum"]).iter().filter_map(|word| Some((word.as_str()?, "")));
    let told = array(&schema["oneOf"]).iter().flat_map(|one| {
        let meaning = one["description"].as_str().unwrap_or_default();
        let words = one["const"].as_str().into_iter().map(move |word| (word, meaning));
        words.chain(array(&one["enum"]).iter().filter_map(Value::as_str).map(|word| (word, "")))
    });
    plain.chain(told).collect()
}
