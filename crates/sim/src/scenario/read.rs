//! Parser of scenarios: TOML, overrides, sweeps, and errors with their location.

use super::{KINDS, Scenario, SystemWorkload, Workload};
use crate::error::PlanError;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::fmt;
use toml::de::{DeArray, DeTable, DeValue};
use toml::{Table, Value};

/// Maximum number of combinations of swept values.
const POINTS_MAX: usize = 10_000;
/// Maximum number of steps in the path of a setting, because the resulting nested tables are copied
/// and read recursively. The longest valid path has 6 steps.
const STEPS_MAX: usize = 16;
/// Maximum number of characters of a setting or an override that a message quotes.
const QUOTED_CHARS_MAX: usize = 120;
/// Maximum number of characters in an error's message, because values may have any length.
const MESSAGE_CHARS_MAX: usize = 1_200;

/// One combination of swept values.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint {
    /// Swept settings with their values at this point, in the file's order.
    pub swept: Vec<(String, Value)>,
    /// The resolved scenario.
    pub scenario: Scenario,
}

/// Reason why a file is not a valid scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioError {
    /// Location: a file with its line, or the override.
    pub place: String,
    /// The setting, such as `network.rate`; empty for the whole file.
    pub field: String,
    /// The reason, with the value and the allowed range.
    pub message: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = cut(&self.message, MESSAGE_CHARS_MAX);
        match cut(&self.field, QUOTED_CHARS_MAX).as_ref() {
            "" => write!(f, "{}: {message}", self.place),
            field => write!(f, "{}: {field}: {message}", self.place),
        }
    }
}
impl std::error::Error for ScenarioError {}

/// Returns the first `chars_max` characters of `text`, for a message.
fn cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// An invalid setting, before its location is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InvalidSetting {
    pub field: String,
    pub message: String,
}

impl InvalidSetting {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// Parses the scenario in `text`, named `file` in messages, with the overrides `sets`
/// (`key=value`), into its points.
///
/// Errors: the first error with its location.
pub fn read(file: &str, text: &str, sets: &[String]) -> Result<Vec<SweepPoint>, ScenarioError> {
    DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let message = error.message().replace('\n', ", ");
        ScenarioError { place: format!("{file}:{}", line_of(text, at)), field: String::new(), message }
    })?;
    let mut root: Table = toml::from_str(text).map_err(|error| ScenarioError {
        place: file.to_owned(),
        field: String::new(),
        message: error.message().to_owned(),
    })?;
    for set in sets {
        let wrong = |message: String| ScenarioError { place: set_place(set), field: String::new(), message };
        let (key, value) = set.split_once('=').ok_or_else(|| wrong("must be KEY=VALUE".into()))?;
        assign(&mut root, key.trim(), set_value(value)).map_err(wrong)?;
        // A setting with an override is not swept.
        if let Some(Value::Table(sweep)) = root.get_mut("sweep") {
            sweep.retain(|swept, _| indexed(swept) != indexed(key.trim()));
        }
    }
    points(root).map_err(|wrong| {
        let place = place(file, text, sets, &wrong.field);
        ScenarioError { place, field: wrong.field, message: wrong.message }
    })
}

/// Returns the location of the setting `field` of a scenario: the override, or `file` with the
/// line, as in `incast.toml:7`.
///
/// Used for errors that are found after [`read`]; the arguments are the same as for [`read`].
pub fn place(file: &str, text: &str, sets: &[String], field: &str) -> String {
    let of_field = indexed(field);
    let is_it = |set: &&String| {
        let key = set.split_once('=').map(|(key, _)| indexed(key.trim()));
        key.is_some_and(|key| is_within(&of_field, &key) || is_within(&key, &of_field))
    };
    match (sets.iter().rev().find(is_it), DeTable::parse(text)) {
        (Some(set), _) => set_place(set),
        (None, Ok(table)) => format!("{file}:{}", line_of(text, find(table.get_ref(), field))),
        (None, Err(_)) => file.to_owned(),
    }
}

fn set_place(set: &str) -> String {
    format!("--set {}", cut(set, QUOTED_CHARS_MAX))
}

/// Returns true if the setting `inner` is `outer` or is part of it.
fn is_within(inner: &str, outer: &str) -> bool {
    inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// Parses the value of an override as TOML if possible, otherwise as text. So values with units
/// need no quotes.
fn set_value(text: &str) -> Value {
    let text = text.trim();
    match toml::from_str::<Table>(&format!("value = {text}")) {
        Ok(mut table) => table.remove("value").unwrap_or_else(|| Value::String(text.to_owned())),
        Err(_) => Value::String(text.to_owned()),
    }
}

/// Splits a path such as `workload[1].block` into its steps: names, and indices as numbers.
fn parts(path: &str) -> impl Iterator<Item = Result<&str, usize>> {
    path.split(['.', '[']).filter(|p| !p.is_empty()).map(|part| match part.strip_suffix(']') {
        Some(index) => index.parse().map_err(|_| part).map_or_else(Ok, Err),
        None => Ok(part),
    })
}

/// Sets `path` to `value`, creating tables as needed. The index of a list with one element may be
/// left out.
fn assign(root: &mut Table, path: &str, value: Value) -> Result<(), String> {
    let steps: Vec<_> = parts(path).take(STEPS_MAX + 1).collect();
    let path = cut(path, QUOTED_CHARS_MAX);
    if steps.len() > STEPS_MAX {
        return Err(format!(
            "`{path}`: more than {STEPS_MAX} steps: a setting is written as workload[0].servers"
        ));
    }
    let Some((Ok(last), way)) = steps.split_last() else {
        return Err(format!("`{path}` names no setting: write it as network.rate or workload[0].servers"));
    };
    let mut at = root;
    let mut way = way.iter().peekable();
    while let Some(step) = way.next() {
        let Ok(name) = step else { return Err(format!("`{path}`: an index follows the name of a list")) };
        let inner = at.entry((*name).to_owned()).or_insert_with(|| Value::Table(Table::new()));
        let index = match way.peek() {
            Some(Err(index)) => {
                way.next();
                *index
            }
            _ => 0,
        };
        at = match inner {
            Value::Table(table) if index == 0 => table,
            Value::Array(items) => match items.get_mut(index) {
                Some(Value::Table(table)) => table,
                _ => return Err(format!("`{path}`: there is no {name}[{index}]")),
            },
            Value::Table(_) => return Err(format!("`{path}`: there is no {name}[{index}]")),
            _ => return Err(format!("`{path}`: {name} is no table")),
        };
    }
    at.insert((*last).to_owned(), value);
    Ok(())
}

/// Returns the offset of the setting at `path` in the text, or of the innermost existing table
/// around it.
fn find(root: &DeTable<'_>, path: &str) -> usize {
    let (mut best, mut table, mut list): (_, _, Option<&DeArray<'_>>) = (0, Some(root), None);
    // A swept setting is a single key, which may contain dots.
    let swept = path.strip_prefix("sweep.").map(|key| [Ok("sweep"), Ok(key)]);
    let steps: Vec<_> = swept.map_or_else(|| parts(path).collect(), |steps| steps.to_vec());
    for part in steps {
        let next = match part {
            Ok(name) => table.and_then(|table| {
                let (key, value) = table.iter().find(|(key, _)| key.get_ref() == name)?;
                best = key.span().start;
                Some(value)
            }),
            Err(index) => match list {
                Some(items) => items.get(index).inspect(|item| best = item.span().start),
                // A single table is allowed in place of a list.
                None => continue,
            },
        };
        let Some(next) = next else { return best };
        (table, list) = match next.get_ref() {
            DeValue::Table(inner) => (Some(inner), None),
            DeValue::Array(items) => (None, Some(items)),
            _ => (None, None),
        };
    }
    best
}

/// Deserializes a table. `prefix` completes the path in errors.
fn typed<T: DeserializeOwned>(value: Value, prefix: &str) -> Result<T, InvalidSetting> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = match (prefix, path.as_str()) {
            (_, ".") => prefix.to_owned(),
            ("", path) => path.to_owned(),
            (prefix, path) => format!("{prefix}.{path}"),
        };
        let message = error.into_inner().to_string();
        // The library's location is removed, because the line in the scenario is added later.
        let message = message.split("\nin `").next().unwrap_or_default().trim().replace('\n', ", ");
        InvalidSetting::new(field, message)
    })
}

impl SystemWorkload {
    /// Returns the settings as a `T`.
    ///
    /// Errors: unknown, missing or mistyped settings. The error's path begins with `field`, the
    /// name of this workload in messages.
    pub fn settings<T: DeserializeOwned>(&self, field: &str) -> Result<T, PlanError> {
        typed(Value::Table(self.settings.clone()), field)
            .map_err(|InvalidSetting { field, message }| PlanError { field, message })
    }
}

fn points(mut root: Table) -> Result<Vec<SweepPoint>, InvalidSetting> {
    let sweep = match root.remove("sweep") {
        None => Table::new(),
        Some(Value::Table(table)) => table,
        Some(_) => {
            return Err(InvalidSetting::new("sweep", "must be a table of settings with lists of values"));
        }
    };
    let mut combinations: Vec<Vec<(String, Value)>> = vec![Vec::new()];
    for (key, values) in sweep {
        let field = format!("sweep.{key}");
        let values = match values {
            Value::Array(values) if !values.is_empty() => values,
            _ => return Err(InvalidSetting::new(field, "must be a list of at least one value")),
        };
        if combinations.len() * values.len() > POINTS_MAX {
            return Err(InvalidSetting::new(field, format!("more than {POINTS_MAX} combinations")));
        }
        let longer = |one: Vec<(String, Value)>| {
            let key = key.clone();
            values.clone().into_iter().map(move |value| {
                let mut one = one.clone();
                one.push((key.clone(), value));
                one
            })
        };
        combinations = combinations.into_iter().flat_map(longer).collect();
    }
    let point = |swept: Vec<(String, Value)>| {
        let mut table = root.clone();
        for (key, value) in &swept {
            assign(&mut table, key, value.clone())
                .map_err(|message| InvalidSetting::new(format!("sweep.{key}"), message))?;
        }
        let scenario = scenario(table).and_then(|s| s.check().map(|()| s)).map_err(|wrong| {
            // The value of a swept setting is written in the sweep, so the error is located there.
            match swept.iter().find(|(key, _)| is_within(&indexed(&wrong.field), &indexed(key))) {
                Some((key, value)) => {
                    InvalidSetting::new(format!("sweep.{key}"), format!("at {value}: {}", wrong.message))
                }
                None => wrong,
            }
        })?;
        Ok(SweepPoint { swept, scenario })
    };
    combinations.into_iter().map(point).collect()
}

/// Returns the path with the index of a one-element list added.
fn indexed(path: &str) -> String {
    match path.strip_prefix("workload.") {
        Some(rest) => format!("workload[0].{rest}"),
        None => path.to_owned(),
    }
}

fn scenario(mut root: Table) -> Result<Scenario, InvalidSetting> {
    let workloads = match root.remove("workload") {
        None => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    let mut scenario: Scenario = typed(Value::Table(root), "")?;
    scenario.workload =
        workloads.into_iter().enumerate().map(|(i, value)| workload(i, value)).collect::<Result<_, _>>()?;
    Ok(scenario)
}

/// Parses a workload by its `kind`. Not derived, because serde's tagged enums lose the location of
/// an error.
fn workload(index: usize, value: Value) -> Result<Workload, InvalidSetting> {
    let field = format!("workload[{index}]");
    let Value::Table(mut table) = value else { return Err(InvalidSetting::new(field, "must be a table")) };
    let known = || format!("one of {}, or a system", KINDS.join(", "));
    let kind = match table.remove("kind") {
        Some(Value::String(kind)) => kind,
        Some(other) => {
            return Err(InvalidSetting::new(field + ".kind", format!("{other}: must be {}", known())));
        }
        None => return Err(InvalidSetting::new(field, format!("missing `kind`: {}", known()))),
    };
    let settings = Value::Table(table);
    match kind.as_str() {
        "long" => typed(settings, &field).map(Workload::Long),
        "incast" => typed(settings, &field).map(Workload::Incast),
        "poisson" => typed(settings, &field).map(Workload::Poisson),
        "udp" => typed(settings, &field).map(Workload::Udp),
        "trace" => typed(settings, &field).map(Workload::Trace),
        "racks" => typed(settings, &field).map(Workload::Racks),
        _ => {
            let Value::Table(settings) = settings else { unreachable!("it was made of a table") };
            Ok(Workload::System(SystemWorkload { kind, settings }))
        }
    }
}

#[cfg(test)]
mod tests;
