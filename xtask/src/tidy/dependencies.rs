//! Manifests against code: the room's code names every dependency, and ARCHITECTURE.md lists every
//! third-party crate of a pure, network or proto room.
//!
//! The list is a table of ARCHITECTURE.md, next to the table of rooms. So all dependencies of a
//! room are in one document, with a reason for each crate. Leaves out: dev-dependencies, which are
//! free, and dependencies of dependencies. Read [`check_named`] and [`Crates`] first.

use super::code::{code_only, without_tests};
use super::walls::{ARCHITECTURE, Room, Table, backticked, table_rows};
use super::{Finding, Rule};
use std::collections::BTreeMap;

/// Dependencies that no line has to name: room, package, and reason.
const UNNAMED: [(&str, &str, &str); 0] = [];

/// Crates that meet the machine by themselves, and runtimes. No room below the drivers may have
/// them, for any reason.
const MACHINES: [&str; 9] =
    ["libc", "rustix", "nix", "mio", "socket2", "tokio", "async-std", "smol", "signal-hook"];

/// Finds dependencies that no line of their room names. `sources` are all Rust files, by path.
pub(super) fn check_named(rooms: &[Room], sources: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for room in rooms {
        let Some(folder) = room.manifest.strip_suffix("Cargo.toml") else { continue };
        // A dependency that only tests name must be a dev-dependency, so tests do not count here.
        let of_room = sources.iter().filter(|(path, _)| {
            let inside = path.strip_prefix(folder).filter(|inside| !inside.starts_with("tests/"));
            inside.is_some_and(|inside| !inside.split('/').any(|part| part == "tests" || part == "tests.rs"))
        });
        let code: Vec<String> = of_room.map(|(_, text)| without_tests(&code_only(text))).collect();
        for dependency in &room.dependencies {
            let listed = UNNAMED.iter().any(|(r, p, _)| *r == room.name && *p == dependency.package);
            if !listed && !code.iter().any(|code| names(code, &dependency.word)) {
                let message = format!(
                    "`{}`: no line of `{}` names `{}` (tests aside): take it out, or make it a dev-dependency",
                    dependency.package, room.name, dependency.word
                );
                findings.push(Finding::new(&room.manifest, dependency.line, Rule::Unnamed, message));
            }
        }
    }
    findings
}

/// Returns whether code names a crate: as the first part of a path, or in a `use` or `extern
/// crate`.
fn names(code: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (code[..at].trim_end(), &code[at + word.len()..]);
        let whole = !code[..at].ends_with(is_word) && !after.starts_with(is_word);
        let begins = !before.ends_with("::");
        let leads = after.trim_start().starts_with("::");
        let imported = ["use", "crate"].iter().any(|w| before.ends_with(w));
        whole && begins && (leads || imported)
    })
}

/// A row of the table of third-party crates.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    used_by: Vec<String>,
}

/// Table of third-party crates in ARCHITECTURE.md: the table whose header has the columns `crate`
/// and `used by`.
#[derive(Debug, Default)]
pub(super) struct Crates {
    rows: BTreeMap<String, Row>,
}

impl Crates {
    /// Reads the table.
    pub(super) fn parse(text: &str) -> Self {
        let mut rows = BTreeMap::new();
        for (line, [names, used_by]) in table_rows(text, ["crate", "used by"]) {
            let used_by = backticked(used_by);
            rows.extend(
                backticked(names).into_iter().map(|name| (name, Row { line, used_by: used_by.clone() })),
            );
        }
        Self { rows }
    }

    /// Finds crates of pure, network and proto rooms that are not in the table, and rows whose
    /// dependency is in no manifest.
    pub(super) fn check(&self, table: &Table, rooms: &[Room]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for room in rooms {
            if table.rows.get(&room.name).is_none_or(|row| row.kind.meets_the_machine()) {
                continue;
            }
            for dependency in room.dependencies.iter().filter(|d| !d.is_room) {
                let row = self.rows.get(&dependency.package);
                if !row.is_some_and(|row| row.used_by.contains(&room.name)) {
                    let message = format!(
                        "`{}` is not among the crates that {ARCHITECTURE} lets `{}` use: do without, or add it there with a reason",
                        dependency.package, room.name
                    );
                    findings.push(Finding::new(&room.manifest, dependency.line, Rule::Crate, message));
                }
            }
        }
        for (name, row) in &self.rows {
            if MACHINES.contains(&name.as_str()) {
                let message =
                    format!("`{name}` meets the machine: only drivers and what stands above may use it");
                findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Crate, message));
            }
            for user in &row.used_by {
                let of_user = rooms.iter().find(|room| room.name == *user);
                if !of_user.is_some_and(|room| room.dependencies.iter().any(|d| d.package == *name)) {
                    let message = format!("`{user}` does not depend on `{name}`: take it out of the row");
                    findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Crate, message));
                }
                if table.rows.get(user).is_some_and(|row| row.kind.meets_the_machine()) {
                    let message = format!("`{user}` may use any crate: take it out of the row");
                    findings.push(Finding::new(ARCHITECTURE, row.line, Rule::Crate, message));
                }
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::super::walls::Dependency;
    use super::*;

    fn room(name: &str, packages: &[&str]) -> Room {
        let of = |(i, package): (usize, &&str)| Dependency {
            package: (*package).to_owned(),
            word: package.replace('-', "_"),
            line: 10 + i,
            is_room: package.starts_with("anabranch-"),
        };
        let dependencies = packages.iter().enumerate().map(of).collect();
        Room {
            name: name.into(),
            manifest: format!("crates/{name}/Cargo.toml"),
            uses: Vec::new(),
            dependencies,
        }
    }

    fn lines(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.rule.name())).collect()
    }

    fn named(path: &str, text: &str) -> bool {
        let sources = BTreeMap::from([(path.to_owned(), text.to_owned())]);
        check_named(&[room("graph", &["serde-json"])], &sources).is_empty()
    }

    #[test]
    fn dependency_is_named_where_a_path_begins_with_it() {
        let path = "crates/graph/src/a.rs";
        for good in [
            "use serde_json::Value;",
            "use serde_json as json;",
            "use serde_json;",
            "fn f() { serde_json::to_string(&1) }",
            "use {std::fmt, serde_json::Value};",
            "#[derive(serde_json::Like)]\nstruct A;",
        ] {
            assert!(named(path, good), "{good}");
        }
        for bad in [
            "",
            "// serde_json::Value",
            "const A: &str = \"serde_json::x\";",
            "use my_serde_json::A;",
            "use a::serde_json::B;",
            "let serde_json = 1;",
            "#[cfg(test)]\nmod tests { use serde_json::Value; }",
        ] {
            assert!(!named(path, bad), "{bad}");
        }
        assert!(named("crates/graph/build.rs", "use serde_json::Value;"));
        for bad in
            ["crates/graph/tests/it/main.rs", "crates/graph/src/a/tests.rs", "crates/graphs/src/lib.rs"]
        {
            assert!(!named(bad, "use serde_json::Value;"), "{bad}");
        }
    }

    #[test]
    fn crates_below_the_drivers_come_from_the_list() {
        let text = "| room | kind | may use |\n| --- | --- | --- |\n| `units` | pure | – |\n| `net` | driver | `units` |\n\n\
                    | crate | used by | what for |\n| --- | --- | --- |\n| `serde`, `toml` | `units` | texts |\n";
        let (table, findings) = Table::parse(text);
        assert_eq!(findings, []);
        let of = |text: &str, rooms: &[Room]| lines(&Crates::parse(text).check(&table, rooms));
        let net = room("net", &["anabranch-units", "tokio"]);
        assert!(of(text, &[room("units", &["serde", "toml"]), net.clone()]).is_empty());
        let more = room("units", &["serde", "toml", "smallvec"]);
        assert_eq!(of(text, &[more, net.clone()]), ["crates/units/Cargo.toml:12: crate"]);
        // A row without a dependency in a manifest, and a row for a room that is free to choose.
        assert_eq!(of(text, &[room("units", &["serde"]), net.clone()]), ["ARCHITECTURE.md:8: crate"]);
        let free = text.replace("| `units` | texts", "| `net` | texts").replace("`serde`, `toml`", "`tokio`");
        assert_eq!(of(&free, &[room("units", &[]), net]), ["ARCHITECTURE.md:8: crate"; 2]);
    }
}
