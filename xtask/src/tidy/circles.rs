//! Files of one room that use one another in a ring.
//!
//! A file uses another if its code names an item that the other defines: by `crate::…`, `super::…`,
//! `self::…`, or through one of its child modules (`child::…`); or if it calls a macro that the
//! other defines. Re-exports are followed to the file that defines the item. Two things do not
//! count:
//!
//! - a file that uses items of its parents, as `coordinator/progress.rs` uses `coordinator.rs`:
//!   they are one piece of code that is split for the reader; the parent's use of its parts does
//!   count;
//! - code under `#[cfg(test)]`.
//!
//! A line that says `tidy-allow: circle` and why is left out: a trait and its argument are a valid
//! reason. Leaves out: modules within a file, items that macros generate, and method calls (a
//! method is called without naming its file). Read [`check`] first.

use super::code::{code_only, without_tests};
use super::{Finding, Rule};
use std::collections::{BTreeMap, BTreeSet};

/// Re-exports of re-exports that are followed.
const FOLLOWED_MAX: usize = 8;

/// A module's name from the room's root, part by part; the root is empty.
type Name = Vec<String>;

/// Name of a file's module in its room: `crates/graph/src/file/toml.rs` is `file::toml` of
/// `crates/graph`. `None` for other files, and for a program next to a library, which uses the
/// library as any other room does.
fn place(path: &str, paths: &BTreeMap<String, String>) -> Option<(String, Name)> {
    let (room, inside) = path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    if inside == "main" && paths.contains_key(&format!("{room}/src/lib.rs")) || inside.starts_with("bin/") {
        return None;
    }
    let mut parts: Vec<String> = inside.split('/').map(str::to_owned).collect();
    if parts.iter().any(|part| part == "tests") {
        return None;
    }
    let last = parts.last()?;
    if last == "mod" || parts.len() == 1 && (last == "lib" || last == "main") {
        parts.pop();
    }
    Some((room.to_owned(), parts))
}

/// Finds the rings among all files (`texts`, by path).
pub(super) fn check(texts: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut rooms: BTreeMap<String, BTreeMap<Name, Module>> = BTreeMap::new();
    for (path, text) in texts {
        if let Some((room, name)) = place(path, texts) {
            rooms.entry(room).or_default().insert(name, Module::read(path, text));
        }
    }
    rooms.values().flat_map(check_room).collect()
}

/// One parsed file.
#[derive(Debug, Default)]
struct Module {
    path: String,
    /// Paths in the file's code as they are written, each with its line.
    named: Vec<(Vec<String>, usize)>,
    /// Paths of imported items that another file may define, by the name that this file uses.
    imports: BTreeMap<String, Vec<String>>,
    /// Modules that are imported with `*`.
    globs: Vec<Vec<String>>,
    defines: BTreeSet<String>,
    /// Macros that the file calls by their bare names, each with the line of its first call.
    calls: BTreeMap<String, usize>,
}

/// A token of code that matters for paths.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `::`
    Path,
    Other(char),
}

/// The tokens of code, with their lines.
fn tokens(code: &str) -> Vec<(Token, usize)> {
    let mut found = Vec::new();
    for (i, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = if is_word(c) {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                found.push((Token::Word(rest[..end].to_owned()), i + 1));
                end
            } else if rest.starts_with("::") {
                found.push((Token::Path, i + 1));
                2
            } else {
                if !c.is_whitespace() {
                    found.push((Token::Other(c), i + 1));
                }
                c.len_utf8()
            };
            rest = &rest[length..];
        }
    }
    found
}

/// A path of a use tree, the name under which it is imported (`*` for all names), and its line.
type Leaf = (Vec<String>, String, usize);

/// Reads the use tree that begins at `at`, after the path `before`; returns the position of its
/// end.
fn tree(tokens: &[(Token, usize)], mut at: usize, before: &[String], leaves: &mut Vec<Leaf>) -> usize {
    let mut path = before.to_vec();
    while let Some((token, line)) = tokens.get(at) {
        match token {
            Token::Word(word) => {
                path.push(word.clone());
                at += 1;
                if matches!(tokens.get(at), Some((Token::Path, _))) {
                    at += 1;
                    continue;
                }
                let mut name = word.clone();
                if let [(Token::Word(word), _), (Token::Word(other), _), ..] = &tokens[at..]
                    && word == "as"
                {
                    name.clone_from(other);
                    at += 2;
                }
                if name == "self" {
                    path.pop();
                    name = path.last().cloned().unwrap_or_default();
                }
                leaves.push((path, name, *line));
                return at;
            }
            Token::Other('*') => {
                leaves.push((path, "*".to_owned(), *line));
                return at + 1;
            }
            Token::Other('{') => {
                at += 1;
                while !matches!(tokens.get(at), None | Some((Token::Other('}'), _))) {
                    let next = tree(tokens, at, &path, leaves);
                    at = next.max(at + 1);
                    if matches!(tokens.get(at), Some((Token::Other(','), _))) {
                        at += 1;
                    }
                }
                return at + 1;
            }
            // In `collect::<Vec<_>>` the path ends before the `<`.
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                leaves.push((path, name, *line));
                return at;
            }
        }
    }
    at
}

impl Module {
    fn read(path: &str, text: &str) -> Self {
        let mut module = Self { path: path.to_owned(), ..Self::default() };
        let code = without_tests(&code_only(text));
        let allowed = format!("tidy-allow: {}", Rule::Circle.name());
        let lines: Vec<&str> = text.lines().collect();
        let tokens = tokens(&code);
        let mut at = 0;
        while let Some((token, _)) = tokens.get(at) {
            let Token::Word(word) = token else {
                at += 1;
                continue;
            };
            let before = at.checked_sub(1).map(|i| &tokens[i].0);
            match word.as_str() {
                "use" => {
                    let mut leaves = Vec::new();
                    at = tree(&tokens, at + 1, &[], &mut leaves);
                    for (path, name, line) in leaves {
                        if name == "*" {
                            module.globs.push(path.clone());
                        } else {
                            module.imports.insert(name, path.clone());
                        }
                        module.named.push((path, line));
                    }
                    continue;
                }
                "macro_rules" => {
                    if let Some((Token::Word(name), _)) = tokens.get(at + 2) {
                        module.defines.insert(format!("{name}!"));
                    }
                    at += 2;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" => {
                    if let Some((Token::Word(name), _)) = tokens.get(at + 1) {
                        module.defines.insert(name.clone());
                    }
                }
                _ if before != Some(&Token::Path) && matches!(tokens.get(at + 1), Some((Token::Path, _))) => {
                    let mut leaves = Vec::new();
                    at = tree(&tokens, at, &[], &mut leaves);
                    module.named.extend(leaves.into_iter().map(|(path, _, line)| (path, line)));
                    continue;
                }
                _ => {
                    let after = [at + 1, at + 2].map(|i| tokens.get(i).map(|(token, _)| token));
                    let is_call =
                        matches!(after, [Some(Token::Other('!')), Some(Token::Other('(' | '[' | '{'))]);
                    if is_call && before != Some(&Token::Path) {
                        module.calls.entry(word.clone()).or_insert(tokens[at].1);
                    }
                }
            }
            at += 1;
        }
        module.calls.retain(|_, line| !lines.get(*line - 1).is_some_and(|l| l.contains(&allowed)));
        module.named.retain(|(_, line)| !lines.get(line - 1).is_some_and(|l| l.contains(&allowed)));
        module
    }
}

/// The file that defines the item that `path` names in the module `from`; `None` for items of other
/// rooms.
fn defined_in(room: &BTreeMap<Name, Module>, from: &Name, path: &[String], followed: usize) -> Option<Name> {
    let mut at = from.clone();
    for (i, part) in path.iter().enumerate() {
        match part.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()?),
            _ => {
                let mut child = at.clone();
                child.push(part.clone());
                if room.contains_key(&child) {
                    at = child;
                    continue;
                }
                let module = room.get(&at)?;
                let rest = &path[i + 1..];
                if module.defines.contains(part) || module.defines.contains(&format!("{part}!")) {
                    return Some(at);
                }
                if let Some(import) = module.imports.get(part) {
                    // The module imports this name, so the search continues with the imported path.
                    let whole = [import.as_slice(), rest].concat();
                    return (followed < FOLLOWED_MAX)
                        .then(|| defined_in(room, &at, &whole, followed + 1))
                        .flatten();
                }
                for glob in module.globs.iter().filter(|_| followed < FOLLOWED_MAX) {
                    let target = defined_in(room, &at, glob, followed + 1);
                    if let Some(target) = target.filter(|target| *target != at)
                        && room[&target].defines.contains(part)
                    {
                        return Some(target);
                    }
                }
                // A path whose first name is unknown in this module belongs to another crate.
                return (i > 0).then_some(at);
            }
        }
    }
    Some(at)
}

/// Uses between files, with the first line that names the used file.
fn uses(room: &BTreeMap<Name, Module>) -> BTreeMap<&Name, BTreeMap<Name, usize>> {
    let mut uses: BTreeMap<&Name, BTreeMap<Name, usize>> = BTreeMap::new();
    for (name, module) in room {
        let of = uses.entry(name).or_default();
        for (path, line) in &module.named {
            if let Some(used) = defined_in(room, name, path, 0).filter(|used| !name.starts_with(used)) {
                of.entry(used).or_insert(*line);
            }
        }
        for (call, line) in &module.calls {
            let call = format!("{call}!");
            // The scope of a macro's bare name is the text after its definition, other files of the
            // room included.
            if module.defines.contains(&call) || module.imports.contains_key(call.trim_end_matches('!')) {
                continue;
            }
            let defines = room.iter().find(|(_, other)| other.defines.contains(&call)).map(|(name, _)| name);
            if let Some(used) = defines.filter(|used| !name.starts_with(used)) {
                of.entry(used.clone()).or_insert(*line);
            }
        }
    }
    uses
}

fn check_room(room: &BTreeMap<Name, Module>) -> Vec<Finding> {
    let mut uses = uses(room);
    let mut findings = Vec::new();
    // Reports the shortest ring through every file in turn; a reported ring is then broken up, so
    // that it is reported once.
    for name in room.keys() {
        while let Some(ring) = ring(&uses, name) {
            let line = uses[ring[0]][ring[1 % ring.len()]];
            let said =
                ring.iter().skip(1).map(|n| format!("`{}`", n.last().map_or("the root", String::as_str)));
            let said: Vec<String> = said.collect();
            let message = format!(
                "uses {}, which leads back here: move what they share into a file below both",
                said.join(", which uses ")
            );
            findings.push(Finding::new(&room[ring[0]].path, line, Rule::Circle, message));
            let (from, to) = (ring[0].clone(), ring[1 % ring.len()].clone());
            if let Some(of) = uses.get_mut(&from) {
                of.remove(&to);
            }
        }
    }
    findings
}

/// The shortest ring that begins at `start`.
fn ring<'a>(uses: &BTreeMap<&'a Name, BTreeMap<Name, usize>>, start: &Name) -> Option<Vec<&'a Name>> {
    let (start, _) = uses.get_key_value(start)?;
    let mut before: BTreeMap<&Name, &Name> = BTreeMap::new();
    let mut waiting = std::collections::VecDeque::from([*start]);
    while let Some(at) = waiting.pop_front() {
        for next in uses[at].keys() {
            let Some((next, _)) = uses.get_key_value(next) else { continue };
            if next == start {
                let mut ring = vec![at];
                while let Some(from) = before.get(ring[ring.len() - 1]) {
                    ring.push(from);
                }
                ring.reverse();
                return Some(ring);
            }
            if !before.contains_key(next) {
                before.insert(next, at);
                waiting.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rings among the files of one room, as `path:line` and the files of the ring.
    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), (*text).to_owned()));
        let findings = check(&texts.collect());
        findings.iter().map(|f| format!("{}:{}", f.path.rsplit('/').next().unwrap_or(""), f.line)).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod x;\nmod y;\npub use x::X;\npub use y::Y;\n");

    #[test]
    fn two_files_that_use_each_other_are_a_ring() {
        let y = ("y.rs", "use crate::x::X;\npub struct Y;");
        for x in [
            "pub struct X;\nuse crate::y::Y;",
            "pub struct X;\nuse super::y::Y;",
            "pub struct X;\nuse super::{std, y::{self, Y}};",
            "pub struct X;\nuse crate::Y;",
            "pub struct X;\nuse crate::y;",
            "pub struct X;\nfn f() { crate::y::Y::new() }",
            "pub struct X;\nfn f(_: Vec<super::Y>) {}",
        ] {
            assert_eq!(of(&[LIB, ("x.rs", x), y]), ["x.rs:2"], "{x}");
        }
        for x in [
            "pub struct X;",
            "pub struct X;\n// use crate::y::Y;",
            "pub struct X;\nuse other::y::Y;",
            "pub struct X;\nuse crate::y::Y; // tidy-allow: circle, a trait and its argument",
            "pub struct X;\n#[cfg(test)]\nmod tests { use crate::y::Y; }",
        ] {
            assert!(of(&[LIB, ("x.rs", x), y]).is_empty(), "{x}");
        }
    }

    #[test]
    fn a_macro_of_another_file_counts_as_a_use() {
        let y =
            ("y.rs", "use crate::x::X;\nmacro_rules! make { () => {} }\npub(crate) use make;\npub struct Y;");
        for x in [
            "pub struct X;\nmake!();",
            "pub struct X;\nuse crate::y::make;",
            "pub struct X;\ncrate::y::make! {}",
        ] {
            assert_eq!(of(&[LIB, ("x.rs", x), y]), ["x.rs:2"], "{x}");
        }
        for x in ["pub struct X;\nother!();", "macro_rules! make { () => {} }\nmake!();\npub struct X;"] {
            assert!(of(&[LIB, ("x.rs", x), y]).is_empty(), "{x}");
        }
        // A name in a macro's body is a use by the file that defines the macro.
        let y = ("y.rs", "macro_rules! make { () => { $crate::x::X::new() } }\npub struct Y;");
        assert_eq!(of(&[LIB, ("x.rs", "pub struct X;\nfn f() { make!() }"), y]), ["x.rs:2"]);
    }

    #[test]
    fn ring_of_three_files_is_reported_once() {
        let files =
            [("x.rs", "use crate::y::Y;"), ("y.rs", "use crate::z::Z;"), ("z.rs", "use crate::x::X;"), LIB];
        assert_eq!(of(&files), ["x.rs:1"]);
    }

    #[test]
    fn re_exports_resolve_to_the_defining_file() {
        // `x` imports `Y` from the root, by its name or by a glob.
        for root in ["mod x;\nmod y;\npub use y::Y as Other;", "mod x;\nmod y;\npub use y::*;"] {
            let used = if root.contains("Other") { "use crate::Other;" } else { "use crate::Y;" };
            let files = [("lib.rs", root), ("x.rs", used), ("y.rs", "use super::x::X;\npub struct Y;")];
            assert_eq!(of(&files), ["x.rs:1"], "{root}");
        }
    }

    #[test]
    fn file_and_its_parts_form_no_ring() {
        let parent = ("x.rs", "mod part;\npub struct X;\nuse part::Part;");
        let part = ("x/part.rs", "use super::X;\nuse crate::Root;\npub struct Part;");
        let root = ("lib.rs", "mod x;\npub struct Root;\nuse x::X;");
        assert!(of(&[root, parent, part]).is_empty());
        let back = ("y.rs", "use crate::x::X;\npub struct Y;");
        let part = ("x/part.rs", "use crate::y::Y;\npub struct Part;");
        assert_eq!(of(&[LIB, parent, part, back]), ["x.rs:3"]);
    }

    #[test]
    fn tests_programs_and_other_rooms_do_not_count() {
        let x = ("x.rs", "use crate::y::Y;\npub struct X;");
        for other in ["main.rs", "bin/tool.rs", "y/tests.rs", "tests/y.rs"] {
            assert!(
                of(&[LIB, x, ("y.rs", "pub struct Y;"), (other, "use crate::x::X;")]).is_empty(),
                "{other}"
            );
        }
    }
}
