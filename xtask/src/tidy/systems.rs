//! Systems: the count of files that a further system touches, and rooms below the services that
//! name none.
//!
//! CONTRIBUTING.md lists the files. Each of them names every system. Leaves out: uses of a system
//! (benches, experiments, documents). Read [`check`] first.

use super::code::{code_only, without_tests};
use super::walls::{Kind, Table};
use super::{Finding, Rule};
use std::collections::BTreeMap;

/// The document with the list.
pub(super) const CONTRIBUTING: &str = "CONTRIBUTING.md";

/// Beginning of the line before the list.
const BEGINS: &str = "Beyond its rooms and its verb, a system touches these files";

/// Maximum number of files outside its rooms that a further system touches.
const FILES_MAX: usize = 9;

/// The files of the list, each with its line.
fn files(contributing: &str) -> Vec<(&str, usize)> {
    let lines = (1..).zip(contributing.lines()).skip_while(|(_, line)| !line.starts_with(BEGINS));
    let list = lines.skip(1).skip_while(|(_, line)| line.is_empty());
    let list = list.map_while(|(number, line)| Some((line.strip_prefix("- `")?.split('`').next()?, number)));
    list.collect()
}

/// Returns whether rooms of this kind are below the systems.
const fn is_below_services(kind: Kind) -> bool {
    matches!(kind, Kind::Pure | Kind::Network | Kind::Driver)
}

/// Returns whether `text` contains `word` as a word, in any case.
fn has_word(text: &str, word: &str) -> bool {
    text.to_lowercase().split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word)
}

/// Checks the list of files, and the names in rooms below the services. `read` reads a file by its
/// path.
pub(super) fn check(
    table: &Table,
    contributing: &str,
    sources: &BTreeMap<String, String>,
    read: &dyn Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let systems: Vec<&str> = table
        .rows
        .iter()
        .filter(|(_, row)| row.kind == Kind::Service)
        .map(|(room, _)| room.as_str())
        .collect();
    let files = files(contributing);
    if files.is_empty() || files.len() > FILES_MAX {
        let line = files.last().map_or(1, |(_, line)| *line);
        let message = format!("a further system touches {} files: must be 1 to {FILES_MAX}", files.len());
        findings.push(Finding::new(CONTRIBUTING, line, Rule::Systems, message));
    }
    for (path, line) in files {
        let text = read(path).unwrap_or_default();
        for system in systems.iter().filter(|system| !has_word(&text, system)) {
            let message =
                format!("`{path}` does not name `{system}`: take the file out, or name the system there");
            findings.push(Finding::new(CONTRIBUTING, line, Rule::Systems, message));
        }
    }
    for (path, text) in sources {
        let room = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let is_test = path.split('/').any(|part| matches!(part, "tests" | "tests.rs"));
        if is_test
            || !room.and_then(|(room, _)| table.rows.get(room)).is_some_and(|row| is_below_services(row.kind))
        {
            continue;
        }
        let code = without_tests(&code_only(text));
        let allowed = format!("tidy-allow: {}", Rule::Systems.name());
        let lines = (1..).zip(code.lines().zip(text.lines()));
        for (number, (code, text)) in lines.filter(|(_, (_, text))| !text.contains(&allowed)) {
            for system in systems.iter().filter(|system| names(code, text, system)) {
                let message = format!("names the system `{system}`: let the system bring it as data");
                findings.push(Finding::new(path, number, Rule::Systems, message));
            }
        }
    }
    findings
}

/// Returns whether a line has the system's word as a literal, or as the name of a type or variant.
/// `code` is `text` without comments and literals.
fn names(code: &str, text: &str, system: &str) -> bool {
    let name = system[..1].to_uppercase() + &system[1..];
    let is_name = |part: &str| part == name;
    let is_literal = !code.trim().is_empty() && text.contains(&format!("\"{system}\""));
    is_literal || code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| room | kind | what it holds | may use |\n| --- | --- | --- | --- |\n\
        | `net` | driver | sockets | – |\n| `haul` | service | hauls | `net` |\n";

    fn found(list: &[&str], net: &str) -> Vec<String> {
        let (table, _) = Table::parse(TABLE);
        let list: String = list.iter().map(|path| format!("- `{path}`: why\n")).collect();
        let contributing = format!("{BEGINS}:\n\n{list}\nMore.\n");
        let sources = BTreeMap::from([("crates/net/src/keys.rs".to_owned(), net.to_owned())]);
        let read =
            |path: &str| Some(if path == "other" { String::new() } else { "anabranch-haul = 1".to_owned() });
        let findings = check(&table, &contributing, &sources, &read);
        findings.iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
    }

    #[test]
    fn system_is_named_in_at_most_nine_files() {
        assert!(found(&["a"; 9], "").is_empty());
        assert_eq!(found(&["a"; 10], ""), ["CONTRIBUTING.md:12"]);
        assert_eq!(found(&[], ""), ["CONTRIBUTING.md:1"]);
        assert_eq!(found(&["a", "other"], ""), ["CONTRIBUTING.md:4"]);
    }

    #[test]
    fn a_driver_names_no_system_outside_its_tests() {
        for code in ["let x = \"haul\";", "match x { System::Haul => 1 }"] {
            assert_eq!(found(&["a"], code), ["crates/net/src/keys.rs:1"], "{code}");
        }
        for code in
            ["// \"haul\"", "fn haul() {}", "let x = \"hauls\";", "#[cfg(test)]\nmod tests { use Haul; }"]
        {
            assert!(found(&["a"], code).is_empty(), "{code}");
        }
    }
}
