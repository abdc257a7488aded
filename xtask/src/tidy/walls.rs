//! The table of rooms in ARCHITECTURE.md, and the allowed dependencies that it defines.
//!
//! The table lists for every room its kind and the rooms that it may use; the manifests name the
//! rooms that it does use. Read [`Table`] first, then [`check_walls`] (the table against the rules
//! of kinds) and [`check_rooms`] (the manifests against the table).

use super::{Finding, Rule};
use anyhow::Context;
use cargo_metadata::{DependencyKind, Metadata, Package};
use std::collections::BTreeMap;
use std::path::Path;

/// Path of the document with the table.
pub(super) const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// Prefix of the package names of rooms.
pub(super) const PREFIX: &str = "anabranch-";

/// The kinds of room that the table may name.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Pure,
    Network,
    Proto,
    Driver,
    Service,
    Top,
    Tool,
}

impl Kind {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "pure" => Self::Pure,
            "network" => Self::Network,
            "proto" => Self::Proto,
            "driver" => Self::Driver,
            "service" => Self::Service,
            "top" => Self::Top,
            "tool" => Self::Tool,
            _ => return None,
        })
    }
    /// Returns whether rooms of this kind may read clocks, files and sockets.
    pub(super) fn meets_the_machine(self) -> bool {
        matches!(self, Self::Driver | Self::Service | Self::Top | Self::Tool)
    }
}

/// A row of the table of rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) line: usize,
    pub(super) kind: Kind,
    pub(super) may_use: Vec<String>,
}

/// Table of rooms in ARCHITECTURE.md: the table whose header has the columns `room`, `kind` and
/// `may use`.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<String, Row>,
}

impl Table {
    pub(super) fn parse(text: &str) -> (Self, Vec<Finding>) {
        let (mut table, mut findings) = (Self::default(), Vec::new());
        let mut bad = |line: usize, message: String| {
            findings.push(Finding::new(ARCHITECTURE, line, Rule::Table, message));
        };
        for (line, [room, kind, may_use]) in table_rows(text, ["room", "kind", "may use"]) {
            let names = backticked(room);
            let [name] = names.as_slice() else {
                bad(line, format!("`{room}` is not one room's name in backticks"));
                continue;
            };
            let Some(kind) = Kind::parse(kind) else {
                let kinds = "pure, network, proto, driver, service, top or tool";
                bad(line, format!("kind `{kind}`: must be {kinds}"));
                continue;
            };
            let row = Row { line, kind, may_use: backticked(may_use) };
            if table.rows.insert(name.clone(), row).is_some() {
                bad(line, format!("room `{name}` has two rows: keep one"));
            }
        }
        if table.rows.is_empty() {
            bad(1, "no table with the columns `room`, `kind` and `may use`".to_owned());
        }
        let unknown = table.rows.values().flat_map(|row| row.may_use.iter().map(|used| (row.line, used)));
        let unknown: Vec<_> = unknown.filter(|(_, used)| !table.rows.contains_key(*used)).collect();
        findings.extend(unknown.into_iter().map(|(line, used)| {
            Finding::new(ARCHITECTURE, line, Rule::Table, format!("`{used}` has no row of its own"))
        }));
        (table, findings)
    }
}

/// Rows of all Markdown tables that have the columns `names`: the line of each row, and its cells
/// in these columns.
pub(super) fn table_rows<'a, const N: usize>(text: &'a str, names: [&str; N]) -> Vec<(usize, [&'a str; N])> {
    let mut columns: Option<[usize; N]> = None;
    let mut rows = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let Some(inner) = line.trim().strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
            columns = None;
            continue;
        };
        let cells: Vec<&str> = inner.split('|').map(str::trim).collect();
        if let Some(columns) = columns {
            let is_rule = cells.iter().all(|c| !c.is_empty() && c.chars().all(|c| matches!(c, '-' | ':')));
            if !is_rule {
                rows.push((i + 1, columns.map(|at| cells.get(at).copied().unwrap_or(""))));
            }
        } else if names.iter().all(|name| cells.contains(name)) {
            columns = Some(names.map(|name| cells.iter().position(|c| *c == name).unwrap_or(usize::MAX)));
        }
    }
    rows
}

/// The names in backticks.
pub(super) fn backticked(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A room as cargo sees it.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub(super) name: String,
    /// Path of the room's manifest, relative to the repository's root.
    pub(super) manifest: String,
    /// Rooms that the room uses, each with its line in the manifest; dev-dependencies are left out.
    pub(super) uses: Vec<(String, usize)>,
    /// All dependencies, rooms included; dev-dependencies are left out.
    pub(super) dependencies: Vec<Dependency>,
}

/// Dependency of a room.
#[derive(Clone, Debug)]
pub(super) struct Dependency {
    pub(super) package: String,
    /// Name of the crate in code.
    pub(super) word: String,
    /// The dependency's line in the manifest.
    pub(super) line: usize,
    pub(super) is_room: bool,
}

pub(super) fn rooms(metadata: &Metadata, root: &Path) -> anyhow::Result<Vec<Room>> {
    let room = |package: &str| package.strip_prefix(PREFIX).unwrap_or(package).to_owned();
    let members = metadata.workspace_packages();
    let names: Vec<&str> = members.iter().map(|p| p.name.as_str()).collect();
    // A library may have another name than its package; `rustls-webpki` is an example.
    let word = |package: &str| {
        let of = metadata.packages.iter().find(|p| p.name.as_str() == package);
        let library = of.and_then(|p| p.targets.iter().find(|t| t.is_lib() || t.is_proc_macro()));
        library.map_or(package, |target| target.name.as_str()).replace('-', "_")
    };
    let of = |package: &&Package| {
        let path = package.manifest_path.as_std_path();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let wanted = package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development);
        let dependencies: Vec<Dependency> = wanted
            .map(|d| Dependency {
                package: d.name.clone(),
                word: d.rename.as_ref().map_or_else(|| word(&d.name), |name| name.replace('-', "_")),
                line: line_of(&text, &d.name),
                is_room: names.contains(&d.name.as_str()),
            })
            .collect();
        let uses = dependencies.iter().filter(|d| d.is_room).map(|d| (room(&d.package), d.line)).collect();
        let relative = path.strip_prefix(root).unwrap_or(path).display().to_string();
        Ok(Room { name: room(&package.name), manifest: relative, uses, dependencies })
    };
    members.iter().map(of).collect()
}

/// The line of a manifest that names a dependency, outside its dev-dependencies; 1 if no line does.
pub(super) fn line_of(manifest: &str, package: &str) -> usize {
    let mut in_dev = false;
    for (i, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            in_dev = line.contains("dev-dependencies");
        }
        let rest = line.trim_start().strip_prefix(package);
        if !in_dev && rest.is_some_and(|r| r.starts_with(['.', ' ', '='])) {
            return i + 1;
        }
    }
    1
}

/// Checks the table against the rules of kinds: a proto uses no proto or driver, a service only the
/// proto of its name.
pub(super) fn check_walls(table: &Table) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, row) in &table.rows {
        for used in &row.may_use {
            let Some(other) = table.rows.get(used) else { continue };
            if let Some(message) = wall(name, row.kind, used, other.kind) {
                findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Wall, message));
            }
        }
    }
    findings
}

pub(super) fn wall(name: &str, kind: Kind, used: &str, other: Kind) -> Option<String> {
    match (kind, other) {
        (Kind::Proto, Kind::Driver) => {
            Some(format!("proto `{name}` uses driver `{used}`: return a machine and let the driver take it"))
        }
        (Kind::Proto, Kind::Proto) => {
            Some(format!("proto `{name}` uses proto `{used}`: move what they share into a room below"))
        }
        (Kind::Driver, Kind::Proto) => {
            Some(format!("driver `{name}` uses proto `{used}`: take any machine, and join them in a service"))
        }
        (Kind::Service, Kind::Service) => {
            Some(format!("service `{name}` uses service `{used}`: move what they share into a room below"))
        }
        (Kind::Service, Kind::Proto) if used.strip_suffix("-proto") != Some(name) => {
            Some(format!("service `{name}` uses proto `{used}`: its own is `{name}-proto`, and no other"))
        }
        (Kind::Pure, Kind::Network | Kind::Proto | Kind::Driver | Kind::Service | Kind::Top | Kind::Tool)
        | (Kind::Network, Kind::Proto | Kind::Driver | Kind::Service | Kind::Top | Kind::Tool)
        | (Kind::Proto | Kind::Driver, Kind::Service | Kind::Top | Kind::Tool)
        | (Kind::Service, Kind::Top | Kind::Tool) => {
            Some(format!("`{name}` uses `{used}`, which stands above it: arrows go down only"))
        }
        _ => None,
    }
}

/// Checks the rooms and their dependencies against the table.
pub(super) fn check_rooms(table: &Table, rooms: &[Room]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for room in rooms {
        let Some(row) = table.rows.get(&room.name) else {
            let message = format!("room `{}` has no row in {ARCHITECTURE}'s table: add one", room.name);
            findings.push(Finding::new(&room.manifest, 1, Rule::Table, message));
            continue;
        };
        for (used, line) in &room.uses {
            if !row.may_use.contains(used) {
                let message = format!(
                    "`{}` may not use `{used}`: {ARCHITECTURE}:{} allows it {}",
                    room.name,
                    row.line,
                    if row.may_use.is_empty() { "no room".to_owned() } else { row.may_use.join(", ") }
                );
                findings.push(Finding::new(&room.manifest, *line, Rule::Edge, message));
            }
            let other = table.rows.get(used).map(|r| r.kind);
            if let Some(message) = other.and_then(|other| wall(&room.name, row.kind, used, other)) {
                findings.push(Finding::new(&room.manifest, *line, Rule::Wall, message));
            }
        }
    }
    for (name, row) in &table.rows {
        if let Some(room) = rooms.iter().find(|r| r.name == *name) {
            let unused =
                row.may_use.iter().filter(|granted| !room.uses.iter().any(|(used, _)| used == *granted));
            findings.extend(unused.map(|granted| {
                let message = format!("`{name}` does not use `{granted}`: take the grant out of the row");
                Finding::new(ARCHITECTURE, row.line, Rule::Grant, message)
            }));
        } else {
            let message = format!("room `{name}` is not in the workspace: move its row to the planned rooms");
            findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Table, message));
        }
    }
    findings
}
